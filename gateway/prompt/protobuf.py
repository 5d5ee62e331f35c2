"""Reads the wire format of protocol buffers: just what a SentencePiece model file needs.

Invariant: any bytes give fields or `ModelFileError`. A length is compared with what is left before it is believed.
"""

import struct
from collections.abc import Iterator

from gateway.errors import ModelFileError

Field = int | float | memoryview

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_DAMAGED = "it is cut off or damaged"


def fields(message: memoryview) -> Iterator[tuple[int, Field]]:
    """The numbers and values of a message's fields, in their order: numbers, 32-bit floats, or bytes (text, or a message)."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(message, at)
        if size is None or size > end - at:
            raise ModelFileError(_DAMAGED)
        data = message[at : at + size]
        at += size
        yield tag >> 3, struct.unpack("<f", data)[0] if kind == _FIXED32 else data


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise ModelFileError(_DAMAGED)
