"""What of a prompt is for others too."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.choice import Query, Tuning
from gateway.routing.router import Router
from gateway.routing.sharing import lent_units, shared_levels
from gateway.routing.view import EngineView, FleetView

CHAIN = tuple(range(10))


def pins(*depths: int) -> Counter[int]:
    """An engine on which requests run that hold the chain down to these depths."""
    return Counter(key for depth in depths for key in CHAIN[:depth])


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        ([], ()),
        ([pins()], ()),
        ([pins(5)], ()),  # the one that holds it may never come again
        ([pins(5, 5)], ((5, 1 - 2 / 3),)),
        ([pins(5), pins(8)], ((5, 0.0),)),  # each has an engine of its own
        ([pins(3, 3, 3, 3), pins(10, 10)], ((3, 1 - 3 / 7), (10, 1 - 2 / 3))),
        ([pins(1, 2, 3, 4, 5, 6, 7, 8)], ((1, 1 - 2 / 9), (5, 1 - 2 / 5), (7, 1 - 2 / 3))),
    ],
)
def test_levels_are_how_deep_so_many_hold_it(engines: list[Counter[int]], expected: tuple[tuple[int, float], ...]) -> None:
    assert shared_levels(CHAIN, engines) == expected


def test_a_prompt_without_a_whole_chunk_is_nobody_elses() -> None:
    assert shared_levels((), [pins(5, 5)]) == ()


@pytest.mark.parametrize(("matched", "expected"), [(0, 3 * 0.6 + 7 * 0.5), (2, 0.6 + 7 * 0.5), (3, 3.5), (9, 0.5), (10, 0.0)])
def test_lent_is_the_others_part_of_what_is_to_be_made(matched: int, expected: float) -> None:
    assert lent_units(((3, 0.6), (10, 0.5)), matched) == pytest.approx(expected)


@given(st.lists(st.lists(st.integers(0, 10), max_size=12), max_size=4), st.integers(0, 10))
def test_no_more_is_lent_than_others_hold(depths: list[list[int]], matched: int) -> None:
    engines = [pins(*each) for each in depths]
    levels = shared_levels(CHAIN, engines)
    holders = [sum(each[key] for each in engines) for key in CHAIN]
    having = [sum(key in each for each in engines) for key in CHAIN]
    exact = sum(1 - (m + 1) / (n + 1) for n, m in zip(holders[matched:], having[matched:], strict=True))
    assert 0 <= lent_units(levels, matched) <= exact + 1e-9
    assert [depth for depth, _ in levels] == sorted({depth for depth, _ in levels})


def test_a_second_engine_gets_the_prompt_of_many_before_they_wait_as_long_as_it_takes() -> None:
    def costs(holders: int) -> tuple[float, float]:
        router = Router(Tuning(chunk_tokens=128, hold_s=None), chance=_First())
        view = FleetView((EngineView("a", ready=True), EngineView("b", ready=True)))
        alone, system, now_s = FleetView(view.engines[:1]), tuple(range(64)), 0.0
        for number in range(holders):
            choice = router.choose(Query(f"r{number}", (*system, 1000 + number), 65 * 128), alone, now_s)
            now_s += choice.prefill_s
            router.first_token(f"r{number}", now_s)
        router.choose(Query("busy", (*system, *range(500, 520)), 84 * 128), alone, now_s)
        choice = router.choose(Query("new", (*system, 2000), 65 * 128), view, now_s)
        assert choice.forecast is not None
        a, b = (cost for _, cost in choice.forecast.costs)
        assert choice.engine == ("a" if a < b else "b")
        return a, b

    a, b = costs(1)
    assert a < b
    a, b = costs(12)
    assert a > b


class _First:
    def random(self) -> float:
        return 0.0
