"""Calls as JSON objects with a name and arguments, `{"name": …, "arguments": {…}}`, one a block or an array of them.

Invariant: the arguments reach the client as the model wrote them, character by character as they are accepted; only a string that
holds the object (unwrapped once) and null (given as `{}`) are not, and both are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.formats.calls import Calls
from gateway.formats.codecs.block import BlockReader, State, end_of_block
from gateway.formats.codecs.json_arguments import JsonArguments, as_string
from gateway.formats.codecs.json_text import JsonText
from gateway.formats.cursor import SPACE, Cursor, after_space
from gateway.formats.spec import Damage, Progress

_MAX_HEAD = 512  # characters in which an object must show that it is a call


@dataclass(frozen=True, slots=True)
class JsonInWrapper:
    """`name_key` and `arguments_keys` may stand in any order; `ignored_keys` say nothing; other members are content after the
    call, counted `bad_header`, and a second name or second arguments `duplicate_key`. Without a `name_key` each member's key is a
    name and its value the arguments. `id_key` holds the call's id for families with native ids. `array`: the objects stand in one
    JSON array, which an opener that ends with `[` has begun, and whose end is the block's end where the block has no closer. With
    a `separator` another object may follow it. A block that begins without its opener has no closer, but may stand between two
    `fence`s, the first with `json`."""

    name_key: str = "name"
    arguments_keys: tuple[str, ...] = ("arguments",)
    ignored_keys: tuple[str, ...] = ("id", "type")
    id_key: str | None = None
    array: bool = False
    separator: str = ""
    fence: str = ""

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """None: an object alone is text."""
        return ()

    def begins(self, cursor: Cursor, at: int, names: frozenset[str]) -> bool | None:
        """An object does that begins with a name, and goes on with arguments or names a declared tool; others are answers."""
        try:
            return self._begins(_Head(cursor.text, at), names)
        except _NotYet:
            return False if cursor.final else None
        except _NoCall:
            return False

    def _begins(self, head: "_Head", names: frozenset[str]) -> bool:
        if self.fence and head.word(self.fence):
            head.word("json")
        head.sign("[" if self.array else "{")
        if self.array:
            head.sign("{")
        while True:
            key = head.string()
            head.sign(":")
            if key == self.name_key:
                break
            if key not in self.ignored_keys:
                return False
            head.string()
            head.sign(",")
        name = head.string()
        return name in names or (head.sign(",}") == "," and head.string() in self.arguments_keys)

    def reader(self, opener: str, closer: str, calls: Calls, bare: bool) -> "WrapperReader":
        """A reader for one block."""
        return WrapperReader(self, opener, closer, calls, bare)


class _NotYet(Exception):
    """The text ends before it tells."""


class _NoCall(Exception):
    """The text is something else."""


class _Head:
    """Reads the beginning of an object that may be a call, without consuming it."""

    def __init__(self, text: str, at: int) -> None:
        self._text = text
        self._at = at
        self._last = at + _MAX_HEAD

    def word(self, wanted: str) -> bool:
        """Whether this text stands here; it is read."""
        if self._text.startswith(wanted, self._at):
            self._at += len(wanted)
            return True
        if wanted.startswith(self._text[self._at :]):
            raise _NotYet
        return False

    def sign(self, wanted: str) -> str:
        """One of these characters, after whitespace."""
        at, text = self._at, self._text
        while at < len(text) and text[at] in SPACE:
            at += 1
        if at >= self._last:
            raise _NoCall
        if at == len(text):
            raise _NotYet
        if text[at] not in wanted:
            raise _NoCall
        self._at = at + 1
        return text[at]

    def string(self) -> str:
        """A string without escapes: names and keys have none."""
        self.sign('"')
        end = self._text.find('"', self._at, self._last)
        if end < 0:
            raise _NoCall if len(self._text) >= self._last else _NotYet
        value, self._at = self._text[self._at : end], end + 1
        return value


class WrapperReader(BlockReader):
    """Reads one block."""

    def __init__(self, codec: JsonInWrapper, opener: str, closer: str, calls: Calls, bare: bool) -> None:
        self._codec = codec
        self._closer = "" if bare else closer
        self._calls = calls
        self._state = self._begin
        if bare and codec.fence:
            self._state = self._open_fence
        elif codec.array and opener.endswith("[") and not bare:
            self._state = self._first_item
        self._in_array = codec.array
        self._value = JsonText()
        self._value_at = 0
        self._key: str | None = None
        self._key_at = 0
        self._pieces: list[str] = []  # what is held of the member that is read now
        self._held_chars = 0
        self._after_value: State = self._member
        self._arguments: JsonArguments
        self._new_object()

    def _new_object(self) -> None:
        self._name: str | None = None
        self._native_id: str | None = None
        self._waiting: list[str] = []  # arguments that came before the name
        self._has_arguments = False

    def _next(self, cursor: Cursor) -> str:
        """The next character that is no whitespace, unread; "" if there is none yet."""
        return cursor.text[cursor.pos] if cursor.skip(SPACE) else ""

    def _next_in_member(self, cursor: Cursor) -> str:
        """As `_next`, where the whitespace is held with the member."""
        start = cursor.pos
        sign = self._next(cursor)
        self._pieces.append(cursor.text[start : cursor.pos])
        return sign

    def _invalid(self, cursor: Cursor) -> Damage:
        return Damage("invalid_json", cursor.offset, cursor.offset)

    def _take(self, cursor: Cursor, wanted: str, then: State) -> Progress | None:
        """One of the wanted characters, after whitespace."""
        character = self._next(cursor)
        if not character:
            return "more"
        if character not in wanted:
            return self._invalid(cursor)
        cursor.advance(cursor.pos + 1, "markup")
        self._state = then
        return None

    def _open_fence(self, cursor: Cursor) -> Progress | None:
        """A fence, which is closed again, or none: `begins` has seen all of it."""
        text, fence = cursor.text, self._codec.fence
        if text.startswith(fence, cursor.pos):
            self._closer = fence
            at = cursor.pos + len(fence)
            cursor.advance(at + len("json") * text.startswith("json", at), "markup")
        self._state = self._begin
        return None

    def _begin(self, cursor: Cursor) -> Progress | None:
        if not self._codec.array:
            return self._object(cursor)
        if self._next(cursor) != "{":
            return self._take(cursor, "[", self._first_item)
        self._in_array = False
        return self._object(cursor)

    def _first_item(self, cursor: Cursor) -> Progress | None:
        if self._next(cursor) == "]":
            return self._take(cursor, "]", self._end_of_block)
        return self._object(cursor)

    def _object(self, cursor: Cursor) -> Progress | None:
        self._new_object()
        return self._take(cursor, "{", self._first_member)

    def _first_member(self, cursor: Cursor) -> Progress | None:
        if self._next(cursor) == "}":
            return self._take(cursor, "}", self._end_of_object)
        return self._member(cursor)

    def _member(self, cursor: Cursor) -> Progress | None:
        character = self._next(cursor)
        if not character:
            return "more"
        if character != '"':
            return self._invalid(cursor)
        self._read_value(cursor, self._end_of_key)
        return None

    def _end_of_key(self, cursor: Cursor) -> Progress | None:
        self._key, self._key_at = self._decoded(), self._value_at
        self._state = self._colon
        return None

    def _colon(self, cursor: Cursor) -> Progress | None:
        sign = self._next_in_member(cursor)
        if not sign:
            return "more"
        if sign != ":":
            return self._invalid(cursor)
        cursor.advance(cursor.pos + 1, "markup")
        self._pieces.append(sign)
        self._state = self._choose
        return None

    def _choose(self, cursor: Cursor) -> Progress | None:
        """A member's value begins: its key says what to do with it."""
        if not self._next_in_member(cursor):
            return "more"
        key, codec = self._key, self._codec
        if not codec.name_key:
            return self._named_by_key(cursor, key)
        if key == codec.name_key and self._name is None:
            self._read_value(cursor, self._end_of_name)
        elif key in codec.arguments_keys and not self._has_arguments:
            self._read_arguments(cursor)
        elif key is not None and key == codec.id_key:
            self._read_value(cursor, self._end_of_id)
        elif key in codec.ignored_keys:
            self._read_value(cursor, self._end_of_member)
        else:
            repeats = key == codec.name_key or key in codec.arguments_keys
            self._calls.fail("duplicate_key" if repeats else "bad_header", self._key_at, recovered=True)
            self._read_value(cursor, self._end_of_aside, self._pieces)
        return None

    def _named_by_key(self, cursor: Cursor, key: str | None) -> Progress | None:
        if not key:
            return Damage("missing_name", self._value_at, cursor.offset)
        self._name = key
        self._calls.start(key, self._value_at)
        self._read_arguments(cursor)
        return None

    def _read_arguments(self, cursor: Cursor) -> None:
        self._has_arguments = True
        self._arguments = JsonArguments(self._calls, cursor, self._give, held=self._name is None)
        self._state = self._in_arguments

    def _read_value(self, cursor: Cursor, then: State, held: Sequence[str] = ()) -> None:
        """Read and hold one JSON value, beside what is `held` already."""
        self._value = JsonText()
        self._value_at = cursor.offset
        self._pieces = [*held]
        self._held_chars = 0
        self._after_value = then
        self._state = self._in_value

    def _in_value(self, cursor: Cursor) -> Progress | None:
        start, limit = cursor.pos, self._calls.held_chars
        cursor.advance(self._value.scan(cursor.text, start), "markup")
        self._pieces.append(cursor.text[start : cursor.pos])
        self._held_chars += cursor.pos - start
        if self._held_chars > limit:
            return Damage("value_too_large", self._value_at, self._value_at + limit)
        if self._value.failed:
            return self._invalid(cursor)
        if not self._value.done:
            return None if self._value.repeated else "more"  # a repeated key in a member that only we read says nothing
        self._state = self._after_value
        return None

    def _decoded(self) -> str | None:
        """The held value, if it is a string."""
        return as_string("".join(self._pieces))

    def _end_of_member(self, cursor: Cursor) -> Progress | None:
        self._pieces = []
        if self._next(cursor) == "," and not self._codec.name_key:
            self._calls.end()
        return self._take(cursor, ",}", self._member if self._next(cursor) == "," else self._end_of_object)

    def _end_of_aside(self, cursor: Cursor) -> Progress | None:
        self._calls.aside("".join(self._pieces), self._key_at)
        self._state = self._end_of_member
        return None

    def _end_of_id(self, cursor: Cursor) -> Progress | None:
        self._native_id = self._decoded()
        self._state = self._end_of_member
        return None

    def _end_of_name(self, cursor: Cursor) -> Progress | None:
        name = self._decoded()
        if not name:
            return Damage("missing_name", self._value_at, cursor.offset)
        self._name = name
        self._calls.start(name, self._value_at, self._native_id)
        for piece in self._waiting:
            self._calls.arguments(piece)
        self._waiting = []
        self._state = self._end_of_member
        return None

    def _give(self, text: str) -> None:
        """Arguments for the client, now or as soon as the name is known."""
        if self._name is not None:
            self._calls.arguments(text)
        else:
            self._waiting.append(text)

    def _in_arguments(self, cursor: Cursor) -> Progress | None:
        progress = self._arguments.step(cursor)
        if progress != "done":
            return progress
        self._state = self._end_of_member
        return None

    def _end_of_object(self, cursor: Cursor) -> Progress | None:
        if self._name is None:
            return Damage("missing_name", self._calls.raw_from, cursor.offset)
        if not self._has_arguments:
            self._calls.arguments("{}")
        if self._in_array:
            self._calls.end()
            self._state = self._after_item
            return None
        if self._codec.array:
            self._calls.fail("bad_header", self._calls.raw_from, recovered=True)  # one object without its array
        if self._closer:
            self._state = self._end_of_block
        else:
            self._calls.end()
            if not self._codec.separator:
                return "done"
            self._state = self._after_object
        return None

    def _after_object(self, cursor: Cursor) -> Progress | None:
        """The separator and another object, or anything else."""
        if not cursor.skip(SPACE):
            return "done" if cursor.final else "more"
        mark, at = self._codec.separator, cursor.pos
        if not cursor.text.startswith(mark, at):
            return "more" if mark.startswith(cursor.text[at:]) and not cursor.final else "done"
        at = after_space(cursor.text, at + len(mark))
        if at == len(cursor.text):
            return "done" if cursor.final else "more"
        if cursor.text[at] != "{":
            return "done"
        cursor.advance(at, "markup")
        self._state = self._object
        return None

    def _after_item(self, cursor: Cursor) -> Progress | None:
        return self._take(cursor, ",]", self._object if self._next(cursor) == "," else self._end_of_block)

    def _end_of_block(self, cursor: Cursor) -> Progress | None:
        return end_of_block(cursor, self._closer, self._calls)
