"""One connection of the fault engine: HTTP/1.1 by hand, so that it can be broken at any byte.

`closed` is set as soon as the peer has closed or reset its side, whether anyone reads or not.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

CLOSES_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing sends RST
_MAX_HEAD_BYTES = 1 << 16

Doom = Literal["fin", "rst"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request that a connection brought."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """The JSON of the body; None without one."""
        return json.loads(self.body) if self.body else None


class Connection(asyncio.Protocol):
    """One connection. `on_open` is told of it once it stands, `on_lost` when nothing more can be sent or read."""

    def __init__(self, on_open: Callable[["Connection"], None], on_lost: Callable[["Connection"], None]) -> None:
        self._on_open = on_open
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()
        self.closed_s: float | None = None
        self.doom: Doom | None = None  # what the next request meets
        self.requests = 0  # that it has brought

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._arrived.set()

    def eof_received(self) -> bool:
        self._close_seen()
        return True  # the other side may still read

    def connection_lost(self, error: Exception | None) -> None:
        self._close_seen()
        self._writable.set()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _close_seen(self) -> None:
        if self.closed_s is None:
            self.closed_s = self._loop.time()
        self.closed.set()
        self._arrived.set()

    async def request(self) -> Request | None:
        """The next request; None once the peer has closed."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if not await self._more() or len(self._buffer) > _MAX_HEAD_BYTES:
                return None
        first, *rest = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        size = end + 4 + int(headers.get("content-length", "0"))
        while len(self._buffer) < size:
            if not await self._more():
                return None
        body = bytes(self._buffer[end + 4 : size])
        del self._buffer[:size]
        self.requests += 1
        method, path, _ = first.split(" ", 2)
        return Request(method, path, headers, body)

    async def _more(self) -> bool:
        if self.closed.is_set():
            return False
        self._arrived.clear()
        await self._arrived.wait()
        return True

    async def send(self, data: bytes) -> None:
        """Sends, and waits while the peer takes nothing. Raises ConnectionError once the peer has closed."""
        if self.closed.is_set() or self._transport is None:
            raise ConnectionResetError("the peer has closed")
        self._transport.write(data)
        await asyncio.sleep(0)
        await self._writable.wait()

    async def reply(self, status: int, value: object, *extra: tuple[str, str], content_type: str = "application/json") -> None:
        """Sends a whole answer: text as it is, anything else as JSON."""
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        headers = [("content-type", content_type), ("content-length", str(len(body))), *extra]
        await self.send(head(status, *headers) + body)

    def close(self) -> None:
        """FIN, once what was written has gone."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """RST, now."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSES_AT_ONCE)
        self._transport.abort()


def head(status: int, *headers: tuple[str, str]) -> bytes:
    """The head of an answer."""
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
