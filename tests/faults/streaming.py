"""One streamed answer of the fault engine, with the one fault that was asked for.

Invariant: what a fault does depends on the tokens that were sent, never on the time, but for those faults that are about time.
"""

import asyncio
from dataclasses import dataclass, field

from faults.chaos import BEFORE_FIRST, MID_STREAM, Fault
from faults.framing import framed
from faults.speech import Kind, Piece, Speech, as_one, doubled, fattened, odd_event
from faults.wire import LAST_CHUNK, Connection, chunk, head

_AFTER = 3  # tokens
_SETTLE_S = 0.02  # before a connection is broken, so that the peer has read what came before
_FLOOD_BYTES = 1 << 16
_STREAM = ("content-type", "text/event-stream; charset=utf-8")
_LOGIN = "<!doctype html><title>Sign in</title><form action=/login></form>"
_GARBAGE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 no HTTP at all\r\n\r\n"
_EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n"


@dataclass(slots=True)
class Seen:
    """One request to generate, as the engine saw it. Times are the loop's. `closed_s`: when the peer closed before the end."""

    number: int
    connection: int
    kind: Kind
    fault: str
    prompt: list[int]
    limit: int | None
    began_s: float
    first_s: float | None = None
    ended_s: float | None = None
    closed_s: float | None = None
    how: str = "running"  # whole, fault, or closed: the peer left
    sent: list[int] = field(default_factory=list)
    queued_s: float = 0.0
    cached: int = 0
    kept: bool = False  # its connection had brought another request before


class Streaming:
    """Sends one answer. `key` is what the caller showed, for an engine that says too much."""

    def __init__(self, connection: Connection, seen: Seen, said: Speech, fault: Fault, *, key: str, token_s: float) -> None:
        self._connection = connection
        self._seen = seen
        self._said = said
        self._fault = fault
        self._mode = fault.mode
        self._key = key
        self._token_s = fault.number("s", 0.05) if fault.mode == "slow" else token_s
        held = fault.mode in ("coalesce", "content_length_short") or fault.number("whole", 0) > 0
        self._held: list[bytes] | None = [] if held else None
        self._begun = False  # a byte order mark comes once
        self._loop = asyncio.get_running_loop()

    async def run(self) -> bool:
        """Sends it all, or what the fault leaves of it; whether the connection can be used again."""
        if not await self._head():
            return False
        mode = self._mode
        struck = mode not in MID_STREAM and mode not in BEFORE_FIRST and mode != "bad_chunk_size"
        for piece in self._said.pieces(finish=mode != "no_finish"):
            if not struck and self._comes_before(piece):
                struck = True
                if not await self._strike(piece):
                    return False
                if mode == "dup_keys":
                    await self._send(Piece(piece.role, doubled(piece.data), piece.ids))
                    continue
            if piece.role in ("end", "done"):
                return await self._end(piece)
            await self._send(piece)
        return await self._whole()

    async def _head(self) -> bool:
        """The status line and headers; whether anything follows."""
        mode, send = self._mode, self._connection.send
        if mode == "http_garbage":
            await send(_GARBAGE)
            return False
        if mode == "html_200":
            await self._connection.reply(200, _LOGIN, content_type="text/html")
            return False
        if mode == "json_not_stream":
            await self._connection.reply(200, as_one(self._seen.kind, self._said))
            return False
        if mode == "informational":
            await send(_EARLY)
        headers = [_STREAM]
        if mode == "wrong_content_type":
            headers = [("content-type", "text/plain")]
        elif mode == "no_content_type":
            headers = []
        elif mode == "header_bomb":
            headers += [(f"x-bomb-{at}", "a" * 1024) for at in range(int(self._fault.number("kb", 1024)))]
        if mode != "content_length_short":
            await send(head(200, *headers, ("transfer-encoding", "chunked")))
        return True

    def _comes_before(self, piece: Piece) -> bool:
        """Whether the fault strikes before this piece: it would bring more tokens than the fault lets through, or the end."""
        if piece.role == "progress":
            return False
        if self._mode in BEFORE_FIRST or piece.role != "token":
            return True
        return len(self._seen.sent) + len(piece.ids) > self._fault.number("after", _AFTER)

    async def _strike(self, piece: Piece) -> bool:
        """Does what the fault says; whether the answer goes on."""
        mode, number = self._mode, self._fault.number
        match mode:
            case "hang_before_first" | "hang_mid_stream":
                await self._connection.closed.wait()
                raise ConnectionResetError("the peer has closed")
            case "slow_first" | "pause_mid_stream":
                await asyncio.sleep(number("s", 0.5))
                return True
            case "error_before_first" | "error_mid_stream":
                for data in self._said.error(int(number("code", 500)), self._key):
                    await self._event(data)
                await self._whole()
            case "reset_mid_stream" | "die":
                await self._settle()
                self._connection.reset()
            case "close_mid_stream":
                await self._settle()
            case "half_event":
                await self._half(piece)
            case "end_mid_stream":
                await self._whole()
            case "bad_chunk_size":
                await self._connection.send(b"zz\r\n")
                await self._settle()
            case "endless_line":
                await self._flood(b"data: ", b"a" * _FLOOD_BYTES)
            case "comment_flood":
                await self._flood(b"", b": still here\n\n" * (_FLOOD_BYTES // 14))
            case "dup_keys":
                return True
            case _:
                await self._event(odd_event(mode, self._said, len(self._seen.sent), number("mb", 64)))
                return True
        return False

    async def _end(self, last: Piece) -> bool:
        """The end mark, and what comes of it; whether the connection can be used again."""
        match self._mode:
            case "half_done":
                await self._half(last)
                return False
            case "no_finish" if self._fault.number("cut", 0):
                await self._settle()
                return False
            case "no_done" if last.role == "done":
                return await self._whole()
            case "close_after_done":
                await self._send(last)
                await self._settle()
                return False
            case "done_no_close":
                await self._send(last)
                await self._connection.closed.wait()
                return False
            case "duplicate_done":
                await self._send(last)
            case "data_after_done":
                await self._send(last)
                last = Piece("token", self._said.odd(b'"odd"', len(self._seen.sent)))
            case _:
                pass
        await self._send(last)
        return await self._whole()

    async def _whole(self) -> bool:
        """Ends the HTTP body as it should end."""
        if self._mode == "content_length_short" and self._held is not None:
            body = b"".join(self._held)
            await self._connection.send(head(200, _STREAM, ("content-length", str(len(body) // 2))) + body)
        elif self._held is not None:
            await self._connection.send(b"".join([*map(chunk, self._held), LAST_CHUNK]))
        else:
            await self._connection.send(LAST_CHUNK)
        return True

    async def _send(self, piece: Piece) -> None:
        """One event, at its time."""
        if piece.ids and self._token_s:
            await asyncio.sleep(self._token_s)
        await self._event(fattened(piece.data, int(1024 * self._fault.number("kb", 4))) if self._mode == "fat" else piece.data)
        if piece.ids and self._seen.first_s is None:
            self._seen.first_s = self._loop.time()
        self._seen.sent += piece.ids

    async def _event(self, data: bytes) -> None:
        pieces = framed(data, self._mode, first=not self._begun)
        self._begun = True
        for piece in pieces:
            if self._held is not None:
                self._held.append(piece)
            else:
                await self._connection.send(chunk(piece))

    async def _half(self, piece: Piece) -> None:
        """Half of an event, as a whole HTTP chunk."""
        (data,) = framed(piece.data, "none", first=False)
        await self._connection.send(chunk(data[: len(data) // 2]))
        await self._settle()

    async def _flood(self, opening: bytes, piece: bytes) -> None:
        """The same piece until the peer closes, or there was enough of it."""
        rest_s = self._fault.number("s", 0)
        await self._connection.send(chunk(opening or piece))
        for _ in range(int(self._fault.number("mb", 256) * (1 << 20)) // len(piece)):
            await self._connection.send(chunk(piece))
            await asyncio.sleep(rest_s)

    async def _settle(self) -> None:
        """So that the peer has read what came before."""
        await asyncio.sleep(self._fault.number("settle", _SETTLE_S))
