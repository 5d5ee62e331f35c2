"""The client's side of one exchange: its body, its answer with backpressure, and whether it is still there.

Nothing queues between engine and client: `write` awaits the socket, and the engine is read no further until it returns. A client
that leaves cancels the task that serves it, streamed or not. A connection that the client half-closes counts as left.
"""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from starlette.types import Receive, Scope, Send

from gateway.dialects.base import JSON_TYPE, PING, STREAM_TYPE
from gateway.errors import BodyTimeout, BodyTooLarge, UnsupportedEncoding
from gateway.timer import Alarm, Watchdog

Header = tuple[bytes, bytes]

PING_S = 10.0
BODY_S = 30.0
_STALL_S = 0.001  # below this, `send` only copied to the socket
_STREAM_HEADERS: tuple[Header, ...] = (
    (b"content-type", STREAM_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientLeft(Exception):
    """The client closed its connection before its body was whole."""


async def read_body(scope: Scope, receive: Receive, max_bytes: int, watchdog: Watchdog) -> bytes:
    """The whole body. Raises BodyTooLarge as soon as it is too long, BodyTimeout, UnsupportedEncoding or ClientLeft."""
    headers = dict(scope["headers"])
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnsupportedEncoding("Compressed bodies are not accepted.", param="content-encoding")
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    with Alarm(watchdog, asyncio.get_running_loop().time() + BODY_S, _too_slow):
        return await _collect(receive, max_bytes)


async def pass_over_body(scope: Scope, receive: Receive, max_bytes: int, limit_s: float) -> None:
    """Throws a body away, for so long: a connection that is closed with bytes unread is reset, and the answer is lost with it. A
    body that is too large, or that its client keeps until it is asked for, is left."""
    headers = dict(scope["headers"])
    declared = headers.get(b"content-length", b"0")
    if b"expect" in headers or (declared.isdigit() and int(declared[:20]) > max_bytes):
        return
    left = max_bytes
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while left > 0 and (message := await receive()).get("more_body", False):
                left -= len(message.get("body", b""))


async def _collect(receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _too_slow() -> BodyTimeout:
    return BodyTimeout(f"The body did not arrive within {BODY_S:g} s.")


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {max_bytes} bytes.")


class Client:
    """The client of one exchange, once its body is read. Enter it to be cancelled when it leaves.

    `headers` are added to every answer, and may be added to until it begins; so are those of `late`, which is asked then. The
    headers of a streamed answer are held until its first piece, or for `grace_s`; from then on a comment is sent whenever nothing
    was for ten seconds, since proxies and clients cut silent connections.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        *,
        headers: tuple[Header, ...],
        grace_s: float,
        late: Callable[[], tuple[Header, ...]] | None = None,
    ) -> None:
        self._receive = receive
        self._send = send
        self.headers = headers
        self._late = late
        self._grace_s = grace_s
        self._ping_s = PING_S
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._starting = asyncio.Lock()
        self._sending = 0  # pieces that wait for the client
        self._waits_since = 0.0
        self._last_sent = 0.0
        self.streamed = False
        self.started = False
        self.gone = False
        self.complete = False
        self.stall_s = 0.0

    async def __aenter__(self) -> Self:
        serving = asyncio.current_task()
        self._watch = asyncio.create_task(self._watch_for_leaving(serving))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop_pings()
        if self._watch is not None:
            self._watch.cancel()

    async def _watch_for_leaving(self, serving: "asyncio.Task[object] | None") -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if serving is not None and not self.complete:  # servers also say "disconnect" when the answer is complete
            self.gone = True
            serving.cancel()

    def expect_stream(self) -> None:
        """The answer will be streamed: pings begin after the grace."""
        self.streamed = True
        self._ping_timer = self._loop.call_later(self._grace_s, self._tick)

    def _tick(self) -> None:
        idle_s = self._loop.time() - self._last_sent
        if idle_s >= self._ping_s and not self._sending:
            self._pinging = asyncio.create_task(self._ping())
            idle_s = 0.0
        self._ping_timer = self._loop.call_later(max(self._ping_s - idle_s, 0.01), self._tick)

    async def _ping(self) -> None:
        await self.write(PING)

    def _stop_pings(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self._pinging is not None:
            self._pinging.cancel()

    async def write(self, data: bytes) -> float:
        """Sends a piece of a streamed answer; gives the seconds that the client made us wait."""
        return await self._deliver(data, more=True)

    async def _deliver(self, data: bytes, *, more: bool) -> float:
        began = self._loop.time()
        if not self._sending:
            self._waits_since = began
        self._sending += 1
        stalled_s = 0.0
        try:
            if not self.started:
                await self._start()
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        finally:  # a client that takes nothing until it is cut off has stalled too
            self._sending -= 1
            self._last_sent = self._loop.time()
            if (waited_s := self._last_sent - began) >= _STALL_S:
                stalled_s = waited_s
            if not self._sending and self._last_sent - self._waits_since >= _STALL_S:
                self.stall_s += self._last_sent - self._waits_since  # once, however many choices waited
        return stalled_s

    async def _start(self) -> None:
        """Sends the headers, once: a ping may wait here for a client that still reads its last answer, and be cancelled."""
        async with self._starting:
            if not self.started:
                headers = [*_STREAM_HEADERS, *self._all_headers()]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                self.started = True

    def _all_headers(self) -> tuple[Header, ...]:
        return self.headers if self._late is None else self.headers + self._late()

    async def finish(self, data: bytes) -> None:
        """Sends the last piece of a streamed answer, or the whole body."""
        if not self.streamed:
            await self.reply(200, data)
            return
        self._stop_pings()
        self.complete = True
        await self._deliver(data, more=False)

    async def reply(self, status: int, body: bytes, extra: tuple[Header, ...] = ()) -> None:
        """Sends one whole JSON answer."""
        self._stop_pings()
        self.started = self.complete = True
        length = (b"content-length", b"%d" % len(body))
        headers = [(b"content-type", JSON_TYPE), length, *self._all_headers(), *extra]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
