"""Stop strings: any split of the content gives the same text."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.stop import StopMatcher


def shown(pieces: list[str], stop: tuple[str, ...]) -> tuple[str, str | None]:
    matcher = StopMatcher(stop)
    text = "".join(matcher.feed(piece) for piece in pieces)
    return text + matcher.flush(), matcher.matched


def reference(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """Token by token: the answer ends as soon as it ends with a stop string; of several, the longest."""
    for end in range(1, len(text) + 1):
        hits = [each for each in stop if text[:end].endswith(each)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.text("ab\n", max_size=30),
    st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple),
    st.lists(st.integers(0, 30), max_size=5),
)
@settings(max_examples=300)
def test_any_split_gives_what_a_search_token_by_token_gives(text: str, stop: tuple[str, ...], cuts: list[int]) -> None:
    at = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(at)]
    assert shown(pieces, stop) == reference(text, stop) == shown(list(text), stop)


def test_holds_back_less_than_the_longest_stop_string() -> None:
    matcher = StopMatcher(("Observation:",))
    assert matcher.feed("All done. Observ") == "All done. "
    assert matcher.feed("ed") == "Observed"
    assert matcher.flush() == ""


def test_gives_nothing_after_a_match() -> None:
    matcher = StopMatcher(("X",))
    assert matcher.feed("aXb") == "a"
    assert matcher.feed("c") == ""
    assert matcher.matched == "X"
