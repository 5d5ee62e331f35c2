"""A fake engine that costs almost nothing, so that what stands before it can be measured.

It answers `POST /v1/chat/completions` as an OpenAI server and `POST /completion` as llama.cpp, streamed or whole, with as many
tokens as were asked for. With `--source MODEL` it answers `POST /tokenize` with that model's ids, and has its context.
`POST /pace?itl_ms=20` makes streams come one token at a time; with 0 they come at once, in one write.
Loopback only; it ends by itself.
"""

import argparse
import asyncio
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

import httptools
import uvloop

from gateway.prompt.model_files import ModelFiles
from gateway.prompt.source import read_model

TOKEN = b" word"
_MAX_TOKENS = re.compile(rb'"(?:max_completion_tokens|max_tokens|n_predict)"\s*:\s*(\d+)')
_STREAMED = re.compile(rb'"stream"\s*:\s*true')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
_CHAT = b'{"id":"chatcmpl-0123456789abcdef","object":"%s","created":1700000000,"model":"mock","choices":[%s]%s}'
_USAGE = b',"usage":{"prompt_tokens":16,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}}'


class Shape(Protocol):
    """How one protocol writes an answer of so many tokens."""

    def token(self, number: int) -> bytes:
        """The event of one token, the first being 1."""

    def end(self, tokens: int) -> bytes:
        """The events after the last token."""

    def whole(self, tokens: int) -> bytes:
        """The body of an answer that is not streamed."""


class Chat:
    """OpenAI Chat Completions."""

    def token(self, number: int) -> bytes:
        role = b'"role":"assistant",' if number == 1 else b""
        choice = b'{"index":0,"delta":{%s"content":"%s"},"logprobs":null,"finish_reason":null}' % (role, TOKEN)
        return _event(_CHAT % (b"chat.completion.chunk", choice, b""))

    def end(self, tokens: int) -> bytes:
        choice = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}'
        last = _event(_CHAT % (b"chat.completion.chunk", choice, b""))
        usage = _event(_CHAT % (b"chat.completion.chunk", b"", _USAGE % (tokens, tokens + 16)))
        return last + usage + _event(b"[DONE]")

    def whole(self, tokens: int) -> bytes:
        message = b'{"role":"assistant","content":"%s"}' % (TOKEN * tokens)
        choice = b'{"index":0,"message":%s,"logprobs":null,"finish_reason":"stop"}' % message
        return _CHAT % (b"chat.completion", choice, _USAGE % (tokens, tokens + 16))


class LlamaCpp:
    """llama.cpp's own completion endpoint."""

    def token(self, number: int) -> bytes:
        return _event(
            b'{"index":0,"content":"%s","tokens":[2229],"stop":false,"id_slot":-1,"tokens_predicted":%d,"tokens_evaluated":16}'
            % (TOKEN, number)
        )

    def end(self, tokens: int) -> bytes:
        return _event(self._last(b"", b"", tokens))

    def whole(self, tokens: int) -> bytes:
        return self._last(TOKEN * tokens, b",".join([b"2229"] * tokens), tokens)

    def _last(self, text: bytes, ids: bytes, tokens: int) -> bytes:
        return (
            b'{"index":0,"content":"%s","tokens":[%s],"id_slot":0,"stop":true,"model":"mock","tokens_predicted":%d,'
            b'"tokens_evaluated":16,"truncated":false,"stop_type":"limit","stopping_word":"","tokens_cached":%d,'
            b'"timings":{"cache_n":0,"prompt_n":16,"prompt_ms":1.0,"predicted_n":%d,"predicted_ms":1.0}}'
            % (text, ids, tokens, tokens + 15, tokens)
        )


_PROPS = b'{"total_slots":32,"model_alias":"mock","build_info":"mock","default_generation_settings":{"n_ctx":%d}}'

SHAPES: dict[bytes, Shape] = {b"/v1/chat/completions": Chat(), b"/completion": LlamaCpp()}
FIXED = {
    b"/health": b'{"status":"ok"}',
    b"/v1/models": b'{"object":"list","data":[{"id":"mock","object":"model","created":1700000000,"owned_by":"mock"}]}',
    b"/slots": b"[]",
}


class Pace:
    """Seconds between the tokens of a stream, for all connections."""

    itl_s = 0.0


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self, pace: Pace, model: ModelFiles | None) -> None:
        self._pace = pace
        self._tokenizer = model.tokenizer if model else None
        self._props = _PROPS % ((model and model.context_tokens) or 8192)
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, query = self._url.partition(b"?")
        shape = SHAPES.get(path)
        if shape is None:
            self._plain(path, query)
            return
        body = b"".join(self._body)
        asked = _MAX_TOKENS.search(body)
        tokens = int(asked[1]) if asked else 16
        if _STREAMED.search(body):
            self._stream(shape, tokens)
        else:
            self._answer(shape.whole(tokens))

    def _plain(self, path: bytes, query: bytes) -> None:
        if path == b"/pace":
            self._pace.itl_s = float(query.removeprefix(b"itl_ms=")) / 1e3
            self._answer(b"{}")
        elif path == b"/tokenize" and self._tokenizer is not None:
            text = json.loads(b"".join(self._body))["content"]
            self._answer(json.dumps({"tokens": self._tokenizer.encode(text)}).encode())
        elif path == b"/props":
            self._answer(self._props)
        elif path in FIXED:
            self._answer(FIXED[path])
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def _answer(self, body: bytes) -> None:
        self._transport.write(_HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(body) + body)

    def _stream(self, shape: Shape, tokens: int) -> None:
        self._transport.write(_HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n")
        end = _framed(shape.end(tokens)) + b"0\r\n\r\n"
        if self._pace.itl_s == 0:
            self._transport.write(_framed(b"".join(map(shape.token, range(1, tokens + 1)))) + end)
            return
        loop, itl_s = asyncio.get_running_loop(), self._pace.itl_s
        start_s = loop.time()

        def tick(number: int) -> None:
            self._transport.write(_framed(shape.token(number)) + (end if number == tokens else b""))
            if number < tokens:
                self._timer = loop.call_at(start_s + (number + 1) * itl_s, tick, number + 1)

        self._timer = loop.call_at(start_s + itl_s, tick, 1)


def _event(data: bytes) -> bytes:
    return b"data: %s\n\n" % data


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(port: int, max_s: float, source: Path | None = None) -> None:
    """Serves until a signal comes or the time is over."""
    loop = asyncio.get_running_loop()
    pace = Pace()
    model = read_model(source) if source else None
    made: Callable[[], Connection] = lambda: Connection(pace, model)  # noqa: E731  # the annotation helps the type checker
    server = await loop.create_server(made, "127.0.0.1", port, backlog=1024)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with asyncio.timeout(max_s):
            await stop.wait()
    except TimeoutError:
        pass
    server.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A fake engine on loopback.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-seconds", type=float, default=300)
    parser.add_argument("--source", type=Path)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.max_seconds, arguments.source))


if __name__ == "__main__":
    main()
