"""How many retries run at a time, against a naive model: never more than there is room for, in the order of asking, back to 0."""

import asyncio
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.budget import Permit, RetryBudget
from gateway.routing.retry import RetryRules

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["ask", "impatient", "give_back", "leave", "time"]), st.integers(0, 5)),
        st.tuples(st.just("in_flight"), st.sampled_from([0, 20, 50])),
    ),
    max_size=40,
)


class Asking:
    """One that asks for room."""

    def __init__(self, budget: RetryBudget, wait_s: float) -> None:
        self.task = asyncio.ensure_future(budget.permit(wait_s))

    @property
    def permit(self) -> Permit | None:
        return self.task.result() if self.task.done() and not self.task.cancelled() else None


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@given(STEPS)
@settings(deadline=None)
def test_it_does_what_the_model_does(steps: list[tuple[str, int]]) -> None:
    asyncio.run(run(steps))


async def run(steps: list[tuple[str, int]]) -> None:
    in_flight = 0
    budget = RetryBudget(RetryRules(floor=2, share=0.1), lambda: in_flight)
    waiting: list[Asking] = []  # in the order of asking
    running: list[Asking] = []
    for step, number in steps:
        most = budget.running
        match step:
            case "ask" | "impatient":
                waiting.append(Asking(budget, 60.0 if step == "ask" else 0.0))
            case "give_back" if running:
                each = running.pop(number % len(running))
                assert each.permit is not None
                each.permit.give_back()
                each.permit.give_back()  # twice is once
            case "leave" if waiting:
                waiting.pop(number % len(waiting)).task.cancel()
            case "time":
                await asyncio.sleep(0.001)
            case "in_flight":
                in_flight = number
            case _:
                pass
        asked = len(waiting)
        await settle()
        ended = [each for each in waiting if each.task.done()]
        served = [each for each in ended if each.permit is not None]
        assert waiting[: len(ended)] == ended or any(each.permit is None for each in ended), "in turn"
        waiting = [each for each in waiting if not each.task.done()]
        running += served
        assert budget.running == len(running)
        assert budget.running <= max(2, int(0.1 * (in_flight + asked)), most), "no more than there is room for"
    for each in waiting:
        each.task.cancel()
    await settle()
    for each in running:
        assert each.permit is not None
        each.permit.give_back()
    assert budget.running == 0
    assert await budget.permit(0.0) is not None, "there is room again"


async def test_the_order_is_that_of_asking() -> None:
    budget = RetryBudget(RetryRules(floor=1, share=0.0), lambda: 0)
    first = await budget.permit()
    order: list[int] = []

    async def ask(number: int) -> None:
        permit = await budget.permit()
        assert permit is not None
        order.append(number)
        await asyncio.sleep(0)
        permit.give_back()

    asking = [asyncio.ensure_future(ask(number)) for number in range(20)]
    await settle()
    for each in asking[::3]:
        each.cancel()
    assert first is not None
    first.give_back()
    await asyncio.gather(*asking, return_exceptions=True)
    assert order == [number for number in range(20) if number % 3]
    assert budget.running == 0


async def test_those_that_wait_are_in_flight_too() -> None:
    """Else the room were smallest where most of a fleet fails, as next to nothing runs then."""
    budget = RetryBudget(RetryRules(), lambda: 0)
    asking = [Asking(budget, 60.0) for _ in range(80)]
    await settle()
    assert 7 <= budget.running <= 8
    for each in asking:
        each.task.cancel()
    await settle()


async def test_room_that_comes_as_the_time_ends_is_not_lost() -> None:
    budget = RetryBudget(RetryRules(floor=1, share=0.0), lambda: 0)
    first = await budget.permit()
    assert first is not None
    asyncio.get_running_loop().call_later(0.001, first.give_back)
    asking = asyncio.ensure_future(budget.permit(0.002))
    await settle()
    time.sleep(0.02)  # noqa: ASYNC251 - the loop stands still, so that both are due at once
    second = await asking
    assert second is not None
    assert budget.running == 1
    second.give_back()
    assert budget.running == 0


@pytest.mark.parametrize("leave", [lambda task: task.cancel(), lambda task: None])
async def test_one_that_leaves_with_its_turn_given_gives_it_on(leave: Callable[[asyncio.Future[Permit | None]], object]) -> None:
    budget = RetryBudget(RetryRules(floor=1, share=0.0), lambda: 0)
    first = await budget.permit()
    asking, next_one = [asyncio.ensure_future(budget.permit()) for _ in range(2)]
    await settle()
    assert first is not None
    first.give_back()  # `asking` has its turn, and has not run since
    leave(asking)
    await settle()
    assert asking.cancelled() is next_one.done()
    assert budget.running == 1
    next_one.cancel()


async def test_where_no_retries_are_wanted_nobody_waits() -> None:
    budget = RetryBudget(RetryRules(floor=0, share=0.0), lambda: 100)
    async with asyncio.timeout(1):
        assert await budget.permit() is None
