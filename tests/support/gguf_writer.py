"""Writes small GGUF files for tests: metadata and, where an engine must load it, tensors of 32-bit floats."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 32


@dataclass(frozen=True)
class Typed:
    """A value with its GGUF type number, where the Python type does not say it."""

    kind: int
    value: int | float | bool | str | Sequence[object]
    item_kind: int | None = None


Field = Typed | int | float | bool | str | Sequence[str] | Sequence[int]
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def gguf(
    fields: Mapping[str, Field],
    tensors: Mapping[str, Sequence[int]] | None = None,
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    ones: frozenset[str] = frozenset(),
) -> bytes:
    """A whole file. `tensors` maps names to shapes (innermost first); they are zeros, or ones where named in `ones`."""
    shapes = tensors or {}
    out = bytearray(magic + struct.pack("<IQQ", version, len(shapes), len(fields)))
    for key, field in fields.items():
        typed = _typed(field)
        out += _string(key) + struct.pack("<I", typed.kind) + _value(typed)
    data = bytearray()
    for name, shape in shapes.items():
        count = 1
        for length in shape:
            count *= length
        out += _string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", 0, len(data))
        data += struct.pack("<f", 1.0 if name in ones else 0.0) * count
        data += bytes(-len(data) % ALIGNMENT)
    out += bytes(-len(out) % ALIGNMENT)
    return bytes(out + data)


def tiny_llama(tokenizer: Mapping[str, Field], vocab: int, width: int = 32) -> bytes:
    """A loadable llama of one block that answers nonsense: real engines tokenise with its vocabulary."""
    fields: dict[str, Field] = {
        "general.architecture": "llama",
        "llama.block_count": Typed(4, 1),
        "llama.context_length": Typed(4, 128),
        "llama.embedding_length": Typed(4, width),
        "llama.feed_forward_length": Typed(4, width),
        "llama.attention.head_count": Typed(4, 1),
        "llama.attention.head_count_kv": Typed(4, 1),
        "llama.attention.layer_norm_rms_epsilon": Typed(6, 1e-5),
        "llama.rope.dimension_count": Typed(4, width),
        "llama.vocab_size": Typed(4, vocab),
    }
    square = (width, width)
    tensors: dict[str, Sequence[int]] = {"token_embd.weight": (width, vocab), "output_norm.weight": (width,)}
    tensors |= {f"blk.0.{name}.weight": (width,) for name in ("attn_norm", "ffn_norm")}
    tensors |= {f"blk.0.attn_{name}.weight": square for name in ("q", "k", "v", "output")}
    tensors |= {f"blk.0.ffn_{name}.weight": square for name in ("gate", "up", "down")}
    return gguf(fields | dict(tokenizer), tensors)


def _typed(field: Field) -> Typed:
    match field:
        case Typed():
            return field
        case bool():
            return Typed(7, field)
        case int():
            return Typed(4, field)
        case float():
            return Typed(6, field)
        case str():
            return Typed(8, field)
    return Typed(9, field, 8 if field and isinstance(field[0], str) else 5)


def _value(typed: Typed) -> bytes:
    if typed.kind == 9 and isinstance(typed.value, Sequence):
        item = typed.item_kind if typed.item_kind is not None else 8
        return struct.pack("<IQ", item, len(typed.value)) + b"".join(_item(item, value) for value in typed.value)
    return _item(typed.kind, typed.value)


def _item(kind: int, value: object) -> bytes:
    if kind == 8:
        return _string(str(value))
    if kind == 9:
        assert isinstance(value, Typed)
        return _value(value)
    return struct.pack("<" + _CODES[kind], value)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data
