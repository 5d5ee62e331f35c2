"""Reads the metadata of a GGUF file (versions 2 and 3, little-endian) from a buffer.

Invariant: any bytes give the metadata or `ModelFileError`, never another exception; and no length in the file is believed before
it is compared with what is left of the buffer, so that memory is bounded by the file's own size and the caps below.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gateway.errors import ModelFileError, shown

T = TypeVar("T")
Value = int | float | bool | str | list[Any]
Metadata = Mapping[str, Value]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 65_536
MAX_KEY_BYTES = 65_535
MAX_STRING_BYTES = 16 * 1024 * 1024
MAX_ITEMS = 4_000_000
MAX_NESTING = 4

_STRING = 8
_ARRAY = 9
_BOOL = 7
# type number -> (struct code, size in bytes)
_NUMBERS: Mapping[int, tuple[str, int]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    _BOOL: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
_LENGTH = struct.Struct("<Q")


def read_metadata(buffer: bytes | bytearray | memoryview) -> dict[str, Value]:
    """The key-value pairs at the head of a GGUF file. Raises ModelFileError. The tensors are not looked at."""
    return read_head(buffer)[0]


def read_head(buffer: bytes | bytearray | memoryview) -> tuple[dict[str, Value], int]:
    """As `read_metadata`, with the number of bytes that they take, from the file's beginning on."""
    with memoryview(buffer) as whole, whole.cast("B") as view:
        reader = _Reader(view)
        return reader.metadata(), reader.at


def get(metadata: Metadata, key: str, kind: type[T]) -> T | None:
    """The value of a key, None where the file has none. Raises ModelFileError where it is not of this type."""
    value = metadata.get(key)
    if value is None or type(value) is kind:
        return value
    raise ModelFileError(f"The GGUF key {key} holds a {type(value).__name__}, not a {kind.__name__}.")


def get_list(metadata: Metadata, key: str, kind: type[T]) -> list[T] | None:
    """The array of a key, None where the file has none. Raises ModelFileError where it is not an array of this type."""
    values = get(metadata, key, list)
    if values is not None and any(type(value) is not kind for value in values):
        raise ModelFileError(f"The GGUF key {key} is not an array of {kind.__name__}.")
    return values


class _Reader:
    """A position in the buffer. Every read checks what is left first."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._size = len(view)
        self.at = 0
        self._items_left = MAX_ITEMS

    def metadata(self) -> dict[str, Value]:
        self._header()
        count = self._length("keys", MAX_KEYS)
        found: dict[str, Value] = {}
        for _ in range(count):
            key = self._string("a key", MAX_KEY_BYTES)
            if key in found:
                raise ModelFileError(f"The GGUF file has the key {shown(key)} twice.")
            found[key] = self._value(self._number("I", 4, key), key, 0)
        return found

    def _header(self) -> None:
        if self._size < 4 or self._view[:4] != MAGIC:
            raise ModelFileError("This is not a GGUF file: it does not begin with 'GGUF'.")
        self.at = 4
        version = self._number("I", 4, "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            reason = "it is big-endian" if swapped in VERSIONS else f"its version is {version}"
            raise ModelFileError(f"This GGUF file cannot be read: {reason}; versions 2 and 3, little-endian, are known.")
        self._number("Q", 8, "the number of tensors")

    def _need(self, size: int, what: str) -> None:
        if size > self._size - self.at:
            raise ModelFileError(f"The GGUF file is cut off or damaged: at byte {self.at}, {shown(what)} needs {size} bytes.")

    def _number(self, code: str, size: int, what: str) -> Any:
        self._need(size, what)
        (value,) = struct.unpack_from("<" + code, self._view, self.at)
        self.at += size
        return value

    def _length(self, what: str, limit: int) -> int:
        value: int = self._number("Q", 8, what)
        if value > limit:
            raise ModelFileError(f"The GGUF file is damaged: {value} {what} are declared, the limit is {limit}.")
        return value

    def _string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        size = self._length(f"bytes of {shown(what)}", limit)
        self._need(size, what)
        begin, self.at = self.at, self.at + size
        return self._text(begin, self.at, what)

    def _text(self, begin: int, end: int, what: str) -> str:
        try:
            return str(self._view[begin:end], "utf-8")
        except UnicodeDecodeError:
            raise ModelFileError(f"The GGUF file is damaged: {shown(what)} is not UTF-8 at byte {begin}.") from None

    def _value(self, kind: int, key: str, depth: int) -> Value:
        if kind == _STRING:
            return self._string(key)
        if kind == _ARRAY:
            return self._array(key, depth + 1)
        value: Value = self._number(*self._kind(kind, key), key)
        return value

    def _kind(self, kind: int, key: str) -> tuple[str, int]:
        known = _NUMBERS.get(kind)
        if known is None:
            raise ModelFileError(f"The GGUF key {shown(key)} has the unknown type {kind}.")
        return known

    def _array(self, key: str, depth: int) -> list[Any]:
        if depth > MAX_NESTING:
            raise ModelFileError(f"The GGUF key {shown(key)} is an array nested more than {MAX_NESTING} deep.")
        kind: int = self._number("I", 4, key)
        count = self._length(f"items of {shown(key)}", self._items_left)
        self._items_left -= count
        if kind == _STRING:
            return self._strings(count, key)
        if kind == _ARRAY:
            self._need(count * 12, key)
            return [self._array(key, depth + 1) for _ in range(count)]
        code, size = self._kind(kind, key)
        self._need(count * size, key)
        values = list(struct.unpack_from(f"<{count}{code}", self._view, self.at))
        self.at += count * size
        return values

    def _strings(self, count: int, key: str) -> list[str]:
        """A vocabulary has hundreds of thousands of strings, so that this loop is written flat."""
        self._need(count * 8, key)
        view, size, at = self._view, self._size, self.at
        unpack: Callable[..., tuple[int]] = _LENGTH.unpack_from
        strings: list[str] = []
        for _ in range(count):
            if size - at < 8:
                self.at = at
                self._need(8, key)
            begin = at + 8
            at = begin + unpack(view, at)[0]
            if at > size:
                self.at = begin
                self._need(at - begin, key)
            strings.append(self._text(begin, at, key))
        self.at = at
        return strings
