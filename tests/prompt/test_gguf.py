import struct
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gguf_writer import Typed, gguf
from support.llamacpp import smollm2_file
from support.vocabulary import tokenizer_fields

from gateway.errors import ModelFileError
from gateway.prompt.gguf import MAX_ITEMS, Value, get, get_list, read_metadata

WHOLE = gguf(
    {
        "general.name": "tést",
        "a.u8": Typed(0, 255),
        "a.i8": Typed(1, -1),
        "a.u16": Typed(2, 65535),
        "a.i16": Typed(3, -2),
        "a.u32": Typed(4, 2**32 - 1),
        "a.i32": Typed(5, -3),
        "a.f32": Typed(6, 0.5),
        "a.bool": True,
        "a.u64": Typed(10, 2**63),
        "a.i64": Typed(11, -(2**62)),
        "a.f64": Typed(12, 0.1),
        "words": ["a", "", "ü"],
        "numbers": [1, -2, 3],
        "flags": Typed(9, [True, False], 7),
        "nested": Typed(9, [Typed(9, ["x"], 8), Typed(9, [], 8)], 9),
        "empty": Typed(9, [], 8),
    },
    {"w": (2, 2)},
)
HEADER = b"GGUF" + struct.pack("<IQ", 3, 0)


def outcome(data: bytes) -> dict[str, Value] | str:
    """The metadata or the refusal; anything else fails the test."""
    try:
        return read_metadata(memoryview(data))
    except ModelFileError as error:
        return str(error)


def one_key(value: bytes, key: bytes = b"k", count: int = 1) -> bytes:
    return HEADER + struct.pack("<QQ", count, len(key)) + key + value


@pytest.mark.parametrize("version", [2, 3])
def test_every_type_is_read(version: int) -> None:
    found = read_metadata(WHOLE[:4] + struct.pack("<I", version) + WHOLE[8:])
    assert found["general.name"] == "tést"
    assert [found[f"a.{kind}"] for kind in ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "u64", "i64", "f64")] == [
        255, -1, 65535, -2, 2**32 - 1, -3, 0.5, True, 2**63, -(2**62), 0.1,
    ]  # fmt: skip
    assert found["words"] == ["a", "", "ü"]
    assert found["numbers"] == [1, -2, 3]
    assert found["flags"] == [True, False]
    assert found["nested"] == [["x"], []]
    assert found["empty"] == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "does not begin with 'GGUF'"),
        (b"GGU", "does not begin with 'GGUF'"),
        (b"GGML" + WHOLE[4:], "does not begin with 'GGUF'"),
        (WHOLE[:6], "cut off or damaged: at byte 4, 'the version' needs 4 bytes"),
        (b"GGUF" + struct.pack("<I", 1) + WHOLE[8:], "its version is 1"),
        (b"GGUF" + struct.pack(">I", 3) + WHOLE[8:], "it is big-endian"),
        (HEADER + struct.pack("<Q", 2**63), "9223372036854775808 keys are declared"),
        (HEADER + struct.pack("<QQ", 1, 70_000), "70000 bytes of 'a key' are declared"),
        (HEADER + struct.pack("<QQ", 1, 9), "'a key' needs 9 bytes"),
        (one_key(struct.pack("<I", 99)), "'k' has the unknown type 99"),
        (one_key(struct.pack("<IQ", 8, 2**60)), "bytes of 'k' are declared"),
        (one_key(struct.pack("<IQ", 8, 2) + b"\xff\xfe"), "'k' is not UTF-8"),
        (one_key(struct.pack("<I", 4), b"\xff"), "'a key' is not UTF-8"),
        (one_key(struct.pack("<IIQ", 9, 4, 2**62)), "items of 'k' are declared"),
        (one_key(struct.pack("<IIQ", 9, 4, MAX_ITEMS)), "'k' needs 16000000 bytes"),
        (one_key(struct.pack("<IIQ", 9, 8, 1000) + bytes(80)), "'k' needs 8000 bytes"),
        (one_key(struct.pack("<IIQQ", 9, 8, 2, 50) + bytes(40)), "'k' needs 50 bytes"),
        (one_key(struct.pack("<IIQQQ", 9, 8, 2, 8, 0)), "'k' needs 8 bytes"),
        (one_key(struct.pack("<IIQ", 9, 77, 1)), "'k' has the unknown type 77"),
        (one_key(struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 6), "nested more than 4 deep"),
        (one_key(struct.pack("<II", 4, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 1), count=2), "'k' twice"),
    ],
)
def test_damage_is_named(data: bytes, says: str) -> None:
    with pytest.raises(ModelFileError, match=says.replace("(", r"\(")):
        read_metadata(data)


@pytest.mark.parametrize("end", range(0, len(gguf({"a": "b", "c": [1, 2]})), 3))
def test_a_file_that_is_cut_off_is_refused_or_whole(end: int) -> None:
    found = outcome(gguf({"a": "b", "c": [1, 2]})[:end])
    assert found == {"a": "b", "c": [1, 2]} or "cut off" in found or "does not begin" in found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=6), st.integers(0, len(WHOLE)))
def test_any_damage_gives_metadata_or_one_kind_of_error(changes: list[tuple[int, int]], end: int) -> None:
    data = bytearray(WHOLE)
    for place, byte in changes:
        data[place] = byte
    assert isinstance(outcome(bytes(data[:end])), dict | str)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_after_the_header(data: bytes) -> None:
    assert isinstance(outcome(HEADER + data), dict | str)


def test_values_are_asked_for_by_type() -> None:
    found = read_metadata(WHOLE)
    assert get(found, "a.u8", int) == 255
    assert get(found, "missing", str) is None
    assert get_list(found, "words", str) == ["a", "", "ü"]
    assert get_list(found, "missing", str) is None
    with pytest.raises(ModelFileError, match="bool holds a bool, not a int"):
        get(found, "a.bool", int)
    with pytest.raises(ModelFileError, match="numbers is not an array of str"):
        get_list(found, "numbers", str)


def test_the_real_file_is_read_in_no_time() -> None:
    began_s = time.process_time()
    found = read_metadata(smollm2_file().read_bytes())
    took_s = time.process_time() - began_s
    tokens, lines = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.merges"]
    assert isinstance(tokens, Sequence)
    assert isinstance(lines, Sequence)
    assert (len(tokens), len(lines)) == (49152, 48900)
    assert found["tokenizer.ggml.eos_token_id"] == 2
    assert took_s < 1.0


def test_our_vocabulary_survives_the_file() -> None:
    fields = tokenizer_fields(template="{{ messages }}")
    assert read_metadata(gguf(fields)) == fields
