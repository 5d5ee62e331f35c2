"""An incremental reader of one Python literal that writes it as JSON: never `eval`, never the whole text at once.

Invariant: each character is accepted or refused when it is seen, so that any split of the text is read alike; the JSON text of
what was accepted is the beginning of a JSON value. A string goes on at once; numbers and words are held until they end. Time is
linear in the text; memory is the nesting and one number.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping

from gateway.formats.codecs.json_text import MAX_DEPTH
from gateway.formats.codecs.values import escaped
from gateway.formats.cursor import SPACE

_MAX_TOKEN = 4096  # characters of a number; Python itself refuses to read longer ones
_WORDS: Mapping[str, str] = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_TOKEN = re.compile(r"[0-9A-Za-z_.+-]*")
_INTEGER = re.compile(r"([+-]?)(0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eE][+-]?[0-9]+)?\Z")
_HEX = re.compile(r"([+-]?)0[xX]([0-9a-fA-F]{1,1000})\Z")
_ESCAPES: Mapping[str, str] = {
    **{"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"},
    **{"\\": "\\", "'": "'", '"': '"', "\n": ""},
}
_HEX_DIGITS: Mapping[str, int] = {"x": 2, "u": 4, "U": 8}
_OCTAL = "01234567"
_MAX_CHARACTER_NAME = 100
_RUNS: Mapping[str, re.Pattern[str]] = {"'": re.compile(r"[^'\\]*"), '"': re.compile(r'[^"\\]*')}


class PythonText:
    """One value. `done` after its last character, `failed` before the first that cannot belong to it. `take` gives the JSON text
    of what was read since the last time. `scan` also stops after a key that its dict already has: `repeated` is then True until
    the next `scan`."""

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self.repeated = False
        self._state: Callable[[str, int], int] = self._value
        self._open: list[str] = []  # the closing signs of what is open
        self._has_comma: list[bool] = []  # of each; brackets around one value without a comma are no tuple
        self._keys: list[set[str]] = []  # of each, as JSON
        self._key_text: list[str] = []
        self._json: list[str] = []
        self._token = ""
        self._quote = ""
        self._quotes = 0
        self._triple = False
        self._raw = False
        self._escape = ""
        self._digits = 0
        self._is_key = False
        self._high = ""  # the first half of a character that two escapes write

    def take(self) -> str:
        """The JSON text so far, once."""
        text = "".join(self._json)
        self._json.clear()
        return text

    def scan(self, text: str, pos: int) -> int:
        """Read on from index `pos`; the index of the first character not read."""
        self.repeated = False
        while pos < len(text) and not (self.done or self.failed or self.repeated):
            pos = self._state(text, pos)
        return pos

    def _give(self, text: str) -> None:
        self._json.append(text)
        if self._is_key:
            self._key_text.append(text)

    def _fail(self, pos: int) -> int:
        self.failed = True
        return pos

    # Between values.

    def _value(self, text: str, pos: int) -> int:
        """A value begins, or a bracket ends."""
        sign = text[pos]
        if sign in SPACE:
            return pos + 1
        if self._open and sign == self._open[-1]:
            return self._close(pos)
        return self._begin(sign, pos)

    def _begin(self, sign: str, pos: int) -> int:
        if sign in "[({":
            if len(self._open) >= MAX_DEPTH:
                return self._fail(pos)
            self._open.append({"[": "]", "(": ")", "{": "}"}[sign])
            self._has_comma.append(False)
            self._keys.append(set())
            self._give("{" if sign == "{" else "[")
            self._state = self._key if sign == "{" else self._value
            return pos + 1
        if sign in "'\"":
            self._quote, self._quotes, self._triple = sign, 1, False
            self._give('"')
            self._state = self._opening
            return pos + 1
        if not _TOKEN.fullmatch(sign):
            return self._fail(pos)
        self._token = ""
        self._state = self._word
        return pos

    def _key(self, text: str, pos: int) -> int:
        """A key of a dict, which must be a string, or its end."""
        sign = text[pos]
        if sign in SPACE:
            return pos + 1
        if sign == "}":
            return self._close(pos)
        if sign not in "'\"":
            return self._fail(pos)
        self._is_key = True
        return self._begin(sign, pos)

    def _colon(self, text: str, pos: int) -> int:
        if text[pos] in SPACE:
            return pos + 1
        if text[pos] != ":":
            return self._fail(pos)
        self._give(": ")
        self._state = self._first
        return pos + 1

    def _first(self, text: str, pos: int) -> int:
        """A value that must be there."""
        return pos + 1 if text[pos] in SPACE else self._begin(text[pos], pos)

    def _next(self, text: str, pos: int) -> int:
        """After a value."""
        sign = text[pos]
        if sign in SPACE:
            return pos + 1
        if sign == self._open[-1] and (sign != ")" or self._has_comma[-1]):
            return self._close(pos)
        if sign != ",":
            return self._fail(pos)
        self._has_comma[-1] = True
        self._state = self._after_comma
        return pos + 1

    def _after_comma(self, text: str, pos: int) -> int:
        """Another item, or, as a comma may be the last, the end."""
        if text[pos] in SPACE:
            return pos + 1
        if text[pos] == self._open[-1]:
            return self._close(pos)
        self._give(", ")
        self._state = self._key if self._open[-1] == "}" else self._first
        return pos

    def _close(self, pos: int) -> int:
        self._give("}" if self._open.pop() == "}" else "]")
        self._has_comma.pop()
        self._keys.pop()
        self._end()
        return pos + 1

    def _end(self) -> None:
        """A value is whole."""
        if self._is_key:
            self._is_key = False
            self._end_key("".join(self._key_text))
            self._state = self._colon
        elif self._open:
            self._state = self._next
        else:
            self.done = True

    def _end_key(self, key: str) -> None:
        self.repeated = key in self._keys[-1]
        self._keys[-1].add(key)
        self._key_text.clear()

    # Numbers and words.

    def _word(self, text: str, pos: int) -> int:
        found = _TOKEN.match(text, pos)
        stop = found.end() if found else pos
        room = _MAX_TOKEN - len(self._token)
        if stop - pos > room:
            return self._fail(pos + room)
        self._token += text[pos:stop]
        if self._token in ("r", "R", "u", "U") and stop < len(text) and text[stop] in "'\"":
            self._raw = self._token.lower() == "r"
            return self._begin(text[stop], stop)
        if stop == len(text):
            return stop
        self._end_word()
        return stop

    def _end_word(self) -> None:
        written = _WORDS.get(self._token) or _number(self._token)
        if written is None:
            self.failed = True
            return
        self._give(written)
        self._end()

    # Strings.

    def _opening(self, text: str, pos: int) -> int:
        """One quote, or three, or the two of an empty string."""
        if text[pos] != self._quote:
            if self._quotes == 2:
                return self._close_string(pos)
            self._state = self._string
            return pos
        self._quotes += 1
        if self._quotes == 3:
            self._triple, self._quotes = True, 0
            self._state = self._string
        return pos + 1

    def _string(self, text: str, pos: int) -> int:
        found = _RUNS[self._quote].match(text, pos)
        stop = found.end() if found else pos
        self._text(text[pos:stop])
        if stop == len(text):
            return stop
        if text[stop] == "\\":
            self._state = self._escaped
            return stop + 1
        self._quotes = 0
        self._state = self._closing
        return stop

    def _closing(self, text: str, pos: int) -> int:
        """A quote ends the string, or three of them do."""
        if text[pos] == self._quote:
            self._quotes += 1
            if self._quotes == (3 if self._triple else 1):
                return self._close_string(pos + 1)
            return pos + 1
        self._text(self._quote * self._quotes)
        self._state = self._string
        return pos

    def _close_string(self, pos: int) -> int:
        self._lone()
        self._give('"')
        self._raw = False
        self._end()
        return pos

    def _escaped(self, text: str, pos: int) -> int:
        """What a backslash means; before another character it stands for itself, as it does in Python."""
        kind = text[pos]
        self._escape = ""
        self._state = self._string
        if self._raw:
            self._text("\\" + kind)
        elif kind in _HEX_DIGITS:
            self._digits = _HEX_DIGITS[kind]
            self._state = self._by_number
        elif kind in _OCTAL:
            self._state = self._by_octal
            return pos
        elif kind == "N":
            self._state = self._by_name
        else:
            self._text(_ESCAPES.get(kind, "\\" + kind))
        return pos + 1

    def _by_number(self, text: str, pos: int) -> int:
        if text[pos] not in "0123456789abcdefABCDEF":
            return self._fail(pos)
        self._escape += text[pos]
        if len(self._escape) == self._digits:
            code = int(self._escape, 16)
            if code > 0x10FFFF:
                return self._fail(pos)
            self._character(code)
            self._state = self._string
        return pos + 1

    def _by_octal(self, text: str, pos: int) -> int:
        """Up to three digits."""
        if text[pos] in _OCTAL:
            self._escape += text[pos]
            pos += 1
            if len(self._escape) < 3:
                return pos
        self._character(int(self._escape, 8))
        self._state = self._string
        return pos

    def _by_name(self, text: str, pos: int) -> int:
        """`{BULLET}`."""
        self._escape += text[pos]
        if self._escape[0] != "{" or len(self._escape) > _MAX_CHARACTER_NAME:
            return self._fail(pos)
        if text[pos] == "}":
            try:
                self._text(unicodedata.lookup(self._escape[1:-1]))
            except KeyError:
                return self._fail(pos)
            self._state = self._string
        return pos + 1

    def _character(self, code: int) -> None:
        """A character by its number; two halves of one are put together."""
        if 0xD800 <= code < 0xDC00:
            self._lone()
            self._high = chr(code)
        elif 0xDC00 <= code < 0xE000:
            pair = 0x10000 + ((ord(self._high) - 0xD800) << 10) + (code - 0xDC00) if self._high else 0xFFFD
            self._high = ""
            self._give(escaped(chr(pair)))
        else:
            self._text(chr(code))

    def _lone(self) -> None:
        """Half a character alone is none."""
        if self._high:
            self._give("\ufffd")
            self._high = ""

    def _text(self, text: str) -> None:
        if text:
            self._lone()
            self._give(escaped(text))


def _number(token: str) -> str | None:
    """A Python number as JSON; None where it is none."""
    token = _ungrouped(token)
    if found := _INTEGER.match(token):
        return ("-" if found[1] == "-" else "") + found[2]
    if found := _HEX.match(token):
        return ("-" if found[1] == "-" else "") + str(int(found[2], 16))
    found = _FLOAT.match(token)
    if not found or not (found[2] or found[3]):
        return None
    whole = found[2].lstrip("0") or "0"
    fraction = "" if found[3] is None else "." + (found[3] or "0")
    if not fraction and not found[4]:
        return None  # digits alone with a zero in front are no number
    return ("-" if found[1] == "-" else "") + whole + fraction + (found[4] or "")


def _ungrouped(token: str) -> str:
    """The number without `_` between its digits; one that stands elsewhere stays, and makes it none."""
    return re.sub(r"(?<=[0-9a-fA-F])_(?=[0-9a-fA-F])", "", token)
