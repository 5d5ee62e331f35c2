"""What a failure says of the engine, and what may follow it."""

import pytest

from gateway.errors import (
    AnswerRefused,
    BadRequest,
    ClientStalled,
    ContextTooLong,
    Draining,
    EngineBroke,
    EngineDiffers,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    GatewayError,
    InternalError,
)
from gateway.routing.retry import RetryRules, Stopped, Tries, blame, deadly, elsewhere


def refused(status: int, wait_s: float | None = None) -> EngineRefused:
    error = EngineRefused("x", status=status)
    error.wait_s = wait_s
    return error


def out_of_memory(error: EngineRefused | EngineBroke) -> EngineRefused | EngineBroke:
    error.out_of_memory = True
    return error


@pytest.mark.parametrize(
    ("error", "blamed", "may_follow"),
    [
        (EngineUnreachable("x"), "unreached", True),
        (EngineTimeout("connect", 1), "unreached", True),
        (EngineTimeout("headers", 1), "engine", True),
        (EngineTimeout("first_token", 1), "engine", True),
        (EngineTimeout("between_tokens", 1), "engine", True),
        (EngineTimeout("total", 1), "none", False),
        (EngineBroke("x"), "engine", True),
        (EngineGone("x"), "engine", True),
        (EngineDiffers("x"), "none", True),
        (refused(500), "engine", True),
        (refused(502), "engine", True),
        (refused(503), "engine", True),
        (refused(503, 2.0), "busy", True),
        (refused(429), "busy", True),
        (refused(408), "busy", True),
        (refused(421), "busy", True),
        (refused(400), "none", False),
        (refused(401), "none", False),
        (refused(404), "none", False),
        (refused(422), "none", False),
        (ContextTooLong(2, 1), "none", False),
        (BadRequest("x"), "none", False),
        (ClientStalled("x"), "none", False),
        (AnswerRefused("x", kind="invalid_json"), "none", False),
        (Draining("x"), "none", False),
        (InternalError("x"), "none", False),
    ],
    ids=repr,
)
def test_whom_a_failure_speaks_against_and_what_may_follow(error: GatewayError, blamed: str, may_follow: bool) -> None:
    assert blame(error) == blamed
    assert elsewhere(error) is may_follow


@pytest.mark.parametrize(
    ("error", "after_s", "is_deadly"),
    [
        (EngineGone("x"), 0.0, True),
        (EngineGone("x"), 1.0, True),
        (EngineGone("x"), 1.01, False),
        (EngineBroke("x"), 0.0, False),
        (EngineDiffers("x"), 0.0, False),
        (EngineUnreachable("x"), 0.0, False),
        (EngineTimeout("headers", 1), 0.0, False),
        (refused(500), 0.0, False),
        (out_of_memory(refused(500)), 60.0, True),
        (out_of_memory(EngineBroke("x")), 60.0, True),
    ],
)
def test_what_a_request_may_have_killed(error: GatewayError, after_s: float, is_deadly: bool) -> None:
    assert deadly(error, after_s) is is_deadly


@pytest.mark.parametrize(
    ("failures", "stops"),
    [
        ([refused(500), refused(500), refused(500)], [None, None, "attempts"]),
        ([EngineGone("x"), EngineGone("x")], [None, "poison"]),
        ([EngineGone("x"), refused(500), EngineGone("x")], [None, None, "poison"]),
        ([out_of_memory(refused(500)), EngineGone("x")], [None, "poison"]),
        ([refused(400)], ["final"]),
        ([refused(500), EngineTimeout("total", 1)], [None, "final"]),
    ],
)
def test_when_a_request_is_given_up(failures: list[GatewayError], stops: list[Stopped | None]) -> None:
    tries = Tries()
    assert [tries.after(f"e{at}", error, 0.1, RetryRules()) for at, error in enumerate(failures)] == stops
    assert tries.failed == [f"e{at}" for at in range(len(failures))]


def test_engines_that_went_down_count_for_all_answers_of_a_request_and_each_once() -> None:
    deaths: set[str] = set()
    first, second = Tries(deaths=deaths), Tries(deaths=deaths)
    rules = RetryRules()
    assert first.after("a", EngineGone("x"), 0.1, rules) is None
    assert second.after("a", EngineGone("x"), 0.1, rules) is None
    assert second.after("b", EngineGone("x"), 0.1, rules) == "poison"
    assert first.after("c", refused(500), 0.1, rules) == "poison"


@pytest.mark.parametrize(
    ("failures", "stops"),
    [
        ([EngineGone("x"), EngineGone("x")], [None, "poison"]),
        ([EngineTimeout("between_tokens", 1), EngineBroke("x"), EngineGone("x")], [None, None, None]),
        ([EngineGone("x"), EngineBroke("x"), EngineTimeout("between_tokens", 1)], [None, None, None]),
    ],
)
def test_two_engines_that_fall_in_the_middle_of_an_answer_are_enough(
    failures: list[GatewayError], stops: list[Stopped | None]
) -> None:
    tries, rules = Tries(), RetryRules(attempts=9)
    assert [tries.after(f"e{at}", error, 60.0, rules, begun=True) for at, error in enumerate(failures)] == stops


REFUSALS: list[GatewayError] = [refused(400), refused(404), ContextTooLong(9, 8), BadRequest("x")]


@pytest.mark.parametrize("error", REFUSALS, ids=repr)
def test_what_an_engine_that_was_to_go_on_has_against_the_request_is_not_the_clients_fault(error: GatewayError) -> None:
    tries, rules, broke = Tries(), RetryRules(), EngineBroke("x")
    assert tries.after("a", broke, 1.0, rules, begun=True) is None
    assert tries.after("b", error, 1.0, rules, begun=True, resumed=True) is None
    assert tries.told(error, resumed=True) is broke
    assert tries.told(error) is error
    assert tries.after("c", error, 1.0, rules, begun=True, resumed=True) == "attempts"


def test_a_client_that_stalls_is_told_so_all_the_same() -> None:
    tries, stalls = Tries(), ClientStalled("x")
    tries.after("a", EngineBroke("x"), 1.0, RetryRules(), begun=True)
    assert tries.after("b", stalls, 1.0, RetryRules(), begun=True, resumed=True) == "final"
    assert tries.told(stalls, resumed=True) is stalls


def test_the_shortest_wait_is_told() -> None:
    tries = Tries()
    for engine, wait_s in (("a", 5.0), ("b", 2.0), ("c", None), ("d", 9.0)):
        tries.after(engine, refused(429, wait_s), 0.0, RetryRules(attempts=9))
    assert tries.wait_s == 2.0


@pytest.mark.parametrize(("in_flight", "room"), [(0, 3), (39, 3), (40, 4), (200, 20)])
def test_the_room_grows_with_what_runs(in_flight: int, room: int) -> None:
    assert RetryRules().room(in_flight) == room
