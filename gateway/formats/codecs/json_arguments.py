"""A call's arguments as one JSON value, from the place where it begins: the part that all codecs with JSON arguments share.

Invariant: an object reaches the client as the model wrote it, character by character as it is accepted; only a string that holds
the object (unwrapped once) and null (given as `{}`) do not, and both are counted.
"""

from collections.abc import Callable

from gateway.formats.calls import Calls
from gateway.formats.codecs.json_text import JsonText
from gateway.formats.cursor import SPACE, Cursor
from gateway.formats.spec import Damage, Progress
from gateway.wire import jsonio


class JsonArguments:
    """Reads one value, whose first character is at the cursor. `give` takes the arguments' text; with `held` it keeps it until
    the call's name is known, so that its size is bounded."""

    def __init__(self, calls: Calls, cursor: Cursor, give: Callable[[str], None], *, held: bool = False) -> None:
        self._calls = calls
        self._give = give
        self._held = held
        self._value = JsonText()
        self._value_at = cursor.offset
        self._pieces: list[str] | None = None if cursor.text.startswith("{", cursor.pos) else []  # of what is no object
        self._held_chars = 0

    def step(self, cursor: Cursor) -> Progress:
        """Read what can be read of the value."""
        while True:
            piece = self._scan(cursor)
            if self._pieces is None:
                self._give(piece)
            else:
                self._pieces.append(piece)
            if (self._held or self._pieces is not None) and (too_large := self._hold(piece)):
                return too_large
            if self._value.failed:
                return Damage("invalid_json", cursor.offset, cursor.offset)
            if not self._value.repeated:
                break
            self._calls.fail("duplicate_key", cursor.offset, recovered=True)
        if not self._value.done:
            return "more"
        return "done" if self._pieces is None else self._unwrapped("".join(self._pieces), cursor)

    def _scan(self, cursor: Cursor) -> str:
        start = cursor.pos
        stop = self._value.scan(cursor.text, start)
        if cursor.final and stop == len(cursor.text):
            self._value.end()
        cursor.advance(stop, "arguments" if self._pieces is None else "markup")
        return cursor.text[start:stop]

    def _hold(self, piece: str) -> Damage | None:
        limit = self._calls.held_chars
        self._held_chars += len(piece)
        return Damage("value_too_large", self._value_at, self._value_at + limit) if self._held_chars > limit else None

    def _unwrapped(self, text: str, cursor: Cursor) -> Progress:
        """What is no object: null is an empty one, a string may hold one."""
        if text == "null":
            self._calls.fail("not_an_object", self._value_at, recovered=True)
            self._give("{}")
            return "done"
        inner = as_string(text)
        if inner is None:
            return Damage("not_an_object", self._value_at, cursor.offset)
        inner = inner.strip(SPACE)
        self._calls.fail("double_encoded", self._value_at, recovered=True)
        if inner in ("", "null"):
            self._give("{}")
            return "done"
        if not inner.startswith("{"):
            return Damage("not_an_object", self._value_at, cursor.offset)
        return self._give_inner(inner, cursor)

    def _give_inner(self, inner: str, cursor: Cursor) -> Progress:
        value = JsonText()
        pos = 0
        while pos < len(inner) and not (value.done or value.failed):
            pos = value.scan(inner, pos)
            if value.repeated:
                self._calls.fail("duplicate_key", self._value_at, recovered=True)
        if not value.done or pos < len(inner):
            return Damage("invalid_json", self._value_at, cursor.offset)
        self._give(inner)
        return "done"


def as_string(text: str) -> str | None:
    """The string that this JSON text is; None where it is another value, or holds half a character."""
    try:
        value = jsonio.decode(text)
    except jsonio.JsonError:
        return None
    return value if isinstance(value, str) else None
