"""What leaves the process in logs: no secrets, no control characters, no value longer than its limit.

Invariant: whatever values an event holds, `Redactor.line` gives one line of ASCII-safe JSON in which no known secret, no value
under a secret's name and nothing that looks like a credential appears. Secrets go before text is cut, so that none is half shown.
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any
from urllib.parse import quote

from gateway.wire import jsonio

MASK = "[redacted]"
_VALUE_BYTES = 1024
_TRACE_BYTES = 8192  # a traceback says the most at its end
_READ_CHARS = 65_536  # of one text: what is beyond would be cut anyway
_ITEMS = 32
_INT_LIMIT = 2**63  # beyond it a number is written as text
_DEPTH = 2

_SECRET_NAME = re.compile(
    r"authori[sz]ation|cookie|password|passwd|secret|credential|(api|access|private)[-_]?key|(^|[-_])(token|key)$", re.IGNORECASE
)
_SUSPECT = re.compile(r"authorization|cookie|key|token|password|secret|bearer|sk-", re.IGNORECASE)
_IS = r"""["']?\s*[:=,]\s*b?["']?"""  # what stands between a name and its value, in headers, JSON and Python's own notation
_CREDENTIALS = (
    re.compile(rf"""((?:authorization|cookie){_IS})[^\r\n"']+""", re.IGNORECASE),
    re.compile(rf"""((?:(?:api|access|secret|private)[-_]?(?:key|token)|password|secret){_IS})[^\s"',;&}}]+""", re.IGNORECASE),
    re.compile(r"""(\bbearer\s+)[^\s"',;&}]{6,}""", re.IGNORECASE),
    re.compile(r"(\b)sk-[A-Za-z0-9_-]{8,}"),
)
# JSON leaves these as they are, but terminals and line readers act on them.
_ACTIVE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


class Redactor:
    """Knows the secrets of this process: clients' keys and engines' keys."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if secret for form in (secret, quote(secret, safe=""), repr(secret)[1:-1])}
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        if _SUSPECT.search(text):
            for credential in _CREDENTIALS:
                text = credential.sub(rf"\1{MASK}", text)
        return text

    def line(self, event: Mapping[str, Any]) -> str:
        """The event as one line of JSON, without its line end."""
        data = jsonio.encode({self._cut(str(key)): self._clean(str(key), value, 0) for key, value in event.items()})
        return _ACTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", data.decode())

    def _clean(self, name: str, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool):
            return value
        if _SECRET_NAME.search(name):
            return MASK
        if isinstance(value, str):
            return self._cut(value, keep_end=name == "exception")
        if isinstance(value, float):
            return value
        if isinstance(value, int):
            return value if -_INT_LIMIT < value < _INT_LIMIT else self._cut(hex(value))
        if isinstance(value, bytes | bytearray):
            return self._cut(value.decode("utf-8", "replace"))
        if depth < _DEPTH and isinstance(value, Mapping):
            items = list(value.items())[:_ITEMS]
            return {self._cut(str(key)): self._clean(str(key), item, depth + 1) for key, item in items}
        if depth < _DEPTH and isinstance(value, Sequence | Set):
            return [self._clean(name, item, depth + 1) for item in list(value)[:_ITEMS]]
        return self._cut(str(value))

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
