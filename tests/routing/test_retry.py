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


def test_the_shortest_wait_is_told() -> None:
    tries = Tries()
    for engine, wait_s in (("a", 5.0), ("b", 2.0), ("c", None), ("d", 9.0)):
        tries.after(engine, refused(429, wait_s), 0.0, RetryRules(attempts=9))
    assert tries.wait_s == 2.0


@pytest.mark.parametrize(("in_flight", "room"), [(0, 3), (39, 3), (40, 4), (200, 20)])
def test_the_room_grows_with_what_runs(in_flight: int, room: int) -> None:
    assert RetryRules().room(in_flight) == room
