"""A client that costs little: raw connections that count the tokens which come, and fail on any answer that is not whole."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import cast

import httptools


class AnswerError(Exception):
    """An answer that was not what was asked for: figures made with it would mean nothing."""


@dataclass(slots=True)
class Tally:
    """What came so far, over all connections."""

    tokens: int = 0
    answers: int = 0


@dataclass(slots=True)
class _Answer:
    status: int = 0
    pieces: list[bytes] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time. `token` is the text that each generated token has."""

    def __init__(self, tally: Tally, token: bytes) -> None:
        self._tally = tally
        self._token = token
        self._answer = _Answer()
        self._done: asyncio.Future[_Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(AnswerError("the connection closed before the answer's end"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._answer = _Answer()

    def on_body(self, body: bytes) -> None:
        self._answer.pieces.append(body)
        self._tally.tokens += body.count(self._token)

    def on_message_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        if self._done is not None and not self._done.done():
            self._done.set_result(self._answer)

    async def ask(self, request: bytes, tokens: int) -> None:
        """Sends the request and reads its answer to the end. Raises AnswerError unless it is 200 with so many tokens."""
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._done
        body = b"".join(answer.pieces)
        if answer.status != 200 or body.count(self._token) != tokens:
            raise AnswerError(f"status {answer.status}, {body.count(self._token)} of {tokens} tokens: {body[-500:]!r}")
        self._tally.answers += 1

    def close(self) -> None:
        """Ends the connection."""
        self._transport.close()


async def connect(port: int, tally: Tally, token: bytes) -> Connection:
    """A connection to a server on loopback."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(tally, token), "127.0.0.1", port)
    return connection


def chat_request(port: int, model: str, tokens: int, stream: bool) -> bytes:
    """A small chat request (about 1 KB) as bytes for the wire."""
    messages = [
        {"role": "system", "content": "You are a careful assistant. " * 12},
        {"role": "user", "content": "Say the same thing again, as often as you can, and nothing else. " * 7},
    ]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
