"""The reference that the gateway's cost is compared with: the least that a proxy on the same libraries must do.

Plain ASGI on uvicorn (uvloop, httptools), aiohttp to the engine. It parses the request and writes it anew with the engine's model
name, parses each event of the answer and writes it anew with the client's. No limits, metrics, routing or retries.
"""

import argparse
import asyncio
from typing import Any

import aiohttp
import uvicorn
import uvloop

from gateway.wire import jsonio
from gateway.wire.sse import SseReader

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Proxy:
    """The ASGI application."""

    def __init__(self, engine: str) -> None:
        self._url = f"{engine}/v1/chat/completions"
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["path"] == "/health":
            await _whole(send, 200, b"{}")
        else:
            await self._proxy(receive, send)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _proxy(self, receive: Any, send: Any) -> None:
        request = jsonio.decode(await _body(receive))
        model, request["model"] = request["model"], "mock"
        assert self._session is not None
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url, data=jsonio.encode(request), headers=headers) as response:
            if request.get("stream"):
                await _relay(response, model, send)
            else:
                answer = jsonio.decode(await response.read())
                answer["model"] = model
                await _whole(send, response.status, jsonio.encode(answer))


async def _body(receive: Any) -> bytes:
    pieces = []
    more = True
    while more:
        message = await receive()
        pieces.append(message["body"])
        more = message["more_body"]
    return b"".join(pieces)


async def _relay(response: aiohttp.ClientResponse, model: str, send: Any) -> None:
    await send({"type": "http.response.start", "status": response.status, "headers": EVENTS})
    reader = SseReader()
    async for data in response.content.iter_any():
        out = b"".join([b"data: %s\n\n" % _renamed(event.data, model) for event in reader.feed(data)])
        await send({"type": "http.response.body", "body": out, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _renamed(data: bytes, model: str) -> bytes:
    if data == b"[DONE]":
        return data
    chunk = jsonio.decode(data)
    chunk["model"] = model
    return jsonio.encode(chunk)


async def _whole(send: Any, status: int, body: bytes) -> None:
    headers = [*JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def serve(engine: str, port: int, max_s: float) -> None:
    """Serves until a signal comes or the time is over."""
    config = uvicorn.Config(
        Proxy(engine), "127.0.0.1", port, loop="uvloop", http="httptools", log_level="warning", access_log=False
    )
    server = uvicorn.Server(config)
    asyncio.get_running_loop().call_later(max_s, setattr, server, "should_exit", True)
    await server.serve()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A bare proxy on loopback.")
    parser.add_argument("--engine", required=True, help="the engine's root URL")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-seconds", type=float, default=300)
    arguments = parser.parse_args()

    uvloop.run(serve(arguments.engine, arguments.port, arguments.max_seconds))


if __name__ == "__main__":
    main()
