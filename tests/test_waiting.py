"""Those that wait: who has no room, who is held, how quickly they leave; and what is said to who may not wait."""

import asyncio

import pytest

from gateway.refusals import Refusals
from gateway.routing.choice import Choice
from gateway.routing.policy import Decision
from gateway.routing.queue import Place
from gateway.routing.view import Forecast, Terms
from gateway.waiting import Entrant, Line, Next, Waiter, Waiting

FULL = Decision(None, "none", full=True)


def hold(prefill_s: float = 1.0) -> Choice:
    return Choice(None, "hold", awaits="a", forecast=Forecast(1, 0, prefill_s, Terms(prefill_s=prefill_s)))


def waiter(model: str = "m", *, held: bool = False, tenant: str = "default") -> Waiter:
    told = asyncio.get_running_loop().create_future()
    return Waiter(told, Entrant(Place(model, tenant), 1e9), 1e9, held)


async def entered(waiting: Waiting, now_s: float = 0.0, *, held: bool = False, prefill_s: float = 1.0) -> Waiter:
    one = waiter(held=held)
    waiting.enter(one, hold(prefill_s) if held else FULL, now_s)
    return one


async def test_those_that_are_held_are_in_no_want_of_room() -> None:
    waiting = Waiting()
    held, full = await entered(waiting, held=True), await entered(waiting)
    assert (len(waiting), waiting.count("m"), waiting.in_want("m"), waiting.models) == (2, 2, 1, ("m",))
    assert {*waiting.all("m")} == {held, full}
    waiting.leave(full)
    assert (waiting.count("m"), waiting.in_want("m")) == (1, 0)
    waiting.let_in(held, 1.0)
    assert (len(waiting), waiting.in_want("m"), waiting.models) == (0, 0, ())


async def test_one_is_of_the_one_kind_or_the_other_as_it_was_last_looked_at() -> None:
    waiting = Waiting()
    one = await entered(waiting)
    for decision, in_want in ((hold(), 0), (hold(), 0), (FULL, 1), (FULL, 1), (hold(), 0), (FULL, 1)):
        waiting.hold(one, decision, 0.0)
        assert waiting.in_want("m") == in_want
    waiting.leave(one)
    assert waiting.in_want("m") == 0


async def test_one_leaves_once_however_often_it_is_told_to() -> None:
    waiting = Waiting()
    first, second = await entered(waiting), await entered(waiting)
    waiting.let_in(first, 1.0)
    for _ in range(3):
        waiting.leave(first)
        assert (waiting.count("m"), waiting.in_want("m")) == (1, 1)
    waiting.leave(second)
    waiting.leave(waiter())
    assert (len(waiting), waiting.in_want("m")) == (0, 0)


async def test_of_those_that_are_held_the_least_work_is_first_as_it_is_known_now() -> None:
    waiting = Waiting()
    long, short = await entered(waiting, held=True, prefill_s=9.0), await entered(waiting, held=True, prefill_s=1.0)
    assert list(waiting.look("m").over(1, 0.0)) == [short, long]
    waiting.hold(long, hold(0.1), 0.0)
    assert list(waiting.look("m").over(1, 0.0)) == [long, short]


async def test_each_may_leave_as_it_is_given() -> None:
    waiting = Waiting()
    ones = [await entered(waiting) for _ in range(5)]
    for number, one in enumerate(waiting.look("m").over(1, 0.0)):
        assert one is ones[number]
        (waiting.let_in(one, 1.0) if number % 2 else waiting.leave(one))
    assert len(waiting) == 0


async def test_the_pace_is_that_of_those_that_want_room() -> None:
    waiting = Waiting()
    for _ in range(30):
        await entered(waiting)
    held = [await entered(waiting, held=True) for _ in range(10)]
    for one in held:  # at once, and they say nothing of room
        waiting.let_in(one, 0.0)
    assert waiting.predicted_s(Place("m"), 0.0) is None
    for number, one in enumerate(list(waiting.all("m"))[:10]):
        waiting.let_in(one, 2.0 * (number + 1))
    assert waiting.predicted_s(Place("m"), 20.0) == pytest.approx(21 * 2.0)
    assert waiting.predicted_s(Place("m", priority=1), 20.0) == pytest.approx(2.0)
    assert waiting.predicted_s(Place("other"), 20.0) is None
    assert waiting.wait_s("m", 20.0) == 30.0


async def test_the_pace_begins_anew_when_nobody_wants_room_any_more() -> None:
    waiting = Waiting()
    for number in range(10):
        waiting.let_in(await entered(waiting, 100.0 * number), 100.0 * number + 1)
    await entered(waiting, 5000.0, held=True)
    assert waiting.predicted_s(Place("m"), 5000.0) is None


async def test_one_that_was_held_and_has_no_room_now_wants_some_since_now() -> None:
    waiting = Waiting()
    ones = [await entered(waiting, held=True) for _ in range(20)]
    for one in ones:
        waiting.hold(one, FULL, 100.0)
    for number, one in enumerate(ones[:10]):
        waiting.let_in(one, 100.0 + 2.0 * (number + 1))
    assert waiting.predicted_s(Place("m"), 120.0) == pytest.approx(11 * 2.0)


async def test_a_line_is_of_those_that_stand_in_it() -> None:
    line, one = Line(), Next(asyncio.get_running_loop().create_future(), lambda view: FULL)
    assert not line
    line.answers.append(one)
    assert line
    line.answers.clear()
    line.first.append(one)
    assert line


# ---- refusals -------------------------------------------------------------------------------------------------------------


def test_each_refusal_says_why_and_when_to_come_back() -> None:
    asked: list[str] = []

    def wait_s(model: str) -> float:
        asked.append(model)
        return 7.5

    our = Refusals(3, wait_s)
    told = [our.full("m"), our.no_room("m"), our.too_long("m", 12.3), our.no_engine("m"), our.busy("m", [9.0, 4.0])]
    assert [(each.status, each.reason, each.retry_after_s) for each in told] == [
        (429, "queue_full", 7.5),
        (503, "queue_timeout", 7.5),
        (503, "wait_too_long", 12.3),
        (503, "no_engine", 1.0),
        (503, "engines_busy", 4.0),
    ]
    assert asked == ["m", "m"]
    assert "3 requests wait already" in told[0].message
    assert "some 12 s" in told[2].message


def test_the_time_to_come_back_is_bounded_and_a_name_is_shown_safely() -> None:
    our = Refusals(3, lambda _: 1.0)
    assert [our.too_long("m", wait_s).retry_after_s for wait_s in (0.01, 1e6)] == [1.0, 30.0]
    assert "\n" not in our.no_engine("m\nx").message
