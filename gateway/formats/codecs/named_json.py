"""Calls as a header with the name and then the arguments as JSON: `name[ARGS]{…}`, `functions.name:0<…>{…}`, with or without
markers around each call.

Invariant: as for `json_arguments`. Text between calls of one block is content, counted `bad_header`; where no other call follows
it soon, the block has ended without its closer.
"""

from dataclasses import dataclass

from gateway.formats.calls import Calls
from gateway.formats.codecs.block import BlockReader, State, text_between
from gateway.formats.codecs.json_arguments import JsonArguments
from gateway.formats.cursor import SPACE, Cursor, Matcher, longest_first
from gateway.formats.spec import Damage, Progress

_MAX_HEADER = 256


@dataclass(frozen=True, slots=True)
class NamedJson:
    """`call_open` and `call_close` stand around a call, empty where the block's own markers do. The header is
    `kind + kind_end + name + id_open + id + name_end`, of which only the name and `name_end` are always there; another word than
    the `kind` in its place is content after the call, counted `bad_header`. The arguments may stand between one of `fence_open`
    and `fence_close`. `numbered`: the header is `functions.name:number`, which is the call's id too. `by_shape`: where it must be
    told whether a call begins, one word and an object after it are one of an unknown tool.
    """

    name_end: str
    call_open: str = ""
    call_close: str = ""
    kind: str = ""
    kind_end: str = ""
    id_open: str = ""
    fence_open: tuple[str, ...] = ()
    fence_close: str = ""
    numbered: bool = False
    by_shape: bool = False

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """The call's own opener, where the block's was left out."""
        return (self.call_open,) if self.call_open else ()

    def begins(self, cursor: Cursor, at: int, names: frozenset[str]) -> bool | None:
        """A call of a declared tool does; prose about the marker does not."""
        start = at + len(self.call_open)
        end = cursor.text.find(self.name_end, start, start + _MAX_HEADER)
        if end >= 0:
            name = self.name_of(cursor.text[start:end], names)[0]
            if name in names or not self.by_shape or len(name.split()) != 1:
                return name in names
            after = cursor.text[end + len(self.name_end) :][:1]
            return None if not after and not cursor.final else after == "{"
        if self.by_shape and cursor.cut and len(cursor.text) > start:
            return any(name.startswith(cursor.text[start:]) for name in names)
        return False if cursor.final or len(cursor.text) - start >= _MAX_HEADER + len(self.name_end) else None

    def name_of(self, header: str, names: frozenset[str]) -> tuple[str, str | None]:
        """The name and the id that a header holds."""
        header = header.rpartition(self.kind_end)[2].strip() if self.kind_end else header.strip()
        if self.numbered:
            return _unnumbered(header, names), header
        if self.id_open:
            header, mark, call_id = header.partition(self.id_open)
            return header.strip(), call_id.strip() if mark else None
        return header, None

    def reader(self, opener: str, closer: str, calls: Calls, bare: bool) -> "NamedReader":
        """A reader for one block."""
        return NamedReader(self, closer, calls, bare)


def _unnumbered(header: str, names: frozenset[str]) -> str:
    """The name in `functions.name:0`; models write a `_` in the place of either sign, or leave the number or the word out."""
    name = next((header.removeprefix(word) for word in ("functions.", "functions_") if header.startswith(word)), header)
    for candidate in (name, header):
        base, sign, number = candidate.rpartition(":")
        if sign and number.isdigit():
            return base
        base, sign, number = candidate.rpartition("_")
        if candidate not in names and base in names and number.isdigit():
            return base
    return name


class NamedReader(BlockReader):
    """Reads one block."""

    def __init__(self, codec: NamedJson, closer: str, calls: Calls, bare: bool) -> None:
        self._codec = codec
        self._closer = closer
        self._calls = calls
        self._bare = bare
        self._state = self._between if codec.call_open else self._header
        self._between_calls = longest_first((codec.call_open, closer))
        self._marks = Matcher(self._between_calls)
        self._calls_read = 0
        self._name_at = 0
        self._arguments: JsonArguments

    def _between(self, cursor: Cursor) -> Progress | None:
        """Before a call, or after one."""
        cursor.skip(SPACE)
        tag = cursor.match(cursor.pos, self._between_calls)
        if tag == "":
            return "more"
        if tag is None:
            return self._text(cursor)
        if tag != self._codec.call_open:
            return self._end(cursor, tag)
        self._calls.end_open()
        cursor.advance(cursor.pos + len(tag), "markup")
        self._state = self._header
        return None

    def _text(self, cursor: Cursor) -> Progress | None:
        """Neither a call nor the block's end."""
        follows = not self._bare and text_between(cursor, self._marks, self._codec.call_open, self._calls)
        if follows:
            return None
        if follows is None:
            return "more"
        if not self._calls_read:
            return Damage("bad_header", self._calls.raw_from, cursor.offset)
        if not self._bare:
            self._calls.fail("missing_closer", cursor.offset, recovered=True)
        self._calls.end_open()
        return "done"

    def _end(self, cursor: Cursor, tag: str) -> Progress:
        """The block's closer. A block without a call is markup all the same."""
        if not self._calls_read:
            self._calls.fail("bad_header", cursor.offset, recovered=True)
        cursor.advance(cursor.pos + len(tag), "markup")
        self._calls.end_open()
        return "done"

    def _header(self, cursor: Cursor) -> Progress | None:
        codec, start = self._codec, cursor.pos
        stop = cursor.text.find(codec.name_end, start, start + _MAX_HEADER + len(codec.name_end))
        header = cursor.text[start : stop if stop >= 0 else start + _MAX_HEADER]
        full = stop < 0 and len(cursor.text) - start >= _MAX_HEADER + len(codec.name_end)
        if full or "{" in header:
            return Damage("bad_header", cursor.offset, cursor.offset)
        if stop < 0:
            return "more"
        name, native_id = codec.name_of(header, self._calls.names)
        if not name or len(name.split()) > 1 or any(mark in name for mark in "<["):
            return Damage("bad_header" if name else "missing_name", cursor.offset, cursor.offset)
        self._calls.start(name, cursor.offset, native_id)
        self._calls_read += 1
        kind = header.rpartition(codec.kind_end)[0] if codec.kind_end else ""
        if kind.strip() not in ("", codec.kind):
            self._calls.fail("bad_header", cursor.offset, recovered=True)
            self._calls.aside(kind, cursor.offset)
        cursor.advance(stop + len(codec.name_end), "markup")
        self._state = self._open_fence if codec.fence_open else self._begin_arguments
        return None

    def _optional(self, cursor: Cursor, marks: tuple[str, ...], then: State) -> Progress | None:
        """A mark that the model may have left out, after whitespace."""
        cursor.skip(SPACE)
        found = cursor.match(cursor.pos, longest_first(marks))
        if found == "":
            return "more"
        if found:
            cursor.advance(cursor.pos + len(found), "markup")
        else:
            self._calls.fail("bad_header", cursor.offset, recovered=True)
        self._state = then
        return None

    def _open_fence(self, cursor: Cursor) -> Progress | None:
        return self._optional(cursor, self._codec.fence_open, self._begin_arguments)

    def _begin_arguments(self, cursor: Cursor) -> Progress | None:
        if not cursor.skip(SPACE) and not cursor.final:
            return "more"
        ends = longest_first((self._codec.call_close, self._closer, self._codec.fence_close))
        absent = cursor.match(cursor.pos, ends)
        if absent == "":
            return "more"
        if absent:
            self._calls.arguments("{}")
            self._state = self._after_arguments
        else:
            self._arguments = JsonArguments(self._calls, cursor, self._calls.arguments)
            self._state = self._in_arguments
        return None

    def _in_arguments(self, cursor: Cursor) -> Progress | None:
        progress = self._arguments.step(cursor)
        if progress != "done":
            return progress
        self._state = self._after_arguments
        return None

    def _after_arguments(self, cursor: Cursor) -> Progress | None:
        if self._codec.fence_close:
            return self._optional(cursor, (self._codec.fence_close,), self._close_call)
        return self._close_call(cursor)

    def _close_call(self, cursor: Cursor) -> Progress | None:
        close = self._codec.call_close or self._closer
        if not close:
            self._calls.end_open()
            return "done"
        cursor.skip(SPACE)
        found = cursor.match(cursor.pos, (close,))
        if found == "":
            return "more"
        if found is None:
            # The next call or the block's end must stand here, so that only this call's closer was left out.
            follows = cursor.match(cursor.pos, longest_first((self._codec.call_open, self._closer)))
            if not follows and self._codec.call_open:
                waits = follows == "" or cursor.pos == len(cursor.text)
                return "more" if waits else Damage("invalid_json", cursor.offset, cursor.offset)
            self._calls.fail("missing_closer", cursor.offset, recovered=True)
        else:
            cursor.advance(cursor.pos + len(close), "markup")
        if self._bare or not self._codec.call_open:
            self._calls.end()
        self._state = self._between
        return None if self._codec.call_open else "done"
