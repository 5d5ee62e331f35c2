import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.text import common_start, held_suffix

letters = st.text("ab", max_size=12)


@pytest.mark.parametrize(
    ("text", "literals", "held"),
    [
        ("", ["abc"], 0),
        ("x", [], 0),
        ("xa", ["abc"], 1),
        ("xab", ["abc"], 2),
        ("xabc", ["abc"], 0),
        ("xabc", ["abc", "bcd"], 2),
        ("ab", ["b", "bb"], 1),
        ("x", ["", "a"], 0),
    ],
)
def test_what_is_held(text: str, literals: list[str], held: int) -> None:
    assert held_suffix(text, literals) == held


@given(letters, st.lists(letters, max_size=4))
def test_exactly_the_longest_possible_beginning_is_held(text: str, literals: list[str]) -> None:
    beginnings = {literal[:size] for literal in literals for size in range(len(literal))}
    assert held_suffix(text, literals) == max((len(start) for start in beginnings if text.endswith(start)), default=0)


@given(st.lists(letters, min_size=1, max_size=4))
def test_all_begin_with_their_common_start_and_with_no_longer_one(texts: list[str]) -> None:
    start = common_start(*texts)
    assert all(text.startswith(start) for text in texts)
    assert start in texts or len({text[len(start)] for text in texts}) > 1
