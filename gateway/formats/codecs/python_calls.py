"""Calls as Python writes them, `[f(a='x', b=[1]), g()]`, alone, in a list, or a line each.

Invariant: arguments become JSON once, as they are read; what is not `name=literal` is no argument.
"""

import re
from dataclasses import dataclass

from gateway.formats.calls import Calls
from gateway.formats.codecs.block import BlockReader, end_of_block
from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.codecs.python_text import PythonText
from gateway.formats.codecs.values import quoted
from gateway.formats.cursor import SPACE, Cursor, after_space
from gateway.formats.spec import Damage, Progress

_MAX_NAME = 256
_NAME = re.compile(rf"[\w.-]{{0,{_MAX_NAME + 1}}}")


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """`json` reads the calls of models that at times write a JSON list instead."""

    json: JsonInWrapper | None = None

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """None: a call alone is prose."""
        return ()

    def begins(self, cursor: Cursor, at: int, names: frozenset[str]) -> bool | None:
        """A list does whose first item calls a declared tool, or any with an argument by its name."""
        if not names:
            return False
        name, at = _name_at(cursor.text, after_space(cursor.text, at + 1))
        if at == len(cursor.text) and not cursor.final:
            return None
        if not name or not cursor.text.startswith("(", at):
            return False
        if name in names:
            return True
        key, end = _name_at(cursor.text, after_space(cursor.text, at + 1))
        if end == len(cursor.text) and not cursor.final:
            return None
        return cursor.text.startswith("=" if key else ")", end)

    def reader(self, opener: str, closer: str, calls: Calls, bare: bool) -> "PythonReader":
        """A reader for one block. One that a list alone begins ends with the list."""
        return PythonReader(self, opener, "" if bare else closer, calls)


def _name_at(text: str, at: int) -> tuple[str, int]:
    """The name that stands here, empty where it is none or too long, and the index after it."""
    found = _NAME.match(text, at)
    name = found[0] if found else ""
    return name if len(name) <= _MAX_NAME else "", at + len(name)


class PythonReader(BlockReader):
    """Reads one block."""

    def __init__(self, codec: PythonCalls, opener: str, closer: str, calls: Calls) -> None:
        self._codec = codec
        self._opener = opener
        self._closer = closer
        self._calls = calls
        self._listed = False
        self._state = self._begin
        self._calls_read = 0
        self._keys: set[str] = set()
        self._value = PythonText()

    def _next(self, cursor: Cursor) -> str:
        """The next character that is no whitespace, unread; "" if there is none yet."""
        return cursor.text[cursor.pos] if cursor.skip(SPACE) else ""

    def _invalid(self, cursor: Cursor) -> Damage:
        return Damage("invalid_json", cursor.offset, cursor.offset)

    def _begin(self, cursor: Cursor) -> Progress | None:
        sign = self._next(cursor)
        if not sign:
            return "more"
        if sign == "[":
            after = after_space(cursor.text, cursor.pos + 1)
            if after == len(cursor.text) and not cursor.final:
                return "more"
            if self._codec.json is not None and cursor.text.startswith("{", after):
                self._state = self._codec.json.reader(self._opener, self._closer, self._calls, bare=False).step
                return None
            self._listed = True
            cursor.advance(cursor.pos + 1, "markup")
        self._state = self._name
        return None

    def _name(self, cursor: Cursor) -> Progress | None:
        sign = self._next(cursor)
        if not sign:
            return "more"
        if self._listed and sign == "]":
            return self._end_of_list(cursor)
        name, stop = _name_at(cursor.text, cursor.pos)
        if stop == len(cursor.text) and name:
            return "more"
        if not name or not cursor.text.startswith("(", stop):
            return Damage("bad_header" if name else "missing_name", cursor.offset, cursor.offset)
        self._calls.start(name, cursor.offset)
        self._calls_read += 1
        self._keys = set()
        cursor.advance(stop + 1, "markup")
        self._state = self._argument
        return None

    def _argument(self, cursor: Cursor) -> Progress | None:
        """`name=`, or the end of the call."""
        sign = self._next(cursor)
        if not sign:
            return "more"
        if sign == ")":
            return self._end_of_call(cursor)
        key, stop = _name_at(cursor.text, cursor.pos)
        after = after_space(cursor.text, stop)
        if after == len(cursor.text) and key:
            return "more"
        if not key or not cursor.text.startswith("=", after):
            return self._invalid(cursor)
        if key in self._keys:
            self._calls.fail("duplicate_key", cursor.offset, recovered=True)
        self._calls.arguments((", " if self._keys else "{") + f"{quoted(key)}: ")
        self._keys.add(key)
        cursor.advance(after + 1, "markup")
        self._value = PythonText()
        self._state = self._in_value
        return None

    def _in_value(self, cursor: Cursor) -> Progress | None:
        cursor.advance(self._value.scan(cursor.text, cursor.pos), "arguments")
        self._calls.arguments(self._value.take())
        if self._value.repeated:
            self._calls.fail("duplicate_key", cursor.offset, recovered=True)
            return None
        if self._value.failed:
            return self._invalid(cursor)
        if not self._value.done:
            return "more"
        self._state = self._after_value
        return None

    def _after_value(self, cursor: Cursor) -> Progress | None:
        sign = self._next(cursor)
        if not sign:
            return "more"
        if sign == ")":
            return self._end_of_call(cursor)
        if sign != ",":
            return self._invalid(cursor)
        cursor.advance(cursor.pos + 1, "markup")
        self._state = self._argument
        return None

    def _end_of_call(self, cursor: Cursor) -> Progress | None:
        self._calls.arguments("}" if self._keys else "{}")
        cursor.advance(cursor.pos + 1, "markup")
        self._state = self._after_call
        return None

    def _after_call(self, cursor: Cursor) -> Progress | None:
        """A comma and another call, another line with one, or the end."""
        sign = self._next(cursor)
        if not sign and not cursor.final:
            return "more"
        if self._listed and sign == "]":
            return self._end_of_list(cursor)
        if sign == "," or (not self._listed and _name_at(cursor.text, cursor.pos)[0]):
            self._calls.end()
            cursor.advance(cursor.pos + (sign == ","), "markup")
            self._state = self._name
            return None
        if self._listed:
            return "more" if not sign else self._invalid(cursor)
        self._state = self._end_of_block
        return None

    def _end_of_list(self, cursor: Cursor) -> Progress | None:
        if not self._calls_read:
            return Damage("missing_name", self._calls.raw_from, cursor.offset)
        cursor.advance(cursor.pos + 1, "markup")
        self._state = self._end_of_block
        return None

    def _end_of_block(self, cursor: Cursor) -> Progress | None:
        return end_of_block(cursor, self._closer, self._calls)
