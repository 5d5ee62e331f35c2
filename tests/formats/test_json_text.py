import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.formats.codecs.json_text import MAX_DEPTH, JsonText, is_json

PIECES = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", ":", ",", '"', "\\", "u", "0", "1", "12", "-", ".", "e", "E+", "true", "nul", "l", " ", "\n"]
    )
    | st.sampled_from(['"a"', '{"a": 1}', "\\u00e9", "\x02", "\\/", "é", "+", "0", "a"]),
    max_size=12,
).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def _valid(text: str) -> bool:
    def refuse(_: str) -> Any:
        raise ValueError

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return text.strip(" \t\n\r") == text or (text[0] not in " \t\n\r" and text[-1] not in " \t\n\r")


@settings(max_examples=400)
@given(PIECES | VALUES.map(json.dumps) | VALUES.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1)))
def test_what_is_json_is_what_the_reference_says(text: str) -> None:
    assert is_json(text) == _valid(text)


@settings(max_examples=200)
@given(PIECES | VALUES.map(json.dumps), st.lists(st.integers(0, 60), max_size=5))
def test_any_split_stops_at_the_same_character(text: str, cuts: list[int]) -> None:
    def read(pieces: list[str]) -> tuple[int, bool, bool, int]:
        value, read_chars, repeated = JsonText(), 0, 0
        for piece in pieces:
            pos = 0
            while pos < len(piece) and not (value.done or value.failed):
                pos = value.scan(piece, pos)
                repeated += value.repeated
            read_chars += pos
            if value.done or value.failed:
                break
        return read_chars, value.done, value.failed, repeated

    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    whole = read([text])
    assert read([text[start:end] for start, end in itertools.pairwise(edges)]) == whole
    assert read(list(text)) == whole


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ('{"a": 1, "b": 2}', 0),
        ('{"a": 1, "a": 2, "a": 3}', 2),
        ('{"a": {"a": [{"a": 1}, {"a": 2}]}}', 0),
        ('{"\\u0061": 1, "a": 2}', 1),
        ('{"\\ud800": 1, "\\ud800": 2, "\\uD800": 3}', 1),
        ('{"": 1, "": 2}', 1),
        ('{"a\\"b": 1, "a\\"b": 2}', 1),
    ],
)
def test_repeated_keys_are_seen(text: str, repeats: int) -> None:
    value, pos, found = JsonText(), 0, 0
    while not value.done:
        pos = value.scan(text, pos)
        found += value.repeated
    assert (found, pos) == (repeats, len(text))


def test_nesting_has_a_limit() -> None:
    assert is_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert not is_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    assert not is_json('{"a":' * 5000)


def test_a_number_ends_where_something_else_begins() -> None:
    value = JsonText()
    assert value.scan("12 ", 0) == 2
    assert value.done
    assert not is_json("")
    assert not is_json(" 1")
    assert not is_json("1 ")
