"""JSON, bytes to values and back: the only place that imports a JSON library.

Invariant: any bytes give a value or `JsonError`, never another exception. NaN, lone surrogates and nesting beyond the decoder's
depth are errors. Key order is kept; text is written as UTF-8, unescaped.
"""

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
Raw = msgspec.Raw


class JsonError(ValueError):
    """Not JSON, or not of the expected type. `path` is the place, as `messages[2].content`; empty for the whole."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.path = path


class Decoder(Generic[T]):
    """A typed decoder, compiled once."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes | str | memoryview) -> T:
        """The value. Raises JsonError with the path of the first value of a wrong type."""
        try:
            return self._decoder.decode(data)
        except (ValueError, RecursionError) as error:
            raise _translated(error) from None


_ANY: Decoder[Any] = Decoder(object)
_encode = msgspec.json.Encoder(decimal_format="number").encode


def decode(data: bytes | str | memoryview) -> Any:
    """Any JSON value as plain Python objects. Raises JsonError."""
    return _ANY.decode(data)


def encode(value: object) -> bytes:
    """Compact UTF-8 JSON. The value is one of ours, so that a type that JSON lacks is a bug and raises TypeError."""
    return _encode(value)


def _translated(error: Exception) -> JsonError:
    if isinstance(error, RecursionError):
        return JsonError("the JSON is nested too deeply")
    text = str(error)
    message, _, place = text.partition(" - at `")
    path = place.rstrip("`").removeprefix("$").removeprefix(".").replace("[...]", "[]")
    return JsonError(message, path)
