"""Where an attempt goes: by table, and what holds of every fleet."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.routing.policy import choose
from gateway.routing.view import EngineView, FleetView


def fleet(**engines: dict[str, Any]) -> FleetView:
    """Engines that are ready, but for what is said of each."""
    return FleetView(tuple(EngineView(**{"id": name, "ready": True, **told}) for name, told in engines.items()))


OUT = {"ejected": True, "failing": 0.5}


@pytest.mark.parametrize(
    ("engines", "chosen", "why"),
    [
        ({}, None, "none"),
        ({"a": {"ready": False}, "b": {"ready": False}}, None, "none"),
        ({"a": {"draining": True}}, None, "none"),
        ({"a": {}}, "a", "only"),
        ({"a": OUT}, "a", "panic"),
        ({"a": {}, "b": {}}, "a", "least_busy"),
        ({"b": {}, "a": {}}, "b", "least_busy"),
        ({"a": {"running": 2}, "b": {"running": 1}}, "b", "least_busy"),
        ({"a": {"running": 3}, "b": {"ready": False}, "c": {"running": 2}, "d": {"running": 2}}, "c", "least_busy"),
        ({"a": {"ready": False}, "b": {"running": 99}}, "b", "least_busy"),
        ({"a": {"draining": True}, "b": {"running": 99}}, "b", "least_busy"),
        ({"a": {"rests_s": 2.0}, "b": {"running": 99}}, "b", "least_busy"),
        # cold
        ({"a": {"share": 0.1}, "b": {"running": 8}}, "b", "least_busy"),
        ({"a": {"share": 0.1}, "b": {"running": 10}}, "a", "least_busy"),
        ({"a": {"share": 0.5, "running": 1}, "b": {"running": 2}}, "b", "least_busy"),
        # full
        ({"a": {"running": 4, "most_running": 4}, "b": {"running": 9}}, "b", "least_busy"),
        ({"a": {"running": 4, "most_running": 4}, "b": {"running": 5, "most_running": 5}}, None, "none"),
        # had no room a moment ago
        ({"a": {"shy": True}, "b": {"running": 99}}, "b", "least_busy"),
        ({"a": {"shy": True}, "b": OUT}, "a", "least_busy"),
        ({"a": {"shy": True, "running": 3}, "b": {"shy": True}}, "b", "least_busy"),
        ({"a": {"shy": True}}, "a", "only"),
        # ejected
        ({"a": OUT, "b": {"running": 99}}, "b", "least_busy"),
        ({"a": OUT, "b": {**OUT, "failing": 0.9}}, "a", "panic"),
        ({"a": {**OUT, "failing": 0.9}, "b": OUT}, "b", "panic"),
        ({"a": OUT, "b": {"ready": False}}, "a", "panic"),
        ({"a": OUT, "b": OUT, "c": {"running": 9}}, "c", "least_busy"),  # what fails at once is always idle
        ({"a": OUT, "b": OUT, "c": {"running": 9, "most_running": 9}}, None, "none"),
        ({"a": OUT, "b": OUT, "c": {"running": 9}, "d": {"running": 8}}, "d", "least_busy"),
        ({"a": OUT, "b": {**OUT, "failing": 0.4}, "c": OUT, "d": {"running": 9}}, "d", "least_busy"),
        # fails, and is still in: idle as it is, it gets no more than its part
        ({"a": {"failing": 0.3}, "b": {}}, "a", "least_busy"),
        ({"a": {"failing": 0.3, "running": 7}, "b": {"running": 9}}, "b", "least_busy"),
        ({"a": {"failing": 0.3, "running": 6}, "b": {"running": 9}}, "a", "least_busy"),
        ({"a": {"failing": 1.0, "running": 1}, "b": {"running": 8}}, "b", "least_busy"),
        ({"a": {"running": 8}, "b": {"running": 8}, "c": {"failing": 1.0}}, "c", "least_busy"),  # one has to see whether it does
        ({"a": OUT, "b": OUT, "c": {**OUT, "failing": 1.0}, "d": {**OUT, "failing": 0.9}}, "a", "panic"),
    ],
)
def test_a_first_attempt(engines: dict[str, dict[str, Any]], chosen: str | None, why: str) -> None:
    view = fleet(**engines)
    decision = choose(view)
    assert (decision.engine, decision.why) == (chosen, why)
    assert decision.considered == view.engines
    assert view.ready is (chosen is not None or decision.full)


@pytest.mark.parametrize(
    ("engines", "avoid", "weights", "chosen", "why"),
    [
        ({"a": {}, "b": {"running": 9}}, "a", None, "b", "elsewhere"),
        ({"a": {}, "b": {}}, "ab", None, None, "none"),
        ({"a": {}}, "a", None, None, "none"),
        # a second try is no place for experiments
        ({"a": {}, "b": {"failing": 0.2}, "c": {"running": 9}}, "a", None, "c", "elsewhere"),
        ({"a": {}, "b": {"failing": 0.19}, "c": {"running": 9}}, "a", None, "b", "elsewhere"),
        ({"a": {}, "b": {"failing": 0.9}}, "a", None, "b", "elsewhere"),
        ({"a": {}, "b": OUT}, "a", None, "b", "panic"),  # better than none
        ({"a": {}, "b": OUT, "c": {"running": 9}}, "a", None, "c", "elsewhere"),
        # an answer that is gone on with stays with its weights
        ({"a": {"weights": "x"}, "b": {"weights": "y"}, "c": {"weights": "x", "running": 9}}, "a", "x", "c", "resume"),
        ({"a": {"weights": "x"}, "b": {"weights": "y"}}, "a", "x", None, "none"),
        ({"a": {"weights": "x"}, "b": {**OUT, "weights": "x"}}, "a", "x", "b", "resume"),
    ],
)
def test_a_further_attempt(
    engines: dict[str, dict[str, Any]], avoid: str, weights: str | None, chosen: str | None, why: str
) -> None:
    decision = choose(fleet(**engines), avoid=avoid, weights=weights)
    assert (decision.engine, decision.why) == (chosen, why)


@pytest.mark.parametrize(
    ("engines", "avoid", "wait_s"),
    [
        ({"a": {"rests_s": 5.0}, "b": {"rests_s": 2.0}}, "", 2.0),
        ({"a": {"rests_s": 5.0}, "b": {"rests_s": 2.0}}, "b", 5.0),
        ({"a": {"rests_s": 5.0}, "b": {"rests_s": 2.0, "ready": False}}, "", 5.0),
        ({"a": {"rests_s": 5.0}, "b": {}}, "b", 5.0),
        ({"a": {"ready": False}}, "", None),
    ],
)
def test_where_all_rest_it_says_when_the_first_is_awake(engines: dict[str, dict[str, Any]], avoid: str, wait_s: float) -> None:
    decision = choose(fleet(**engines), avoid=avoid)
    assert (decision.engine, decision.wait_s) == (None, wait_s)


views = st.builds(
    EngineView,
    id=st.just(""),
    ready=st.booleans(),
    running=st.integers(0, 20),
    draining=st.booleans(),
    ejected=st.booleans(),
    rests_s=st.sampled_from([0.0, 0.0, 3.0]),
    most_running=st.sampled_from([None, 4]),
    share=st.floats(0.1, 1),
    failing=st.floats(0, 1),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(views, max_size=6), st.sets(st.integers(0, 5)))
def test_of_every_fleet(engines: list[EngineView], avoided: set[int]) -> None:
    named = [replace(engine, id="abcdef"[at]) for at, engine in enumerate(engines)]
    avoid = {"abcdef"[at] for at in avoided}
    decision = choose(FleetView(tuple(named)), avoid=avoid)
    fit = [engine for engine in named if engine.ready and not engine.draining and not engine.rests_s and engine.id not in avoid]
    assert (decision.engine is not None or decision.full) is bool(fit), "who can serve is asked or waited for, and nobody else"
    sound = [engine for engine in fit if not engine.ejected]
    if decision.engine is None:
        assert all(engine.full for engine in sound)
        return
    (best,) = [engine for engine in fit if engine.id == decision.engine]
    assert not (best.ejected and sound), "one that serves is always better"
    assert not best.full


BACK = {"ready": False, "returning": True}


@pytest.mark.parametrize(
    ("engines", "avoid", "weights", "returns"),
    [
        ({"a": {}, "b": BACK}, "a", None, True),
        ({"a": {}, "b": {**BACK, "weights": "w"}}, "a", "w", True),
        ({"a": {}, "b": {**BACK, "weights": "v"}}, "a", "w", False),
        ({"a": BACK, "b": {"ready": False}}, "a", None, False),
        ({"a": {}, "b": BACK, "c": {}}, "a", None, False),  # c serves now
        ({"a": {}, "b": BACK, "c": {"rests_s": 9.0}}, "a", None, True),
    ],
)
def test_one_that_may_be_back_at_once_is_told_of_where_there_is_none(
    engines: dict[str, dict[str, Any]], avoid: str, weights: str | None, returns: bool
) -> None:
    assert choose(fleet(**engines), avoid=avoid, weights=weights).returns is returns
