"""Server-sent events, bytes to events, after the WHATWG HTML standard's event stream section.

Invariant: any bytes in any split give the same events as the whole, or `SseError`; never another exception. Memory is at most
`max_event_bytes` plus what one `feed` brings; time is linear in the bytes, one byte at a time included.
"""

import msgspec

_BOM = b"\xef\xbb\xbf"


class SseError(ValueError):
    """An event longer than the limit."""


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event: its `data` lines joined by newlines, and its type, empty unless the sender named one."""

    data: bytes
    event: bytes = b""


class SseReader:
    """Feed it bytes as they come. Comments, ids and retry times are skipped; an event without data is none."""

    def __init__(self, max_event_bytes: int = 4 * 1024 * 1024) -> None:
        self._max = max_event_bytes
        self._buffer = bytearray()
        self._begun = False
        self._skip_lf = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that these bytes complete. Raises SseError where one is longer than the limit."""
        buffer = self._buffer
        searched = max(len(buffer) - 1, 0)
        buffer += self._lf_only(data)
        if not self._begun and not self._strip_bom():
            return []
        if buffer.find(b"\n\n", searched) < 0:
            self._bound(len(buffer) - buffer.endswith(b"\n"))  # that line end may be half of the event's end
            return []
        *blocks, rest = bytes(buffer).split(b"\n\n")
        self._bound(len(rest) - rest.endswith(b"\n"))
        self._buffer = bytearray(rest)
        events: list[SseEvent] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block and len(block) <= self._max:  # nearly all are
                events.append(SseEvent(block[6:]))
            elif (event := self._event(block)) is not None:
                events.append(event)
        return events

    @property
    def idle(self) -> bool:
        """Whether nothing of a further event has come."""
        return not self._buffer.strip()

    def _lf_only(self, data: bytes) -> bytes:
        """The bytes with each line end as LF; a CRLF that two feeds share is one line end."""
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _strip_bom(self) -> bool:
        """Drops a leading byte order mark; False while the bytes so far may still become one."""
        if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
            return False
        self._begun = True
        if self._buffer.startswith(_BOM):
            del self._buffer[: len(_BOM)]
        return True

    def _bound(self, size: int) -> None:
        if size > self._max:
            raise SseError(f"an event of over {self._max} bytes")

    def _event(self, block: bytes) -> SseEvent | None:
        self._bound(len(block))
        data: list[bytes] = []
        name = b""
        for line in block.split(b"\n"):
            field, _, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.removeprefix(b" ")
        return SseEvent(b"\n".join(data), name) if data else None
