"""An incremental, validating reader of one JSON value (RFC 8259) that keeps nothing of it.

Invariant: each character is accepted or refused when it is seen, so that any split of the text is read alike; what was accepted
is the beginning of a JSON value. Time is linear in the text; memory is the nesting and the keys of open objects.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto

from gateway.wire import jsonio

MAX_DEPTH = 200  # decoders of clients stop somewhere: several at 255

_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\n\r]*")
_DIGITS = re.compile(r"[0-9]*")
_HEX = frozenset("0123456789abcdefABCDEF")


class _At(Enum):
    """What may come next."""

    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    NEXT = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()
    MINUS = auto()
    ZERO = auto()
    WHOLE = auto()
    POINT = auto()
    FRACTION = auto()
    EXPONENT = auto()
    EXPONENT_SIGN = auto()
    EXPONENT_DIGITS = auto()

    __hash__ = object.__hash__  # Enum's own is a Python function, too slow a character


_WORDS: Mapping[str, str] = {"t": "rue", "f": "alse", "n": "ull"}
_DIGIT_RUNS = frozenset({_At.WHOLE, _At.FRACTION, _At.EXPONENT_DIGITS})
_NUMBER: Mapping[_At, Mapping[str, _At]] = {
    _At.MINUS: {"0": _At.ZERO, "1": _At.WHOLE},
    _At.ZERO: {".": _At.POINT, "e": _At.EXPONENT},
    _At.WHOLE: {".": _At.POINT, "e": _At.EXPONENT},
    _At.POINT: {"0": _At.FRACTION, "1": _At.FRACTION},
    _At.FRACTION: {"e": _At.EXPONENT},
    _At.EXPONENT: {"0": _At.EXPONENT_DIGITS, "1": _At.EXPONENT_DIGITS, "+": _At.EXPONENT_SIGN},
    _At.EXPONENT_SIGN: {"0": _At.EXPONENT_DIGITS, "1": _At.EXPONENT_DIGITS},
    _At.EXPONENT_DIGITS: {},
}
_COMPLETE_NUMBERS = _DIGIT_RUNS | {_At.ZERO}
_NUMBER_CLASS: Mapping[str, str] = {**dict.fromkeys("123456789", "1"), "0": "0", ".": ".", "e": "e", "E": "e", "+": "+", "-": "+"}


class JsonText:
    """One value. `done` after its last character, `failed` before the first character that cannot belong to it.

    `scan` also stops after a key that its object already has: `repeated` is then True until the next `scan`.
    """

    __slots__ = ("_at", "_count", "_key", "_objects", "_rest", "done", "failed", "repeated")

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self.repeated = False
        self._at = _At.VALUE
        self._objects: list[set[str] | None] = []  # one a level: the keys so far, or None for an array
        self._key: list[str] | None = None  # the pieces of the key that is being read
        self._rest = ""
        self._count = 0

    def scan(self, text: str, pos: int) -> int:
        """Read on from index `pos`; the index of the first character not read."""
        end = len(text)
        self.repeated = False
        while pos < end and not (self.done or self.failed or self.repeated):
            at = self._at
            if at is _At.STRING:
                pos = self._string(text, pos)
            elif at in _NUMBER:
                pos = self._number(text, pos)
            elif at is _At.ESCAPE or at is _At.HEX or at is _At.WORD:
                pos = self._character(text[pos], pos)
            else:
                pos = _SPACE.match(text, pos).end()  # type: ignore[union-attr]  # matches everywhere
                if pos < end:
                    self._structure(text[pos])
                    pos += not (self.failed)
        return pos

    def end(self) -> None:
        """No more text: a number has no other end."""
        if not self._objects and self._at in _COMPLETE_NUMBERS:
            self.done = True

    def _string(self, text: str, pos: int) -> int:
        stop = _RUN.match(text, pos).end()  # type: ignore[union-attr]  # matches everywhere
        if stop < len(text):
            character = text[stop]
            if character == '"':
                self._end_string(text[pos:stop])
            elif character == "\\":
                self._at = _At.ESCAPE
            else:
                self.failed = True
                return stop
            stop += 1
        if self._key is not None:
            self._key.append(text[pos:stop])
        return stop

    def _end_string(self, last: str) -> None:
        if self._key is None:
            self._end_value()
            return
        raw = "".join(self._key) + last
        self._key = None
        self._at = _At.COLON
        key = _plain(raw)
        if (keys := self._objects[-1]) is not None:
            self.repeated = key in keys
            keys.add(key)

    def _character(self, character: str, pos: int) -> int:
        """One character of an escape or of `true`, `false`, `null`."""
        at = self._at
        if at is _At.ESCAPE and character in '"\\/bfnrt':
            self._at = _At.STRING
        elif at is _At.ESCAPE and character == "u":
            self._at, self._count = _At.HEX, 4
        elif at is _At.HEX and character in _HEX:
            self._count -= 1
            self._at = _At.HEX if self._count else _At.STRING
        elif at is _At.WORD and character == self._rest[0]:
            self._rest = self._rest[1:]
            if not self._rest:
                self._end_value()
        else:
            self.failed = True
            return pos
        if self._key is not None:
            self._key.append(character)
        return pos + 1

    def _number(self, text: str, pos: int) -> int:
        if self._at in _DIGIT_RUNS:
            pos = _DIGITS.match(text, pos).end()  # type: ignore[union-attr]  # matches everywhere
            if pos == len(text):
                return pos
        following = _NUMBER[self._at].get(_NUMBER_CLASS.get(text[pos], ""))
        if following is not None:
            self._at = following
            return pos + 1
        if self._at in _COMPLETE_NUMBERS:
            self._end_value()
        else:
            self.failed = True
        return pos

    def _structure(self, character: str) -> None:
        """One character between values."""
        at = self._at
        if at is _At.NEXT:
            self._after_value(character)
        elif at is _At.COLON:
            self._at = _At.VALUE
            self.failed = character != ":"
        elif character == '"' and at in (_At.KEY, _At.FIRST_KEY):
            self._key = []
            self._at = _At.STRING
        elif (character == "}" and at is _At.FIRST_KEY) or (character == "]" and at is _At.FIRST_ITEM):
            self._objects.pop()
            self._end_value()
        elif at in (_At.VALUE, _At.FIRST_ITEM):
            self._begin_value(character)
        else:
            self.failed = True

    def _begin_value(self, character: str) -> None:
        if character == '"':
            self._at = _At.STRING
        elif character in "{[" and len(self._objects) < MAX_DEPTH:
            self._objects.append(set() if character == "{" else None)
            self._at = _At.FIRST_KEY if character == "{" else _At.FIRST_ITEM
        elif character in _WORDS:
            self._rest = _WORDS[character]
            self._at = _At.WORD
        elif character == "-":
            self._at = _At.MINUS
        elif "0" <= character <= "9":
            self._at = _At.ZERO if character == "0" else _At.WHOLE
        else:
            self.failed = True

    def _after_value(self, character: str) -> None:
        in_object = self._objects[-1] is not None
        if character == ",":
            self._at = _At.KEY if in_object else _At.VALUE
        elif character == ("}" if in_object else "]"):
            self._objects.pop()
            self._end_value()
        else:
            self.failed = True

    def _end_value(self) -> None:
        self._at = _At.NEXT
        self.done = not self._objects


def _plain(raw: str) -> str:
    """A key without its escapes, so that two spellings of one key are one."""
    if "\\" not in raw:
        return raw
    try:
        return str(jsonio.decode(f'"{raw}"'))
    except jsonio.JsonError:  # a lone surrogate: such keys are equal if they are spelled alike
        return raw


def is_json(text: str) -> bool:
    """Whether the text is exactly one JSON value, without whitespace around it."""
    if not text or text[0] in " \t\n\r":
        return False
    value = JsonText()
    pos = 0
    while pos < len(text) and not (value.done or value.failed):
        pos = value.scan(text, pos)
    value.end()
    return value.done and pos == len(text)
