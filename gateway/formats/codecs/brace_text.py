"""An incremental reader of the objects that Gemma writes, `{city:<|"|>Paris<|"|>,n:3}`, which writes them as JSON.

Invariant: each character is accepted or refused when it is seen, so that any split of the text is read alike. Keys are bare; a
string stands between two delimiters, as it is, and goes on at once; numbers and words are held until they end.
"""

import re
from collections.abc import Callable, Mapping

from gateway.formats.codecs.json_text import MAX_DEPTH, is_json
from gateway.formats.codecs.values import escaped, quoted
from gateway.formats.cursor import SPACE, Cursor, Matcher
from gateway.request import FailureKind

_MAX_BARE = 4096  # characters of a key, a number or a word
_CLOSERS: Mapping[str, str] = {"{": "}", "[": "]"}
_KEY = re.compile(r"[^:{}\[\],]*")
_WORD = re.compile(r"[^,}\]]*")


class BraceText:
    """One object, whose `{` is at the cursor. `done` after its last character, `failed` before the first that cannot belong to
    it. `take` gives the JSON text of what was read since the last time. `step` also stops at a `fault`, which is None again with
    the next: a key that its object already had, or a value that is no JSON and stands outside delimiters, given as a string."""

    def __init__(self, delimiter: str) -> None:
        self.done = False
        self.failed = False
        self.fault: tuple[FailureKind, int] | None = None
        self._delimiter = delimiter
        self._ends = Matcher((delimiter,))
        self._state: Callable[[Cursor], bool] = self._value
        self._open: list[str] = []
        self._keys: list[set[str]] = []
        self._json: list[str] = []
        self._bare: list[str] = []
        self._bare_chars = 0
        self._bare_at = 0

    def take(self) -> str:
        """The JSON text so far, once."""
        text = "".join(self._json)
        self._json.clear()
        return text

    def step(self, cursor: Cursor) -> None:
        """Read what can be read."""
        self.fault = None
        while not (self.done or self.failed or self.fault) and self._state(cursor):
            pass

    def _next(self, cursor: Cursor) -> str:
        """The next character that is no whitespace, unread; "" if there is none yet."""
        return cursor.text[cursor.pos] if cursor.skip(SPACE) else ""

    def _sign(self, cursor: Cursor) -> None:
        cursor.advance(cursor.pos + 1, "arguments")

    def _fail(self) -> bool:
        self.failed = True
        return False

    def _value(self, cursor: Cursor) -> bool:
        """A value begins."""
        sign = self._next(cursor)
        if not sign:
            return False
        if sign in _CLOSERS:
            if len(self._open) >= MAX_DEPTH:
                return self._fail()
            self._open.append(_CLOSERS[sign])
            self._keys.append(set())
            self._json.append(sign)
            self._sign(cursor)
            self._state = self._first
            return True
        found = cursor.match(cursor.pos, (self._delimiter,))
        if found == "":
            return False
        if found:
            self._json.append('"')
            cursor.advance(cursor.pos + len(found), "arguments")
            self._state = self._string
        else:
            self._begin_bare(cursor, self._word)
        return True

    def _first(self, cursor: Cursor) -> bool:
        """The first item, or none."""
        sign = self._next(cursor)
        if sign and sign == self._open[-1]:
            return self._close(cursor)
        if sign:
            self._item(cursor)
        return bool(sign)

    def _item(self, cursor: Cursor) -> None:
        if self._open[-1] == "}":
            self._begin_bare(cursor, self._key)
        else:
            self._state = self._value

    def _begin_bare(self, cursor: Cursor, state: Callable[[Cursor], bool]) -> None:
        self._bare, self._bare_chars, self._bare_at = [], 0, cursor.offset
        self._state = state

    def _read_bare(self, cursor: Cursor, run: re.Pattern[str]) -> str | None:
        """The text of this run; None if it does not end here."""
        found = run.match(cursor.text, cursor.pos)
        piece = found[0] if found else ""
        room = _MAX_BARE - self._bare_chars
        if len(piece) > room:
            piece, self.failed = piece[:room], True
        self._bare.append(piece)
        self._bare_chars += len(piece)
        cursor.advance(cursor.pos + len(piece), "arguments")
        return "".join(self._bare).strip() if cursor.pos < len(cursor.text) else None

    def _key(self, cursor: Cursor) -> bool:
        key = self._read_bare(cursor, _KEY)
        if key is None or self.failed:
            return False
        if not key or cursor.text[cursor.pos] != ":":
            return self._fail()
        key = key.removeprefix(self._delimiter).removesuffix(self._delimiter)
        if key in self._keys[-1]:
            self.fault = "duplicate_key", self._bare_at
        self._keys[-1].add(key)
        self._json.append(f"{quoted(key)}:")
        self._sign(cursor)
        self._state = self._value
        return True

    def _word(self, cursor: Cursor) -> bool:
        word = self._read_bare(cursor, _WORD)
        if word is None or self.failed:
            return False
        if not word:
            return self._fail()
        if is_json(word) and word[0] not in '"[{':
            self._json.append(word)
        else:
            self.fault = "schema_mismatch", self._bare_at
            self._json.append(quoted(word))
        self._state = self._after
        return True

    def _string(self, cursor: Cursor) -> bool:
        start = cursor.pos
        at, found = self._ends.find(cursor, start)
        self._json.append(escaped(cursor.text[start:at]))
        cursor.advance(at + len(found), "arguments")
        if not found:
            return False
        self._json.append('"')
        self._state = self._after
        return True

    def _after(self, cursor: Cursor) -> bool:
        """After a value."""
        sign = self._next(cursor)
        if not sign:
            return False
        if sign == self._open[-1]:
            return self._close(cursor)
        if sign != ",":
            return self._fail()
        self._json.append(",")
        self._sign(cursor)
        self._item(cursor)
        return True

    def _close(self, cursor: Cursor) -> bool:
        self._json.append(self._open.pop())
        self._keys.pop()
        self._sign(cursor)
        self.done = not self._open
        self._state = self._after
        return True
