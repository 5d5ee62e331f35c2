"""Calls with bare keys and delimited strings, `call:f{city:<|"|>Paris<|"|>,n:3}`, one a block.

Invariant: arguments become JSON once, as they are read. A value outside delimiters that is no JSON is given as a string and
counted.
"""

from dataclasses import dataclass

from gateway.formats.calls import Calls
from gateway.formats.codecs.block import BlockReader, end_of_block
from gateway.formats.codecs.brace_text import BraceText
from gateway.formats.cursor import SPACE, Cursor
from gateway.formats.spec import Damage, Progress

_MAX_NAME = 256


@dataclass(frozen=True, slots=True)
class BraceDelimited:
    """`prefix` stands before the name, `delimiter` on both sides of a string."""

    delimiter: str
    prefix: str = "call:"

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """None: a call without its block's opener is prose."""
        return ()

    def begins(self, cursor: Cursor, at: int, names: frozenset[str]) -> bool | None:
        """Never asked, as there is no bare opener."""
        return False

    def reader(self, opener: str, closer: str, calls: Calls, bare: bool) -> "BraceReader":
        """A reader for one block."""
        return BraceReader(self, closer, calls)


class BraceReader(BlockReader):
    """Reads one block."""

    def __init__(self, codec: BraceDelimited, closer: str, calls: Calls) -> None:
        self._codec = codec
        self._closer = closer
        self._calls = calls
        self._state = self._header
        self._value = BraceText(codec.delimiter)

    def _header(self, cursor: Cursor) -> Progress | None:
        if not cursor.skip(SPACE):
            return "more"
        start, prefix = cursor.pos, self._codec.prefix
        stop = cursor.text.find("{", start, start + _MAX_NAME)
        seen = cursor.text[start : stop if stop >= 0 else start + _MAX_NAME]
        if not (seen.startswith(prefix) or prefix.startswith(seen)) or self._closer in seen:
            return Damage("bad_header", cursor.offset, cursor.offset)
        if stop < 0:
            return "more" if len(cursor.text) - start < _MAX_NAME else Damage("bad_header", cursor.offset, cursor.offset)
        name = seen[len(prefix) :].strip()
        if not name or len(name.split()) > 1:
            return Damage("bad_header" if name else "missing_name", cursor.offset, cursor.offset)
        self._calls.start(name, cursor.offset)
        cursor.advance(stop, "markup")
        self._state = self._arguments
        return None

    def _arguments(self, cursor: Cursor) -> Progress | None:
        value = self._value
        value.step(cursor)
        self._calls.arguments(value.take())
        if value.fault is not None:
            kind, offset = value.fault
            self._calls.fail(kind, offset, recovered=True)
            return None
        if value.failed:
            return Damage("invalid_json", cursor.offset, cursor.offset)
        if not value.done:
            return "more"
        self._state = self._end
        return None

    def _end(self, cursor: Cursor) -> Progress:
        return end_of_block(cursor, self._closer, self._calls)
