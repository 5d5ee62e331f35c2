"""The end of what a model wrote, and the faults found in it."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.excerpt import CONTEXT_CHARS, MOST_FAULTS, Tail
from gateway.request import Fault, ParseFailure


def failure(offset: int) -> ParseFailure:
    return ParseFailure("invalid_json", None, offset, recovered=False)


def test_a_fault_is_kept_with_the_text_on_both_sides() -> None:
    tail = Tail()
    for piece in ("Well. ", "<tool_call>", "{bad", "} and"):
        tail.add(piece)
    tail.found(failure(17))
    assert tail.faults == [Fault("invalid_json", 17, False, "Well. <tool_call>{bad} and", 17, False)]


def test_one_without_a_place_is_of_the_end() -> None:
    tail = Tail()
    tail.add("all of it")
    tail.found(failure(0), placed=False)
    (fault,) = tail.faults
    assert (fault.offset, fault.at, fault.text) == (None, 9, "all of it")


def test_one_whose_place_is_gone_is_of_the_end_too() -> None:
    tail = Tail()
    for _ in range(1000):
        tail.add("x")
    tail.found(failure(3))
    (fault,) = tail.faults
    assert (fault.offset, fault.at, len(fault.text), fault.cut) == (3, 256, 256, True)


@given(st.lists(st.text(max_size=30) | st.just("y" * 5000), max_size=400), st.lists(st.integers(0, 20_000), max_size=8))
def test_little_is_kept_whatever_comes(pieces: list[str], offsets: list[int]) -> None:
    tail, text = Tail(), "".join(pieces)
    for piece in pieces:
        tail.add(piece)
    for offset in offsets:
        tail.found(failure(offset))
    assert len(tail.faults) == min(len(offsets), MOST_FAULTS)
    for fault in tail.faults:
        assert len(fault.text) <= 2 * CONTEXT_CHARS
        assert 0 <= fault.at <= len(fault.text)
        assert fault.text in text or "y" * 5000 in text
