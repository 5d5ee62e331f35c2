import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.formats.codecs.values import converted
from gateway.formats.schema import ALL_KINDS, Types

PYTHON = (("True", "true"), ("None", "null"))


@pytest.mark.parametrize(
    ("text", "kinds", "expected"),
    [
        ('a\n"b\\\x01\ud800', "string", ('"a\\n\\"b\\\\\\u0001\ud800"', True)),
        ("5", "string", ('"5"', True)),
        ("5", "string integer", ("5", True)),
        ("05", "string integer", ('"05"', True)),
        (" 5", "string integer", ('" 5"', True)),
        ("5.5", "string integer", ('"5.5"', True)),
        ("null", "string null", ("null", True)),
        ("None", "string null", ('"None"', True)),
        ('"q"', "string object", ('"\\"q\\""', True)),
        ('{"a": 1}', "string object", ('{"a": 1}', True)),
        (" -5 ", "integer", ("-5", True)),
        ("5.0", "integer number", ("5.0", True)),
        ("5.5", "integer", ("5.5", False)),
        ("1e400", "number", ("1e400", False)),
        ("1" * 400, "integer number", ("1" * 400, True)),
        ("+5", "number", ('"+5"', False)),
        ("NaN", "number", ('"NaN"', False)),
        ("", "integer", ('""', False)),
        ("True", "boolean", ("true", True)),
        ("True", "string boolean", ('"True"', True)),
        ("None", "null integer", ("null", True)),
        ("[1, 'a']", "array", ("\"[1, 'a']\"", False)),
        ('["\\ud800"]', "array", ('["\\ud800"]', False)),
        ('["\ud800"]', "array", ('["\ud800"]', False)),
        ("{}", "array", ("{}", False)),
    ],
)
def test_values(text: str, kinds: str, expected: tuple[str, bool]) -> None:
    assert converted(text, Types(frozenset(kinds.split())), PYTHON) == expected


def test_a_listed_string_is_a_string() -> None:
    assert converted("5", Types(frozenset({"string", "integer"}), frozenset({"5"}))) == ('"5"', True)


@settings(max_examples=200)
@given(
    st.text() | st.sampled_from(["1", "-0", "[", "{}", "true", "1e5"]),
    st.frozensets(st.sampled_from(sorted(ALL_KINDS)), min_size=1),
)
def test_a_value_is_always_json(text: str, kinds: frozenset[str]) -> None:
    written, fits = converted(text, Types(kinds))
    value = json.loads(written)
    if isinstance(value, str) and "string" in kinds:
        assert value == text
    assert fits or "string" not in kinds
