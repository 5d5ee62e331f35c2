"""Text that stands for a value to JSON, once, by the types that it may have.

Invariant: a string goes on as it was written, escaped; another value is JSON where its text is, or where the family spells it so;
what fits none of its types is forwarded as a string and told.
"""

import re
from collections.abc import Mapping

from gateway.formats.codecs.json_text import is_json
from gateway.formats.cursor import SPACE
from gateway.formats.schema import Types
from gateway.wire import jsonio

_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_NAMED: Mapping[str, str] = dict(zip('"\\\n\r\t\b\f', ('\\"', "\\\\", "\\n", "\\r", "\\t", "\\b", "\\f"), strict=True))
_ESCAPES = str.maketrans({chr(code): f"\\u{code:04x}" for code in range(0x20)} | dict(_NAMED))
_LITERAL_STARTS: Mapping[str, str] = {
    "object": "{",
    "array": "[",
    "boolean": "tf",
    "null": "n",
    "integer": "-0123456789",
    "number": "-0123456789",
}
TEXT = Types(frozenset({"string"}))


def quoted(text: str) -> str:
    """A JSON string."""
    return f'"{escaped(text)}"'


def escaped(text: str) -> str:
    """The inside of a JSON string."""
    return text.translate(_ESCAPES) if _ESCAPED.search(text) else text


def surely_text(first: str, types: Types) -> bool:
    """Whether a value that begins with this character can only be a string."""
    return "string" in types.kinds and not any(first in _LITERAL_STARTS.get(kind, "") for kind in types.kinds)


def converted(text: str, types: Types, literals: tuple[tuple[str, str], ...] = ()) -> tuple[str, bool]:
    """A value's text as JSON, and whether it has one of the types. What does not fit is forwarded as it was written."""
    may_be_text = "string" in types.kinds
    if may_be_text and text in types.strings:
        return quoted(text), True
    stripped = text if may_be_text else text.strip(SPACE)
    if not may_be_text:
        stripped = dict(literals).get(stripped, stripped)
    if is_json(stripped) and not (may_be_text and stripped.startswith('"')):
        fits = _decodes_to(stripped, types)
        if fits or not may_be_text:
            return stripped, fits
    return quoted(text), may_be_text


def declared_json(text: str) -> tuple[str, bool]:
    """A value that the model itself declared to be JSON, as it wrote it; a string where it is none."""
    stripped = text.strip(SPACE)
    return (stripped, True) if is_json(stripped) else (quoted(text), False)


def _decodes_to(text: str, types: Types) -> bool:
    """Whether JSON text has one of the types; one with a lone surrogate, or a number beyond all floats, has none."""
    try:
        return types.fits(jsonio.decode(text))
    except jsonio.JsonError:
        return False
