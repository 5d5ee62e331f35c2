"""Rates of few tries, against published values of Wilson's interval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.checks.rate import Rate


@pytest.mark.parametrize(
    ("hits", "tries", "low", "high"),
    [
        (0, 8, 0.0, 0.3244),
        (1, 10, 0.0179, 0.4042),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),  # R. G. Newcombe, 1998, table I
        (15, 148, 0.0624, 0.1605),
    ],
)
def test_wilson(hits: int, tries: int, low: float, high: float) -> None:
    rate = Rate(hits, tries)
    assert rate.value == hits / tries
    assert rate.low == pytest.approx(low, abs=5e-5)
    assert rate.high == pytest.approx(high, abs=5e-5)


def test_without_a_try_nothing_is_known() -> None:
    assert (Rate(0, 0).value, Rate(0, 0).low, Rate(0, 0).high) == (None, 0.0, 1.0)


@given(st.integers(1, 10**6).flatmap(lambda tries: st.tuples(st.integers(0, tries), st.just(tries))))
def test_the_rate_is_in_its_interval(counts: tuple[int, int]) -> None:
    rate = Rate(*counts)
    assert rate.value is not None
    assert 0 <= rate.low <= rate.value + 1e-12
    assert rate.value - 1e-12 <= rate.high <= 1
