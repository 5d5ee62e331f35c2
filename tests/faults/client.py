"""A client of the gateway that behaves badly on purpose, on a raw socket, within a bounded time.

What it got is an `Answer`, which says whether it was whole, and which can tell a stump from an answer.
"""

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from faults.wire import CLOSES_AT_ONCE

Manner = Literal["reads", "before", "waiting", "during", "after", "slow", "half_close", "garbage"]
"""`reads` the whole answer; leaves `before` its body is whole, while `waiting` for the first byte, `during` the answer, or
`after` it, while the connection stands; reads it `slow`ly; closes its sending half (`half_close`)
after the body; sends `garbage`."""
MANNERS: tuple[Manner, ...] = get_args(Manner)
HTTP_PATH = "/v1/chat/completions"
LIMIT_S = 20.0
_GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n{}",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n no colon here\r\n\r\n{}",
)


@dataclass(slots=True)
class Answer:
    """What a client got. `asked`: the gateway had the head of a request to generate. `left_s`: when it left, by the loop."""

    asked: bool = True
    raw: bytearray = field(default_factory=bytearray)
    ended: bool = False  # the gateway ended it: by its length, its last chunk, or the connection
    left_s: float | None = None
    _at: int = 0  # where the next chunk begins
    _chunked: bool = False
    _joined: bytearray = field(default_factory=bytearray)
    _last: bool = False

    @property
    def head(self) -> str:
        """The status line and headers."""
        return self.raw.partition(b"\r\n\r\n")[0].decode("latin-1")

    @property
    def status(self) -> int | None:
        """None where no byte came."""
        return int(self.raw[9:12]) if self.raw.startswith(b"HTTP/1.1 ") else None

    @property
    def body(self) -> bytes:
        """The body so far, HTTP chunks joined."""
        self._join()
        return bytes(self._joined if self._chunked else self.raw.partition(b"\r\n\r\n")[2])

    @property
    def complete(self) -> bool:
        """Whether the HTTP body is whole."""
        self._join()
        if self._chunked or not self._at:
            return self._last
        length = self.head.lower().partition("\r\ncontent-length:")[2].partition("\r\n")[0]
        return bool(length) and len(self.body) >= int(length)

    def _join(self) -> None:
        """Joins the chunks that have come since."""
        if not self._at:
            self._at = self.raw.find(b"\r\n\r\n") + 4
            if self._at < 4:
                self._at = 0
                return
            self._chunked = b"transfer-encoding: chunked" in self.raw[: self._at].lower()
        while self._chunked and not self._last and (end := self.raw.find(b"\r\n", self._at)) >= 0:
            try:
                size = int(self.raw[self._at : end].partition(b";")[0], 16)
            except ValueError:  # it can never be whole
                return
            if len(self.raw) < end + 4 + size:
                return
            self._joined += self.raw[end + 2 : end + 2 + size]
            self._last = size == 0
            self._at = end + 4 + size

    @property
    def events(self) -> list[Any]:
        """The data of the whole events of a stream, decoded but for `[DONE]`."""
        data = [block.removeprefix(b"data: ") for block in self.body.split(b"\n\n")[:-1] if block.startswith(b"data: ")]
        return [each.decode() if each == b"[DONE]" else json.loads(each) for each in data]

    @property
    def streamed(self) -> bool:
        return "content-type: text/event-stream" in self.head.lower()

    @property
    def done(self) -> bool:
        """Whether it calls itself complete."""
        if not self.streamed:
            return self.status == 200 and self.complete
        events = self.events
        return bool(events) and events[-1] == "[DONE]"

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that it ended with."""
        values = self.events[-1:] if self.streamed else [json.loads(self.body)] if self.complete else []
        return next((value["error"] for value in values if isinstance(value, dict) and "error" in value), None)

    @property
    def text(self) -> str:
        """The content that it was given."""
        if self.streamed:
            choices = [choice for event in self.events if isinstance(event, dict) for choice in event.get("choices", ())]
            return "".join(choice["delta"].get("content") or "" for choice in choices)
        return str(json.loads(self.body)["choices"][0]["message"]["content"])

    @property
    def finishes(self) -> list[str]:
        """Why its choices ended."""
        choices = [choice for event in self.events if isinstance(event, dict) for choice in event.get("choices", ())]
        return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]

    def check(self) -> None:
        """A whole answer, or an error that nobody can take for one, and the connection was ended as HTTP ends it."""
        assert self.complete, bytes(self.raw[-500:])
        assert self.done is (self.error is None), bytes(self.raw[-500:])
        if self.error is not None:
            assert self.error["message"]
            assert self.error["type"]
            assert self.status == 200 if self.streamed else (self.status or 0) >= 400
            assert "[DONE]" not in self.events if self.streamed else True


class RawClient:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, answer: Answer, *, until: bytes | None = None, size: int = 1 << 16, rest_s: float = 0.0) -> None:
        """Reads on to the answer's end, or until these bytes have come."""
        while not (answer.complete or (until is not None and until in answer.raw)):
            data = await self.reader.read(size)
            if not data:
                answer.ended = True
                return
            answer.raw += data
            await asyncio.sleep(rest_s)
        answer.ended = answer.complete

    async def announce(self, data: bytes) -> bytes:
        """Sends a request's head and waits until the gateway has read it, as a reset may overtake what was sent; the body."""
        head, _, body = data.partition(b"\r\n\r\n")
        await self.send(head + b"\r\nexpect: 100-continue\r\n\r\n")
        await self.reader.readuntil(b"\r\n\r\n")
        return body

    def half_close(self) -> None:
        """FIN, and it goes on reading."""
        self.writer.write_eof()

    def leave(self, *, reset: bool = False) -> float:
        """Closes, with FIN or RST; gives the time."""
        if reset:
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSES_AT_ONCE)
            self.writer.transport.abort()
        else:
            self.writer.close()
        return asyncio.get_running_loop().time()


@contextlib.asynccontextmanager
async def connected(url: str, *, receive_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """A connection that is closed at the end, whatever happened on it. `receive_bytes` bounds what the kernel holds for it."""
    place = urlsplit(url)
    raw = socket.socket()
    raw.setblocking(False)
    if receive_bytes is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        await asyncio.get_running_loop().sock_connect(raw, (place.hostname, place.port))
    except OSError:
        raw.close()
        raise
    reader, writer = await asyncio.open_connection(sock=raw, limit=receive_bytes or 1 << 16)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def chat(text: str = "Hello", *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """The body of a chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": stream, **fields}


def request(body: dict[str, Any], *headers: str, path: str = HTTP_PATH) -> bytes:
    """A whole request."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: gateway", "content-type: application/json", f"content-length: {len(data)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + data


async def ask(url: str, body: dict[str, Any], *headers: str, limit_s: float = LIMIT_S) -> Answer:
    """A request that is read to its end."""
    answer = Answer()
    async with asyncio.timeout(limit_s), connected(url) as client:
        await client.send(request(body, *headers))
        await client.read(answer)
    return answer


async def misbehave(url: str, manner: Manner, body: dict[str, Any], *headers: str, chance: random.Random) -> Answer:
    """One request in this manner. Raises TimeoutError where the gateway keeps it waiting for ever."""
    answer = Answer(asked=manner != "garbage")
    reset = chance.random() < 0.5
    async with asyncio.timeout(LIMIT_S), connected(url, receive_bytes=4096 if manner == "slow" else None) as client:
        with contextlib.suppress(ConnectionError):
            data = request(body, *headers)
            if reset and manner in ("before", "waiting"):
                data = await client.announce(data)
            await _behave(client, manner, data, answer, chance)
        if answer.left_s is None:
            answer.left_s = client.leave(reset=reset)
    return answer


async def _behave(client: RawClient, manner: Manner, data: bytes, answer: Answer, chance: random.Random) -> None:
    match manner:
        case "before":
            head_bytes = data.find(b"\r\n\r\n") + 4 if data.startswith(b"POST") else 0
            await client.send(data[: chance.randrange(head_bytes, len(data))])
            await asyncio.sleep(chance.uniform(0, 0.02))
        case "waiting":
            await client.send(data)
            await asyncio.sleep(chance.uniform(0, 0.02))
        case "during":
            await client.send(data)
            await client.read(answer, until=b"data: ")
            await asyncio.sleep(chance.uniform(0, 0.02))
        case "slow":
            await client.send(data)
            await client.read(answer, size=512, rest_s=0.002)
        case "half_close":
            await client.send(data)
            client.half_close()
            await client.read(answer)
        case "garbage":
            await client.send(chance.choice(_GARBAGE))
            await client.read(answer, until=b"\r\n\r\n")
        case "reads" | "after":
            await client.send(data)
            await client.read(answer)
    if manner == "after":
        answer.left_s = client.leave(reset=True)
