"""Values as nested elements: whatever stands in them reaches the client, in the call or beside it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import formats as run

from gateway.formats.families import minimax_m3
from gateway.request import ParseFailure, ToolSpec

PROGRAM = run.program(minimax_m3.FORMAT)
TAG = f"{minimax_m3.FORMAT.tokens[0]}<"
SCHEMA = {
    "properties": {"o": {"type": "object"}, "n": {"type": ["string", "null"]}, "l": {"type": "array"}, "b": {"type": "boolean"}}
}
TOOLS = (ToolSpec("f", None, SCHEMA),)
PARTS = ["word", " ", "{", *(f"{TAG}{name}>" for name in ("a", "/a", "item", "/item", "/", "/o"))]


def _raw(key: str, inside: str) -> str:
    return f'{TAG}tool_call>{TAG}invoke name="f">{TAG}{key}>{inside}{TAG}/{key}>{TAG}/invoke>{TAG}/tool_call>'


@pytest.mark.parametrize("key", ["o", "n", "l", "b", "unknown"])
def test_the_words_in_a_value_reach_the_client_however_it_is_damaged(key: str) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from(PARTS), max_size=8))
    def check(parts: list[str]) -> None:
        words = [f"w{number}" for number in range(len(parts))]
        raw = _raw(key, "".join(word + part for word, part in zip(words, parts, strict=True)))
        case = run.Case(raw, TOOLS, hold=True)
        deltas, _ = run.accounted(PROGRAM, case, [raw])
        assert run.parse(PROGRAM, case, run.by_characters(raw)) == deltas
        found = run.fold(deltas)
        told = found.content + "".join(arguments for _, arguments in found.calls)
        assert [word for word in words if told.count(word) != 1] == []

    check()


def test_a_repeated_element_is_kept_and_counted_where_it_stands() -> None:
    raw = _raw("o", f"{TAG}a>1{TAG}/a>{TAG}a>{TAG}b>2{TAG}/b>{TAG}b>3{TAG}/b>{TAG}/a>")
    deltas = run.parse(PROGRAM, run.Case(raw, TOOLS))
    ((_, arguments),) = run.fold(deltas).calls
    assert json.loads(arguments, object_pairs_hook=list) == [("o", [("a", 1), ("a", [("b", 2), ("b", 3)])])]
    offsets = [delta.offset for delta in deltas if isinstance(delta, ParseFailure)]
    assert offsets == [raw.index(f"{TAG}a>{TAG}b>"), raw.index(f"{TAG}b>3")]


def test_text_beside_elements_is_counted_where_it_stands() -> None:
    raw = _raw("o", f"one{TAG}a>1{TAG}/a>\n{TAG}a>2{TAG}/a>two")
    failures = [delta for delta in run.parse(PROGRAM, run.Case(raw, TOOLS)) if isinstance(delta, ParseFailure)]
    assert [(failure.kind, failure.offset) for failure in failures] == [
        ("bad_header", raw.index("one")),
        ("bad_header", raw.index("two")),
        ("duplicate_key", raw.rindex(f"{TAG}a>")),
    ]
