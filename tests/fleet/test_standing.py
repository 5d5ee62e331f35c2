"""What probes and traffic say of one engine together, and that each attempt counts once."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.wiring import fleet
from yarl import URL

from engines.base import EngineInfo, EngineLoad
from gateway.errors import (
    AnswerRefused,
    BadRequest,
    ClientStalled,
    Draining,
    EngineBroke,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    GatewayError,
    TimeoutStage,
)
from gateway.fleet.registry import Registry
from gateway.fleet.standing import MOST_REST_S, StandingRules
from gateway.routing.breaker import BreakerRules
from gateway.routing.view import EngineView


class Clock:
    """A clock that goes when it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def made(*ids: str) -> tuple[Registry, Clock]:
    """Engines that are ready."""
    clock = Clock()
    registry = Registry(fleet(*ids).members.values(), StandingRules(BreakerRules()), clock)
    for name in ids:
        registry.set_ready(name, True)
    return registry, clock


def seen(registry: Registry, name: str = "a") -> EngineView:
    return next(engine for engine in registry.view("m").engines if engine.id == name)


def refused(status: int, wait_s: float | None = None, *, oom: bool = False) -> EngineRefused:
    error = EngineRefused("no", status=status)
    error.wait_s = wait_s
    error.out_of_memory = oom
    return error


def times_out(stage: TimeoutStage) -> GatewayError:
    return EngineTimeout(stage, 1.0)


@pytest.mark.parametrize(
    ("error", "counted", "ready"),
    [
        (refused(500), 1, True),
        (refused(500, oom=True), 1, True),
        (refused(502), 1, True),
        (refused(503), 1, True),
        (EngineBroke("x"), 1, True),
        (times_out("headers"), 1, True),
        (times_out("first_token"), 1, True),
        (times_out("between_tokens"), 1, True),
        (times_out("connect"), 1, True),
        (EngineGone("x"), 1, False),
        (EngineUnreachable("x"), 1, False),
        (times_out("total"), 0, True),
        (refused(503, 2.0), 0, True),
        (refused(429, 2.0), 0, True),
        (refused(429), 0, True),
        *((refused(status), 0, True) for status in (400, 401, 404, 408, 413, 422)),
        (BadRequest("x"), 0, True),
        (AnswerRefused("x", kind="unknown_tool"), 0, True),
        (ClientStalled("x"), 0, True),
        (Draining("x"), 0, True),
    ],
    ids=str,
)
def test_an_outcome_is_one_count_or_none(error: GatewayError, counted: int, ready: bool) -> None:
    registry, _ = made("a")
    visit = registry.visit("a")
    for _ in range(3):  # told more than once
        visit.failed(error)
    visit.over()
    visit.served()
    breaker = registry.standing("a").breaker
    assert sum(breaker._last) == len(breaker._last) == counted
    assert registry.is_ready("a") is ready
    assert registry.losses("a") == (0 if ready else 1)


def test_those_that_wait_for_an_engine_are_told_that_it_is_gone() -> None:
    registry, clock = made("a", "b")
    told: list[float] = []
    visits = [registry.visit("a", told.append), registry.visit("b", lambda _: pytest.fail("it is well"))]
    registry.give_up("a", 5.0)
    assert told == [5.0]
    visits[0].heard()
    clock.now_s += 4.9
    registry.give_up("a", 5.0)  # it generated a moment ago
    assert told == [5.0]
    clock.now_s += 0.2
    registry.give_up("a", 5.0)
    assert told == [5.0, 5.0]
    for visit in visits:
        visit.over()
    registry.give_up("a", 5.0)
    registry.give_up("gone", 5.0)
    assert told == [5.0, 5.0]


def test_a_client_that_leaves_and_a_bug_of_ours_count_nothing() -> None:
    registry, _ = made("a")
    registry.visit("a").over()
    assert len(registry.standing("a").breaker._last) == 0


@pytest.mark.parametrize(("wait_s", "rests_s"), [(2.0, 2.0), (0.0, 0.0), (600.0, MOST_REST_S)])
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_engine_rests_as_long_as_it_says_but_not_for_ever(status: int, wait_s: float, rests_s: float) -> None:
    registry, clock = made("a", "b")
    registry.visit("a").failed(refused(status, wait_s))
    assert seen(registry).rests_s == rests_s
    registry.visit("a").failed(refused(status, wait_s / 2))  # a shorter word does not wake it
    assert seen(registry).rests_s == rests_s
    clock.now_s += rests_s
    assert seen(registry).rests_s == 0
    assert seen(registry, "b").rests_s == 0


@pytest.mark.parametrize("status", [400, 500])
def test_only_a_busy_engine_rests(status: int) -> None:
    registry, _ = made("a")
    registry.visit("a").failed(refused(status, 5.0))
    assert seen(registry).rests_s == 0


def test_a_good_probe_does_not_close_a_breaker() -> None:
    registry, clock = made("a")
    for _ in range(5):
        registry.visit("a").failed(refused(500))
    for _ in range(20):
        clock.now_s += 0.49
        registry.set_ready("a", True)
        assert (seen(registry).ready, seen(registry).ejected) == (True, True)
    clock.now_s += 0.21
    assert registry.breaker_state("a") == "half_open"


def test_two_connections_that_time_out_take_an_engine_out() -> None:
    registry, _ = made("a")
    registry.visit("a").failed(times_out("connect"))
    assert not seen(registry).ejected
    registry.visit("a").failed(times_out("connect"))
    assert seen(registry).ejected


def lost(registry: Registry) -> None:
    registry.visit("a").failed(EngineGone("x"))


def unreachable(registry: Registry) -> None:
    registry.set_ready("a", False, "unreachable")


def unhealthy(registry: Registry) -> None:
    registry.set_ready("a", False, "unhealthy")


def well(registry: Registry) -> None:
    registry.set_ready("a", True)


def mismatched(registry: Registry) -> None:
    registry.set_ready("a", False, "tokenizer_mismatch")


@pytest.mark.parametrize(
    ("steps", "cold"),
    [
        ([lost], False),  # one connection broke, and the next probe is well
        ([lost, unreachable], True),
        ([lost, unhealthy, unhealthy], True),
        ([unreachable], True),
        ([unreachable, mismatched], True),
        ([mismatched], False),
    ],
)
def test_an_engine_that_a_probe_found_away_comes_back_cold(steps: list[Callable[[Registry], None]], cold: bool) -> None:
    registry, clock = made("a")
    for step in steps:
        step(registry)
        assert not registry.is_ready("a")
    registry.set_ready("a", True)
    shares = []
    for _ in range(7):
        shares.append(round(seen(registry).share, 3))
        clock.now_s += 5
    assert shares == ([0.1, 0.167, 0.333, 0.5, 0.667, 0.833, 1.0] if cold else [1.0] * 7)
    assert registry.standing("a").restarts == seen(registry).life == int(cold)


def test_restarts_are_counted_on_where_an_engine_moves() -> None:
    registry, _ = made("a")
    unreachable(registry)
    registry.set_ready("a", True)
    registry.add(replace(registry.members["a"], root=URL("http://elsewhere:1")))
    assert registry.standing("a").restarts == 1
    registry.set_ready("a", True)
    assert registry.standing("a").restarts == 1, "it is asked for the first time"


def test_one_that_comes_for_the_first_time_was_not_restarted() -> None:
    registry = Registry(fleet("a").members.values())
    unreachable(registry)
    registry.set_ready("a", True)
    assert (registry.standing("a").restarts, registry.life("a")) == (0, 0)


def said(**info: Any) -> Callable[[Registry], None]:
    def step(registry: Registry) -> None:
        registry.set_info("a", EngineInfo(**info))

    return step


def counted(tokens: int | None, started_s: float | None = None) -> Callable[[Registry], None]:
    return lambda registry: registry.set_load("a", EngineLoad(prompt_tokens=tokens, started_s=started_s))


NOTHING_SAID = said()


@pytest.mark.parametrize(
    ("steps", "restarts"),
    [
        ([said(version="1"), said(version="2")], 1),
        ([said(version="1"), said(version="2"), said(version="2")], 1),
        ([said(version="1", model="x"), said(version="1", model="y"), said(version="1", model="x")], 2),
        ([said(version="1", slots=2), NOTHING_SAID, said(version="1", slots=2)], 0),  # it was not understood once
        ([said(version="1"), NOTHING_SAID, said(version="2")], 1),
        ([said(version="1"), said(version="1", kv_tokens=100), said(version="1"), said(version="1", kv_tokens=90)], 1),
        ([counted(5), counted(5), counted(9)], 0),
        ([counted(9), counted(None), counted(5), counted(6)], 1),
        ([counted(9), counted(0), counted(0)], 1),
        ([counted(9, 1000.0), counted(9, 1000.4), counted(9, 2000.0), counted(9, 2000.0)], 1),
        ([counted(9, 2000.0), counted(5, 1000.0), counted(9, 2000.0)], 0),  # two answer at its address
        ([counted(9, 1000.0), counted(5, 2000.0), counted(9, 1000.0), counted(5, 2000.0)], 1),
        ([counted(9), said(version="1"), said(version="2"), counted(5)], 1),  # known by one sign, it is not counted by another
        ([counted(9), unreachable, well, counted(5)], 1),
        ([said(version="1"), unreachable, said(version="2"), well], 1),
        ([said(version="1"), lost, said(version="2"), well], 1),
    ],
)
def test_an_engine_is_known_again_by_what_it_says_of_itself(steps: list[Callable[[Registry], None]], restarts: int) -> None:
    registry, _ = made("a")
    for step in steps:
        step(registry)
    assert (registry.standing("a").restarts, seen(registry).life) == (restarts, restarts)


def test_one_that_was_restarted_while_it_serves_gets_its_part() -> None:
    registry, clock = made("a")
    with capture_logs() as logs:
        registry.restarted("a", 0, "a sign")
        registry.restarted("a", 0, "another sign of that")
        registry.restarted("gone", 0, "x")
        assert (seen(registry).life, seen(registry).share, registry.life("gone")) == (1, 1.0, 0)
        for life in range(1, 100):
            registry.restarted("a", life, "more of that")
            clock.now_s += 1
    assert seen(registry).life == 100
    told = [(each["log_level"], each["engine"], each["sign"]) for each in logs]
    assert told == [("warning", "a", "a sign"), ("warning", "a", "more of that")]  # once a minute


def test_at_first_nothing_is_cold() -> None:
    registry, _ = made("a")
    assert seen(registry).share == 1


@pytest.mark.parametrize(("confirmed", "state"), [(True, "half_open"), (False, "open")])
def test_one_request_tries_an_engine_that_died_under_load_and_is_back(confirmed: bool, state: str) -> None:
    registry, clock = made("a")
    visits = [registry.visit("a") for _ in range(8)]
    for visit in visits:
        visit.failed(EngineGone("x"))
    assert registry.breaker_state("a") == "open"
    if confirmed:
        unreachable(registry)
    clock.now_s += 2
    registry.set_ready("a", True)
    assert registry.breaker_state("a") == state
    if state == "half_open":
        trial = registry.visit("a")
        assert seen(registry).ejected, "there is one trial"
        trial.heard()
        assert registry.breaker_state("a") == "closed"


def test_what_ends_after_its_engine_was_replaced_says_nothing_of_the_new_one() -> None:
    registry, _ = made("a")
    visits = [registry.visit("a") for _ in range(5)]
    member = registry.members["a"]
    registry.remove("a")
    registry.add(member)
    registry.set_ready("a", True)
    losses = registry.losses("a")
    for visit in visits:
        visit.failed(EngineGone("x"))
    assert registry.is_ready("a")
    assert registry.breaker_state("a") == "closed"
    assert registry.losses("a") == losses


def test_it_is_known_who_generated_since() -> None:
    registry, clock = made("a", "b")
    visit = registry.visit("a")
    assert not registry.heard_since("a", 0)
    clock.now_s = 200
    visit.heard()
    assert registry.heard_since("a", 200)
    assert not registry.heard_since("a", 200.1)
    assert not registry.heard_since("b", 0)
    assert not registry.heard_since("gone", 0)


def test_one_that_is_busy_again_and_again_is_asked_less_and_less_often() -> None:
    registry, clock = made("a")
    asked: list[float] = []
    while clock.now_s < 300:
        if not seen(registry).shy:
            asked.append(clock.now_s)
            for visit in [registry.visit("a") for _ in range(3)]:  # at once counts once
                visit.failed(EngineRefused("x", status=429))
        clock.now_s += 0.5
    waits = [round(later - earlier) for earlier, later in itertools.pairwise(asked)]
    assert waits[:7] == [1, 2, 4, 8, 16, 30, 30]
    clock.now_s += 30
    registry.visit("a").served()
    registry.visit("a").failed(EngineRefused("x", status=429))
    clock.now_s += 1
    assert not seen(registry).shy
    assert registry.breaker_state("a") == "closed"
