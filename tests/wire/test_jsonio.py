import json
import math
import time
from contextlib import suppress
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire import jsonio
from gateway.wire.jsonio import Decoder, JsonError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


class Inner(msgspec.Struct):
    name: str


class Outer(msgspec.Struct):
    items: list[Inner]
    named: dict[str, Inner] | None = None
    word: Literal["a", "b"] = "a"
    either: str | list[int] | None = None
    flag: bool = False
    number: float = 0.0


outer = Decoder(Outer)


def standard(data: bytes) -> tuple[bool, Any]:
    """Whether the standard library takes these bytes as UTF-8 JSON, and what it reads."""
    try:
        return True, json.loads(data.decode())
    except (ValueError, RecursionError):
        return False, None


def check_against_standard(data: bytes) -> None:
    try:
        value = jsonio.decode(data)
    except JsonError:
        return
    taken, expected = standard(data)
    assert taken, "the standard library refuses it"
    assert value == expected
    assert json.dumps(value) == json.dumps(expected), "types and key order too"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_the_own_error(data: bytes) -> None:
    with suppress(JsonError):
        jsonio.decode_python(data)
    check_against_standard(data)


@settings(max_examples=200, deadline=None)
@given(values, st.booleans(), st.integers(min_value=0), st.binary(max_size=3))
def test_damaged_json_gives_a_value_or_the_own_error(value: Any, ascii_only: bool, place: int, patch: bytes) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    at = place % (len(data) + 1)
    check_against_standard(data[:at] + patch + data[at + 1 :])


@settings(max_examples=200, deadline=None)
@given(values)
def test_values_survive_and_are_written_as_the_standard_library_reads_them(value: Any) -> None:
    data = jsonio.encode(value)
    assert json.loads(data) == value
    assert jsonio.decode(data) == value
    assert jsonio.decode(data.decode()) == value
    assert b"\n" not in data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"nul",
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b"1" + b"0" * 5000,
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b'"\\ud800"',
        b'"\\udc00 and more text"',
        b'"a\x00b"',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 5000 + b"]" * 5000,
        b"[1,]",
        b"{} {}",
        b"01",
    ],
)
def test_what_is_not_json(data: bytes) -> None:
    with pytest.raises(JsonError) as caught:
        jsonio.decode(data)
    assert caught.value.path == ""
    assert caught.value.message.startswith(
        ("not valid JSON (", "the JSON is nested too deeply", "number out of", "integer value out of")
    )


def test_what_python_writes_beyond_json_is_read_where_it_is_asked_for() -> None:
    limits, number = jsonio.decode_python(b'{"limits": [0.0, Infinity, -Infinity], "number": NaN}').values()
    assert limits == [0.0, math.inf, -math.inf]
    assert math.isnan(number)
    assert jsonio.decode_python('"é \\ud83d\\ude00"'.encode()) == "é 😀"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"infinity",
        b"[" * 100_000,
        b'"\xff"',
        rb'"\ud800"',
        rb'"\ude00"',
        b"9" * 5_000,
        b"\xef\xbb\xbf{}",
        b"{}".join([b"\0"] * 2),
    ],
)
def test_what_python_does_not_write_is_no_json_there_either(data: bytes) -> None:
    with pytest.raises(JsonError):
        jsonio.decode_python(data)


def test_order_is_kept_and_the_last_of_equal_keys_counts() -> None:
    value = jsonio.decode(b'{"b":1,"a":2,"b":3}')
    assert list(value.items()) == [("b", 3), ("a", 2)]


def test_text_is_written_unescaped() -> None:
    assert jsonio.encode({"a": "é\u2028😀\n"}) == '{"a":"é\u2028😀\\n"}'.encode()


def test_what_json_lacks_is_a_bug() -> None:
    with pytest.raises(TypeError):
        jsonio.encode(object())


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        (b"[]", "", "expected an object, got an array"),
        (b"{}", "items", "this field is required"),
        (b'{"items":[{"name":"a"},{}]}', "items[1].name", "this field is required"),
        (b'{"items":[{"name":"a"},{"name":1}]}', "items[1].name", "expected a string, got an integer"),
        (b'{"items":[],"named":{"x":{"name":null}}}', "named[].name", "expected a string, got null"),
        (b'{"items":[],"word":"c"}', "word", "invalid enum value 'c'"),
        (b'{"items":[],"word":"c - at `$.items[3]`"}', "word", "invalid enum value 'c - at $.items[3]'"),
        (b'{"items":[],"either":{}}', "either", "expected a string or an array or null, got an object"),
        (b'{"items":[],"either":[1,true]}', "either[1]", "expected an integer, got a boolean"),
        (b'{"items":[],"flag":1}', "flag", "expected a boolean, got an integer"),
        (b'{"items":[],"number":"1"}', "number", "expected a number, got a string"),
        (b'{"items":[],"number":1e999}', "number", "number out of range"),
    ],
)
def test_a_wrong_type_is_named_with_its_place(data: bytes, path: str, message: str) -> None:
    with pytest.raises(JsonError) as caught:
        outer.decode(data)
    assert caught.value.path == path
    assert caught.value.message == message


def test_a_typed_value_is_read() -> None:
    read = outer.decode(b'{"items":[{"name":"a"}],"number":1,"unknown":[{}]}')
    assert read == Outer([Inner("a")], number=1.0)
    assert math.isclose(read.number, 1.0)


def test_raw_parts_are_kept_byte_for_byte() -> None:
    parts = Decoder(dict[str, jsonio.Raw]).decode(b'{ "a" : [1.0, 2e1],"b":"\\u00e9"}')
    assert {name: bytes(part) for name, part in parts.items()} == {"a": b"[1.0, 2e1]", "b": b'"\\u00e9"'}
    assert jsonio.encode(parts) == b'{"a":[1.0, 2e1],"b":"\\u00e9"}'
    assert jsonio.decode(parts["a"]) == [1.0, 20.0]


@given(values)
def test_text_is_spaced_as_the_standard_library_spaces_it(value: Any) -> None:
    assert jsonio.dumps(value) == json.dumps(value, ensure_ascii=False)
    options: dict[str, Any] = {"ensure_ascii": True, "indent": 2, "separators": (",", ": "), "sort_keys": True}
    assert jsonio.dumps(value, **options) == json.dumps(value, **options)


@pytest.mark.parametrize(
    ("data", "mended"),
    [
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\uDE00x"', rb'"\ufffdx"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\ud83d\ud83d\ude00\ude00"', rb'"\ufffd\ud83d\ude00\ufffd"'),
        (rb'"\ude00\ud83d"', rb'"\ufffd\ufffd"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\\ud83d\ude00"', rb'"\\ud83d\ufffd"'),
        (rb'"\ud83d\\ude00"', rb'"\ufffd\\ude00"'),
        (rb'"\ud83d\n"', rb'"\ufffd\n"'),
        (rb'"\ud8zz\u0041\ud7ff\ue000"', rb'"\ud8zz\u0041\ud7ff\ue000"'),
        ('"\U0001f600é"'.encode(), '"\U0001f600é"'.encode()),
        (b"\\", b"\\"),
    ],
)
def test_lone_surrogates_are_replaced(data: bytes, mended: bytes) -> None:
    assert jsonio.without_lone_surrogates(data) == mended


pieces = st.sampled_from(["\\", "\\\\", "\\ud83d", "\\ude00", "\\uDBFF", "\\u0041", "ud83d", "\\n", "é", "d", "\\u"])


@settings(max_examples=200, deadline=None)
@given(st.lists(pieces, max_size=12).map("".join))
def test_json_without_lone_surrogates_is_the_standard_librarys_with_replacements(text: str) -> None:
    data = f'"{text}"'.encode()
    taken, value = standard(data)
    mended = jsonio.without_lone_surrogates(data)
    if not taken:
        assert mended == data or not standard(mended)[0]
        return
    assert jsonio.decode(mended) == value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@pytest.mark.parametrize("unit", [rb"\ud83d", rb"a\ude00", b"\\", rb"\ud83d\ude00", rb"\ud8zz", b"abc"])
def test_lone_surrogates_cost_time_in_proportion(unit: bytes) -> None:
    def cost_s(count: int) -> float:
        data = unit * count
        began_s = time.process_time()
        jsonio.without_lone_surrogates(data)
        return time.process_time() - began_s

    short, long = min(cost_s(50_000) for _ in range(3)), min(cost_s(400_000) for _ in range(3))
    assert long < 32 * short + 0.05, "eight times the data"
