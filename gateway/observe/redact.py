"""What leaves the process in logs: no secrets, no control characters, no value longer than its limit.

Invariant: whatever values an event holds, `Redactor.line` gives one line of ASCII-safe JSON in which no known secret, no value
under a secret's name and nothing that looks like a credential appears. Secrets go before text is cut, so that none is half shown.
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import quote

from gateway.observe.credentials import MASK, SUSPECT, masked
from gateway.wire import jsonio
from gateway.wire.text import held_suffix

_VALUE_BYTES = 1024
_TRACE_BYTES = 8192  # a traceback says the most at its end
_READ_CHARS = 65_536  # of one text: what is beyond would be cut anyway
_ITEMS = 32
_WORD_CHARS = 64
_HALF_CHARS = 4  # of a secret's beginning: less tells nothing
_REMEMBERED = 512  # names and words as short as these recur; their cleaned form is kept
_INT_LIMIT = 2**63  # beyond it a number is written as text
_DEPTH = 2

_SECRET_NAME = re.compile(
    r"authori[sz]ation|cookie|passw(or)?d|^pwd$|passphrase|secret|credential|(api|access|private)[-_]?key|(^|[-_])(token|key)$",
    re.IGNORECASE,
)
# JSON leaves these as they are, but terminals and line readers act on them.
_ACTIVE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

_PLAIN = frozenset({type(None), bool, float})  # written as they are


class Redactor:
    """Knows the secrets of this process: clients' keys and engines' keys."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: frozenset[str] = frozenset()
        self._learn(frozenset(secrets))

    def hide(self, secret: str) -> None:
        """One more, which may be known already."""
        if secret not in self._secrets:
            self._learn(self._secrets | {secret})

    def _learn(self, secrets: frozenset[str]) -> None:
        self._secrets = secrets
        forms = {form for secret in secrets if secret for form in (secret, quote(secret, safe=""), repr(secret)[1:-1])}
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None
        self._suspect = re.compile("|".join([SUSPECT, *(re.escape(form.lower()) for form in longest_first)]))
        self._names = lru_cache(_REMEMBERED)(self._read_names)
        self._name = lru_cache(_REMEMBERED)(self._read_name)
        self._word = lru_cache(_REMEMBERED)(self._cut)

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return masked(text)

    def unfinished(self, text: str) -> str:
        """As `text`, for one that was cut at its end, or goes on: the beginning of a known secret at its end goes too."""
        half = held_suffix(text, self._secrets)
        return self.text(text[:-half]) + MASK if half >= _HALF_CHARS else self.text(text)

    def line(self, event: Mapping[str, Any]) -> str:
        """The event as one line of JSON, without its line end."""
        if self._as_it_is(event):
            return jsonio.encode(event).decode()
        line = jsonio.encode(self._mapping(event, 0)).decode()
        return _ACTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", line)

    def _as_it_is(self, event: Mapping[str, Any]) -> bool:
        """Whether nothing in it needs cleaning: the usual record, told by one look at all its texts together."""
        if not self._names(tuple(event)):
            return False
        texts = []
        for value in event.values():
            kind = type(value)
            if kind is str:
                texts.append(value)
            elif kind is int:
                if not -_INT_LIMIT < value < _INT_LIMIT:
                    return False
            elif kind is tuple and len(value) <= _ITEMS and all(type(item) is str for item in value):
                texts += value
            elif kind not in _PLAIN and not (kind is dict and not value):
                return False
        return self._harmless(" ".join(texts))

    def _harmless(self, text: str) -> bool:
        if len(text) > _VALUE_BYTES or not (text.isascii() and text.isprintable()):
            return False
        return self._suspect.search(text.lower()) is None

    def _read_names(self, names: tuple[str, ...]) -> bool:
        return all(self._read_name(name) == (name, False) and name.isascii() and name.isprintable() for name in names)

    def _mapping(self, mapping: Mapping[Any, Any], depth: int) -> dict[str, object]:
        cleaned: dict[str, object] = {}
        for key, value in mapping.items():
            text = str(key)
            name, secret = self._name(text) if len(text) <= _WORD_CHARS else self._read_name(text)
            if secret and value is not None and type(value) is not bool:
                cleaned[name] = MASK
            else:
                cleaned[name] = value if type(value) in _PLAIN else self._clean(name, value, depth)
        return cleaned

    def _clean(self, name: str, value: object, depth: int) -> object:
        if isinstance(value, str):
            return self._word(value) if len(value) <= _WORD_CHARS else self._cut(value, keep_end=name == "exception")
        if value is None or isinstance(value, float):
            return value
        if isinstance(value, int):
            return value if -_INT_LIMIT < value < _INT_LIMIT else self._cut(hex(value))
        if isinstance(value, bytes | bytearray):
            return self._cut(value.decode("utf-8", "replace"))
        if depth < _DEPTH and isinstance(value, Mapping):
            return self._mapping(dict(islice(value.items(), _ITEMS)), depth + 1)
        if depth < _DEPTH and isinstance(value, Sequence | Set):
            return [self._clean(name, item, depth + 1) for item in islice(value, _ITEMS)]
        return self._cut(str(value))

    def _read_name(self, name: str) -> tuple[str, bool]:
        return self._cut(name), _SECRET_NAME.search(name) is not None

    def _cut(self, text: str, keep_end: bool = False) -> str:
        if len(text) > _READ_CHARS:
            text = text[-_READ_CHARS:] if keep_end else text[:_READ_CHARS]
        data = self.text(text).encode("utf-8", "backslashreplace")
        limit = _TRACE_BYTES if keep_end else _VALUE_BYTES
        if len(data) <= limit:
            return data.decode()
        if keep_end:
            return "…" + data[3 - limit :].decode("utf-8", "ignore")
        return data[: limit - 3].decode("utf-8", "ignore") + "…"
