"""SentencePiece vocabularies for tests: a small one of our own, the file that holds one, and the real ones of a package."""

import importlib.util
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

Piece = tuple[str, float, int]
BYTES: tuple[Piece, ...] = tuple((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256))
SPECIAL: tuple[Piece, ...] = (("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3))
WORDS = ("▁", "a", "b", "é", "▁a", "ab", "ba", "aba", "▁ab", "bb", "aa", "aaa", "aaaa", "▁é")
SMALL: tuple[Piece, ...] = (*SPECIAL, *BYTES, *((text, -float(rank), 1) for rank, text in enumerate(WORDS)))


def model_file(
    pieces: Sequence[Piece] = SMALL,
    *,
    kind: int = 2,
    prefix: bool = True,
    trims: bool = False,
    charsmap: bytes = b"",
    suffix: bool = False,
) -> bytes:
    """A `tokenizer.model`."""
    out = b"".join(field(1, field(1, text.encode()) + _float(2, score) + _number(3, type_)) for text, score, type_ in pieces)
    trainer = _number(3, kind) + _number(24, suffix)
    normalizer = field(1, b"identity") + field(2, charsmap) + _number(3, prefix) + _number(4, trims)
    return out + field(2, trainer) + field(3, normalizer)


def field(number: int, data: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A number as protocol buffers write it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def _float(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def mistral_file(name: str) -> Path:
    """A real vocabulary. The package itself is not imported."""
    spec = importlib.util.find_spec("mistral_common")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("mistral-common is not installed")
    return Path(spec.submodule_search_locations[0]) / "data" / name
