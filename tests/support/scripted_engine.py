"""An engine on a real loopback socket that does what a test tells it to, and records what it saw."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.vocabulary import small_tokenizer

Step = bytes | float | str  # bytes to send, seconds to wait, or one of the words below
RESET, CLOSE, HANG, KEEP = "reset", "close", "hang", "keep"  # KEEP: all at once, and the connection stays
TOKENIZE = "/tokenize"
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class Seen:
    """One request as the engine saw it."""

    path: str
    headers: dict[str, str]
    body: Any
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def generates(self) -> bool:
        """Whether it asks for an answer."""
        return self.body is not None and self.path != TOKENIZE


class ScriptedEngine:
    """`script` gives the steps of the next answer; `up` whether it says that it is healthy; `answers` what it says to a GET, and
    to `/tokenize`, where that is not the ids of its `tokenizer`: the steps, or a JSON value. `connections` counts those it has
    accepted, `sent` the bytes of its answers."""

    def __init__(self) -> None:
        self.script: Callable[[Seen], Sequence[Step]] = lambda seen: completion("Hi")
        self.seen: list[Seen] = []
        self.up = True
        self.answers: dict[str, object] = {"/health": {"status": "ok"}, "/v1/models": {"data": [{"id": "m"}]}, "/props": {}}
        self.tokenizer = small_tokenizer()
        self.url = ""
        self.connections = 0
        self.sent = 0
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def calls(self) -> list[Seen]:
        """The requests to generate."""
        return [seen for seen in self.seen if seen.generates]

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["ScriptedEngine"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.connections += 1
        try:
            while (seen := await _request(reader)) is not None:
                self.seen.append(seen)
                if not await self._answer(seen, reader, writer):
                    return
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        steps = self.script(seen) if seen.generates else self._told(seen)
        if not isinstance(steps, list):
            body = json.dumps(steps).encode()
            status = b"200 OK" if self.up else b"503 Service Unavailable"
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))
            return True
        if KEEP in steps:
            writer.writelines(step for step in steps if isinstance(step, bytes))
            return True
        watch = asyncio.create_task(_closed(reader, seen))
        try:
            for step in steps:
                if isinstance(step, bytes):
                    writer.write(step)
                    await writer.drain()
                    self.sent += len(step)
                elif isinstance(step, float):
                    await asyncio.sleep(step)
                elif step == HANG:
                    await seen.closed.wait()
                    return False
                else:
                    if step == RESET:
                        writer.transport.abort()
                    return False
        finally:
            watch.cancel()
        return False

    def _told(self, seen: Seen) -> object:
        """As llama.cpp and vLLM say it."""
        if seen.path == TOKENIZE and TOKENIZE not in self.answers:
            return {"tokens": self.tokenizer.encode(seen.body.get("content") or seen.body["prompt"])}
        return self.answers.get(seen.path, {})


async def _closed(reader: asyncio.StreamReader, seen: Seen) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read(1)
    seen.closed.set()


async def _request(reader: asyncio.StreamReader) -> Seen | None:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head.decode().strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(line.split()[1], headers, json.loads(body) if body else None)


def chunked(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: object) -> bytes:
    """One server-sent event, as an HTTP chunk."""
    return chunked(b"data: %s\n\n" % json.dumps(value).encode())


def llama_token(text: str, at: int, token: int = 500, prompt_tokens: int = 10) -> dict[str, object]:
    """A llama.cpp chunk that carries one token."""
    return {
        "index": 0,
        "content": text,
        "tokens": [token],
        "stop": False,
        "tokens_predicted": at,
        "tokens_evaluated": prompt_tokens,
    }


def llama_end(tokens: int, stop_type: str = "eos", cached: int = 3, prompt_tokens: int = 10) -> dict[str, object]:
    """The chunk that ends a llama.cpp answer."""
    return {
        "index": 0,
        "content": "",
        "tokens": [],
        "stop": True,
        "tokens_predicted": tokens,
        "tokens_evaluated": prompt_tokens,
        "stop_type": stop_type,
        "stopping_word": "",
        "timings": {"cache_n": cached, "prompt_n": prompt_tokens - cached, "predicted_n": tokens},
    }


def completion(*texts: str, stop_type: str = "eos", pause_s: float = 0.0) -> list[Step]:
    """A whole llama.cpp answer, one token a text."""
    steps: list[Step] = [HEAD]
    for at, text in enumerate(texts, 1):
        steps += [event(llama_token(text, at)), pause_s] if pause_s else [event(llama_token(text, at))]
    return [*steps, event(llama_end(len(texts), stop_type)), b"0\r\n\r\n", CLOSE]


def chat_chunk(delta: dict[str, object], finish: str | None = None, index: int = 0) -> dict[str, object]:
    """A chunk of an engine that speaks OpenAI Chat Completions."""
    return {
        "id": "chatcmpl-engine",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "engine-name",
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }


def chat(*texts: str) -> list[Step]:
    """A whole streamed chat answer."""
    usage = {"prompt_tokens": 7, "completion_tokens": len(texts), "total_tokens": 7 + len(texts)}
    chunks = [chat_chunk({"role": "assistant", "content": ""}), *(chat_chunk({"content": text}) for text in texts)]
    end = {**chat_chunk({}), "choices": [], "usage": usage}
    done = chunked(b"data: [DONE]\n\n")
    return [HEAD, *(event(chunk) for chunk in chunks), event(chat_chunk({}, "stop")), event(end), done, b"0\r\n\r\n", CLOSE]
