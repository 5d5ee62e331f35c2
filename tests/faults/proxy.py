"""A TCP proxy that hurts what passes: slow, in slices, at a bounded rate, into a hole, or cut off after so many bytes.

Each connection gets one `Line`, the same for all or chosen by its number. The figures of a line are for the way back, from the
engine to the gateway, but for a black hole, which swallows both ways.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from faults.wire import CLOSES_AT_ONCE

_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Line:
    """What one connection suffers. `delay_s` before each piece; `rate` in bytes a second; `slice_bytes` the largest piece;
    after so many bytes: `reset_after` RST to both sides, `close_after` FIN to both, `half_close_after` FIN to the gateway
    while its own bytes still pass, `hole_after` nothing more, and the connection stays. `refuse`: RST at once. `since`:
    nothing of this before these bytes have gone to the engine, such as `POST /completion`, so that probes pass unharmed."""

    delay_s: float = 0.0
    rate: float | None = None
    slice_bytes: int | None = None
    reset_after: int | None = None
    close_after: int | None = None
    half_close_after: int | None = None
    hole_after: int | None = None
    refuse: bool = False
    since: bytes = b""


class FaultProxy:
    """A proxy in front of one address. `lines` gives each connection, by its number from 0, what it suffers; it may be replaced
    at any time. `passed` counts the bytes of each way back that its line looked at, in the order of the connections."""

    def __init__(self, url: str, lines: Callable[[int], Line] = lambda number: Line()) -> None:
        target = urlsplit(url)
        self._target = (target.hostname or "127.0.0.1", target.port or 80)
        self.lines = lines
        self.url = ""
        self.passed: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """Connections that stand now."""
        return len(self._tasks)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator["FaultProxy"]:
        """The proxy, listening."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            await self.drop()

    async def drop(self) -> None:
        """Ends the connections that stand, so that new lines hold for all that follow."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number = len(self.passed)
        self.passed.append(0)
        line = self.lines(number)
        try:
            if line.refuse:
                _reset(writer)
                return
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await self._both(number, line, reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _both(self, number: int, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        begun = asyncio.Event()
        there = asyncio.create_task(_there(reader, far_writer, line.since, begun))
        back = asyncio.create_task(self._back(number, line, far_reader, writer, begun=begun))
        try:
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            if back.done() and not back.cancelled() and back.exception() is None and back.result():
                _reset(far_writer)
                _reset(writer)
            elif back.done() and line.half_close_after is not None:
                await there
            elif there.done() and there.exception() is None and not back.done() and line.hole_after is None:
                await asyncio.wait([back], timeout=1)  # the gateway left: what is under way may still arrive
        finally:
            there.cancel()
            back.cancel()
            far_writer.close()
            await asyncio.gather(there, back, return_exceptions=True)

    async def _back(
        self, number: int, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, begun: asyncio.Event
    ) -> bool:
        """Passes the engine's bytes on, as far as the line lets them; whether both sides are reset then."""
        ends = [each for each in (line.reset_after, line.close_after, line.half_close_after, line.hole_after) if each is not None]
        end = min(ends, default=None)
        while end is None or self.passed[number] < end or not begun.is_set():
            left = _READ_BYTES if end is None else end - self.passed[number]
            data = await reader.read(min(left, line.slice_bytes or _READ_BYTES))
            if not data:
                return False
            if not begun.is_set():
                writer.write(data)
                continue
            await asyncio.sleep(line.delay_s + (len(data) / line.rate if line.rate else 0.0))
            writer.write(data)
            await writer.drain()
            self.passed[number] += len(data)
        await asyncio.sleep(0.02)  # so that what passed has been read
        if line.hole_after == end:
            await asyncio.Event().wait()
        if line.half_close_after == end:
            writer.write_eof()
        return line.reset_after == end


async def _there(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, since: bytes, begun: asyncio.Event) -> None:
    """Passes the gateway's bytes on; `begun` is set once these have been among them."""
    if not since:
        begun.set()
    while data := await reader.read(_READ_BYTES):
        if since in data:
            begun.set()
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSES_AT_ONCE)
        writer.transport.abort()
