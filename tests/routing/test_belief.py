"""What a router tells of itself: what it believes of an engine, and what the engines of a decision would have cost."""

import random
from typing import Any

import pytest

from gateway.routing.chain import token_chain
from gateway.routing.choice import Query, Tuning
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView

CHUNK = 100
KEYS = token_chain(range(20 * CHUNK), CHUNK)
AB = FleetView((EngineView("a", True), EngineView("b", True)))


def router(**told: Any) -> Router:
    return Router(Tuning(**{"chunk_tokens": CHUNK, "hold_s": None, **told}), random.Random(1))


def test_what_is_believed_follows_a_request() -> None:
    our = router()
    our.capacity("a", 50 * CHUNK)
    fresh = our.snapshot("a")
    assert (fresh.index_entries, fresh.pinned_entries, fresh.capacity_tokens, fresh.pending_prefill_s) == (0, 0, 5000, 0)
    assert fresh.prefill_tokens_per_s == pytest.approx(10_000)
    assert fresh.slowness == 1.0
    choice = our.choose(Query("r", KEYS, 2001), FleetView((EngineView("a", True),)), 1.0)
    begun = our.snapshot("a")
    assert (begun.index_entries, begun.pinned_entries) == (20, 20)
    assert begun.pending_prefill_s == pytest.approx(choice.prefill_s, abs=1e-8)
    our.first_token("r", 2.0)
    our.finished("r", 3.0, 10, 0)
    over = our.snapshot("a")
    assert (over.index_entries, over.pinned_entries, over.pending_prefill_s) == (20, 0, 0)
    assert our.snapshot("b").index_entries == 0


def test_an_engine_that_was_seen_slower_is_told_so() -> None:
    our = router()
    for number in range(400):
        keys = token_chain(range(number * 10_000, number * 10_000 + 2000), CHUNK)
        choice = our.choose(Query(f"r{number}", keys, 2001), AB, number * 10.0)
        our.first_token(f"r{number}", number * 10.0 + (2.0 if choice.engine == "a" else 0.5))
        our.finished(f"r{number}", number * 10.0 + 3.0, 10, 0)
    slow, quick = our.snapshot("a"), our.snapshot("b")
    assert slow.slowness > 1.3 * quick.slowness
    assert slow.prefill_tokens_per_s * slow.slowness == pytest.approx(quick.prefill_tokens_per_s * quick.slowness)


def test_a_decision_tells_what_each_engine_would_have_cost() -> None:
    our = router()
    first = our.choose(Query("r", KEYS, 2001), AB, 1.0)
    assert first.engine is not None
    our.first_token("r", 1.2)
    our.finished("r", 1.5, 10, 0)
    again = our.choose(Query("s", KEYS, 2001), AB, 2.0)
    assert (again.engine, again.forecast is not None) == (first.engine, True)
    assert again.forecast is not None
    costs = dict(again.forecast.costs)
    assert set(costs) == {"a", "b"}
    assert costs[first.engine] == min(costs.values()) == pytest.approx(again.forecast.terms.total_s)
    assert again.forecast.unit_tokens == CHUNK


@pytest.mark.parametrize("policy", ["round_robin", "least_outstanding", "session"])
def test_what_was_not_compared_has_no_cost(policy: str) -> None:
    choice = router(policy=policy).choose(Query("r", KEYS, 2001, affinity="s"), AB, 1.0)
    assert choice.forecast is not None
    assert choice.forecast.costs == ()


def test_of_many_engines_the_cheapest_are_told_and_the_one_that_was_chosen() -> None:
    many = FleetView(tuple(EngineView(f"e{number}", True) for number in range(40)))
    our = router()
    for number in range(41):
        choice = our.choose(Query(f"r{number}", token_chain(range(number * 5000, number * 5000 + 2000), CHUNK), 2001), many, 1.0)
        assert choice.forecast is not None
        names = [name for name, _ in choice.forecast.costs]
        assert choice.engine in names
        assert len(set(names)) == len(names) <= 16
