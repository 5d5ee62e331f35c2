"""The value between a parameter's tags, on its way to JSON.

Invariant: it becomes JSON once. A string goes on at once, escaped; another value is held until its end.
"""

from gateway.formats.calls import Calls
from gateway.formats.codecs.values import TEXT, converted, declared_json, escaped, surely_text
from gateway.formats.schema import Types
from gateway.formats.spec import Damage

_NO_TEXT = Types(frozenset({"object", "array", "boolean", "null", "integer", "number"}))


class TaggedValue:
    """One value: its types are those of the schema, until the model itself declares what it is."""

    def __init__(self, calls: Calls, types: Types, literals: tuple[tuple[str, str], ...]) -> None:
        self._calls = calls
        self._types = types
        self._literals = literals
        self._declared = False  # to be JSON
        self._at = 0
        self._pieces: list[str] = []
        self._held_chars = 0
        self._decided = False
        self._streams = False

    def declare(self, *, is_text: bool) -> None:
        """The model says that it is a string, or JSON."""
        self._declared = not is_text
        self._types = TEXT if is_text else _NO_TEXT

    def begin(self, offset: int) -> None:
        """Its text begins here."""
        self._at = offset

    def add(self, piece: str) -> Damage | None:
        """More of its text. A string goes on at once, unless it begins as a value of another type that the schema allows."""
        if piece and not self._decided:
            self._decided = True
            if surely_text(piece[0], self._types):
                self._stream()
        if self._streams:
            self._calls.arguments(escaped(piece))
            return None
        self._pieces.append(piece)
        self._held_chars += len(piece)
        return self._overflow() if self._held_chars > self._calls.held_chars else None

    def end(self) -> None:
        """It is whole."""
        if self._streams:
            self._calls.arguments('"')
            return
        text = "".join(self._pieces)
        text, fits = declared_json(text) if self._declared else converted(text, self._types, self._literals)
        if not fits:
            self._calls.fail("schema_mismatch", self._at, recovered=True)
        self._calls.arguments(text)

    def _stream(self) -> None:
        self._streams = True
        self._calls.arguments('"')

    def _overflow(self) -> Damage | None:
        if "string" not in self._types.kinds:
            return Damage("value_too_large", self._at, self._at + self._calls.held_chars)
        self._calls.fail("value_too_large", self._at, recovered=True)
        self._stream()
        self._calls.arguments(escaped("".join(self._pieces)))
        self._pieces = []
        return None
