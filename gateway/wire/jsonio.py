"""JSON, bytes to values and back: the only place that imports a JSON library.

Invariant: any bytes give a value or `JsonError`, never another exception. NaN, infinities (but for `decode_python`), lone
surrogates (which `without_lone_surrogates` mends) and nesting beyond the decoder's depth are errors. Key order is kept, of equal
keys the last counts; text is written as UTF-8, unescaped. Parts that a typed decoder skips, or keeps as `Raw`, are checked for
JSON's grammar but not for UTF-8.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
Raw = msgspec.Raw

_TYPES = re.compile("`([^`]*)`")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_ESCAPED, _HIDDEN = rb"\\", b"\\\xff"
_MISSING = re.compile("Object missing required field `(.*)`$")
_WORDS: Mapping[str, str] = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}


class JsonError(ValueError):
    """Not JSON, or not of the expected type. `path` is the place, as `messages[2].content`; empty for the whole.

    A key of a plain object is not named: `logit_bias[]`.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path


class Decoder(Generic[T]):
    """A typed decoder, compiled once."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes | str | memoryview | Raw) -> T:
        """The value. Raises JsonError with the path of the first value of a wrong type."""
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError as error:
            raise _wrong_type(str(error)) from None
        except RecursionError:
            raise JsonError("the JSON is nested too deeply") from None
        except ValueError as error:
            raise JsonError(f"not valid JSON ({error})") from None


_ANY: Decoder[Any] = Decoder(object)
_encode = msgspec.json.Encoder(decimal_format="number").encode


def decode(data: bytes | str | memoryview | Raw) -> Any:
    """Any JSON value as plain Python objects. Raises JsonError."""
    return _ANY.decode(data)


def decode_python(data: bytes) -> Any:
    """As `decode`, and with the NaN, Infinity and -Infinity that Python's own library writes: models' files hold them."""
    if without_lone_surrogates(data) != data:
        raise JsonError("half a character is escaped (a lone surrogate)")
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise JsonError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise JsonError(f"not valid JSON ({error})") from None


def encode(value: object) -> bytes:
    """Compact UTF-8 JSON. The value is one of ours, so that a type that JSON lacks is a bug and raises TypeError."""
    return _encode(value)


def dumps(
    value: object,
    *,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON text spaced as the standard library spaces it, which is what models saw in training. Raises TypeError, ValueError."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def without_lone_surrogates(data: bytes) -> bytes:
    """The JSON with U+FFFD for each escape of half a character, such as a client leaves that cuts a text in mid-emoji.

    Pairs, and what only looks like an escape after an escaped backslash, stay. The data are UTF-8; the work is linear in them.
    """
    hidden = data.replace(_ESCAPED, _HIDDEN)  # no UTF-8 holds this byte: each backslash before a `u` now begins an escape
    return _LONE_SURROGATE.sub(rb"\\ufffd", hidden).replace(_HIDDEN, _ESCAPED)


def _wrong_type(text: str) -> JsonError:
    message, mark, place = text.rpartition(" - at `$")
    if not mark:
        message, place = place, ""
    path = place.removesuffix("`").removeprefix(".").replace("[...]", "[]")
    if missing := _MISSING.match(message):
        return JsonError("this field is required", f"{path}.{missing[1]}" if path else missing[1])
    words = _TYPES.sub(lambda types: " or ".join(_WORDS.get(word, word) for word in types[1].split(" | ")), message)
    return JsonError(words[:1].lower() + words[1:], path)
