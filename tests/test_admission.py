"""Requests pass, wait or are sent away; a waiting one that leaves costs nothing."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count, pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.wiring import fleet, lose

from gateway.admission import Admission
from gateway.errors import EngineRefused, GatewayError, Rejected
from gateway.events import AttemptFailed, AttemptServed, AttemptStarted, CacheTold, ClientGone, Event, Finished, Prefilled
from gateway.fleet.registry import Registry
from gateway.route import Asked, Guide, Route
from gateway.routing.chain import token_chain
from gateway.routing.choice import Choice, Tuning
from gateway.routing.policy import Decision, choose
from gateway.routing.queue import Place, QueueRules
from gateway.routing.view import FleetView, Forecast, Terms
from gateway.timer import Watchdog
from gateway.waiting import Entrant, Where


def gate(
    registry: Registry, *, queue_requests: int = 2, queue_wait_s: float = 5.0, down_wait_s: float = 0.0, ready: bool = False
) -> Admission:
    if ready:
        for engine in registry.members:
            registry.set_ready(engine, True)
    return Admission(registry, QueueRules(queue_requests, queue_wait_s, down_wait_s), Watchdog())


def entrant(
    model: str = "m", tenant: str = "default", *, priority: int = 0, ends_at: float = 1e9, where: Where = choose
) -> Entrant:
    return Entrant(Place(model, tenant, priority), ends_at, where)


async def waited(admission: Admission, told_s: list[float] | None = None, who: Entrant | None = None) -> float:
    """The seconds that are told of the wait, 0 where none was."""
    waits_s: list[float] = [] if told_s is None else told_s
    await admission.admit(who or entrant(), waits_s.append)
    return sum(waits_s)


class Desk:
    """Requests that run on engine `a` for as long as a test wants, told as events."""

    def __init__(self, registry: Registry, admission: Admission) -> None:
        self.registry, self.admission = registry, admission
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.order: list[str] = []
        self.most = 0
        self.done: dict[str, asyncio.Future[str]] = {}

    def emit(self, event: Event) -> None:
        self.registry.running.apply(event)
        self.admission(event)

    async def ask(self, name: str, tenant: str = "default", *, priority: int = 0, answers: int = 1) -> None:
        """It asks, and has begun to run, to wait, or to be refused when this returns."""
        who = entrant(tenant=tenant, priority=priority)
        self.tasks[name] = asyncio.create_task(self._serve(name, who, answers))
        await turns()

    async def _serve(self, name: str, who: Entrant, answers: int) -> None:
        """The further answers begin when there is room, and are over at once."""
        try:
            await self.admission.admit(who, lambda _: None)
            self.order.append(name)
            self._start(name, 1)
            async with asyncio.TaskGroup() as group:
                for number in range(10, 9 + answers):
                    group.create_task(self._further(name, number))
                self.done[name] = asyncio.get_running_loop().create_future()
                end = await self.done[name]
                if end in ("retry", "late"):
                    self.emit(AttemptFailed(name, 1, "a", "broke", "m"))
                    if end == "late":  # others may have its room meanwhile
                        await asyncio.sleep(0)
                        await asyncio.sleep(0)
                    if (await self.admission.room("m", choose, 60.0, first=True)).engine:
                        self.order.append(f"{name} again")
                        self._start(name, 2)
                elif end == "fail":
                    self.emit(AttemptFailed(name, 1, "a", "broke", "m"))
        except asyncio.CancelledError:
            self.emit(ClientGone(name, 1, "a"))
            raise
        finally:
            self.done.pop(name, None)
            self.emit(finished(name))

    async def _further(self, name: str, number: int) -> None:
        if (await self.admission.room("m", choose, 60.0, first=False)).engine:
            self.order.append(f"{name}.{number - 9}")
            self._start(name, number)
            await turns(2)
            self.emit(AttemptServed(name, number, "a", "m"))

    def _start(self, name: str, number: int) -> None:
        self.emit(AttemptStarted(name, number, "a", "m", 0.0))
        self.most = max(self.most, self.registry.running.count("m", "a"))

    async def end(self, name: str, how: str = "ok") -> None:
        self.done.pop(name).set_result(how)
        await turns()

    async def leave(self, name: str) -> None:
        self.tasks[name].cancel()
        await turns()

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


def finished(name: str) -> Finished:
    return Finished(
        name, "chat", "m", "a", "plain", outcome="ok", reason=None, status=200, streamed=False, attempts=1, duration_s=1.0
    )


async def turns(number: int = 4) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def limited(most_running: int | None = 1, *ids: str, **rules: float) -> Desk:
    """Ready engines that take so many at a time."""
    registry = fleet(*(ids or ("a",)), most_running=most_running)
    admission = gate(registry, queue_requests=int(rules.get("requests", 100)), queue_wait_s=rules.get("wait_s", 5.0), ready=True)
    return Desk(registry, admission)


# ---- an engine that is ready, and one that is not --------------------------------------------------------------------------


async def test_passes_at_once_while_an_engine_is_ready() -> None:
    registry = fleet("a", "b")
    registry.set_ready("b", True)
    assert await waited(gate(registry)) == 0.0


async def test_waits_for_engines_that_were_never_asked_and_says_how_long() -> None:
    registry, loop = fleet("a"), asyncio.get_running_loop()
    before_s = loop.time()
    waiting = asyncio.create_task(waited(gate(registry, queue_wait_s=60)))
    await turns()
    waits_s = loop.time()
    await asyncio.sleep(0.03)
    assert not waiting.done()
    ready_s = loop.time()
    registry.set_ready("a", True)
    told_s = await waiting
    assert ready_s - waits_s <= told_s <= loop.time() - before_s


async def test_a_change_right_after_the_wait_began_is_not_missed() -> None:
    registry = fleet("a")
    waiting = asyncio.create_task(waited(gate(registry)))
    await asyncio.sleep(0)
    registry.set_ready("a", True)
    await waiting  # else it would be refused


async def test_an_engine_that_traffic_lost_is_waited_for_until_it_was_asked() -> None:
    registry = fleet("a")
    admission = gate(registry, ready=True)
    lose(registry, "a")
    waiting = asyncio.create_task(waited(admission))
    await turns()
    assert not waiting.done()
    registry.set_ready("a", False)
    with pytest.raises(Rejected, match="can serve now"):
        await waiting


async def test_all_engines_down_is_told_at_once() -> None:
    registry = fleet("a", "b")
    admission = gate(registry)
    registry.set_ready("a", False)
    waiting = asyncio.create_task(waited(admission))
    await turns()
    assert not waiting.done()  # `b` was not asked yet
    registry.set_ready("b", False, "unhealthy")
    told: list[float] = []
    for refused in (waiting, asyncio.create_task(waited(admission, told))):
        with pytest.raises(Rejected) as caught:
            await refused
        assert (caught.value.status, caught.value.reason, caught.value.retry_after_s) == (503, "no_engine", 1.0)
        assert caught.value.message == "No engine of 'm' can serve now; `/ready` says why."
    with pytest.raises(Rejected):
        admission.check(Place("m"))
    assert told == []
    assert admission.depth("m") == 0


async def test_one_that_is_being_identified_is_waited_for() -> None:
    registry = fleet("a")
    registry.set_ready("a", False, "tokenizer_unknown")
    waiting = asyncio.create_task(waited(gate(registry)))
    await turns()
    registry.set_ready("a", True)
    await waiting


async def test_the_wait_for_an_engine_that_is_down_is_bounded_by_its_setting() -> None:
    registry = fleet("a")
    registry.set_ready("a", False)
    admission = gate(registry, down_wait_s=0.1)
    with pytest.raises(Rejected, match="can serve now"):
        await waited(admission)
    back = asyncio.create_task(waited(gate(registry, down_wait_s=5)))
    await turns()
    registry.set_ready("a", True)
    await back  # else it would be refused


async def test_where_one_came_back_and_is_full_the_whole_wait_counts_again() -> None:
    registry = fleet("a", most_running=1)
    admission = gate(registry, down_wait_s=0.2, ready=True)
    desk = Desk(registry, admission)
    await desk.ask("1")
    registry.set_ready("a", False)
    await desk.ask("2")
    registry.set_ready("a", True)
    await asyncio.sleep(0.4)
    assert not desk.tasks["2"].done()
    await desk.end("1")
    assert desk.order == ["1", "2"]
    await desk.close()


async def test_the_wait_is_told_of_one_that_is_sent_away_or_leaves_too() -> None:
    told_s: list[float] = []
    with pytest.raises(Rejected) as caught:
        await waited(gate(fleet("a"), queue_wait_s=0.03), told_s)
    assert caught.value.reason == "no_engine"
    assert told_s[0] > 0.02
    leaving = asyncio.create_task(waited(gate(fleet("a")), told_s))
    await asyncio.sleep(0.01)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert told_s[1] > 0


async def test_nothing_waits_beyond_its_own_deadline() -> None:
    ends_at = asyncio.get_running_loop().time() + 0.05
    with pytest.raises(Rejected):
        await waited(gate(fleet("a"), queue_wait_s=60), who=entrant(ends_at=ends_at))


async def test_resting_engines_are_told_of_and_a_rest_that_is_over_lets_in() -> None:
    desk, loop = limited(None, "a", "b"), asyncio.get_running_loop()
    before_s = loop.time()
    for name, rest_s in (("a", 20.0), ("b", 7.0)):
        desk.registry.visit(name).failed(refused(rest_s))
    with pytest.raises(Rejected) as caught:
        await waited(desk.admission)
    assert caught.value.reason == "engines_busy"
    assert 7 - (loop.time() - before_s) <= (caught.value.retry_after_s or 0) <= 7
    desk = limited(1, "a", "b", wait_s=60)
    await desk.ask("1")
    desk.registry.visit("b").failed(refused(0.3))
    waiting = asyncio.create_task(waited(desk.admission))
    await turns()
    assert not waiting.done()  # `a` is full
    await waiting  # nothing else ends it
    await desk.close()


def refused(rest_s: float) -> GatewayError:
    error = EngineRefused("busy", status=429)
    error.wait_s = rest_s
    return error


# ---- an engine with a bound -----------------------------------------------------------------------------------------------


async def test_a_burst_does_not_pass_the_bound_and_ends_let_others_in() -> None:
    desk = limited(2)
    for name in "123456":
        await desk.ask(name)
    assert desk.order == ["1", "2"]
    assert desk.admission.depth("m") == 4
    await desk.end("1")
    await desk.end("2")
    assert desk.order == ["1", "2", "3", "4"]
    for name in "3456":
        await desk.end(name)
    assert desk.most == 2
    await settled(desk)


async def test_requests_that_are_let_in_in_one_step_are_counted_before_they_run() -> None:
    desk = limited(2)
    inside: list[str] = []

    async def slow(name: str) -> None:
        await desk.admission.admit(entrant(), lambda _: None)
        inside.append(name)
        desk.emit(AttemptStarted(name, 1, "a", "m", 0.0))
        await asyncio.sleep(0.02)
        desk.emit(finished(name))

    tasks = [asyncio.create_task(slow(str(number))) for number in range(5)]
    await turns()
    assert inside == ["0", "1"]
    await asyncio.gather(*tasks)
    assert inside == ["0", "1", "2", "3", "4"]
    await settled(desk)


async def test_a_retry_keeps_its_room_and_a_failure_gives_it_back() -> None:
    desk = limited(1)
    await desk.ask("1")
    await desk.ask("2")
    await desk.end("1", "retry")
    assert (desk.most, desk.order) == (1, ["1", "1 again", "2"])
    await desk.ask("3")
    await desk.end("2", "fail")
    assert desk.order == ["1", "1 again", "2", "3"]
    await desk.close()
    await settled(desk)


async def test_a_retry_waits_for_room_before_all_that_are_new_and_one_that_leaves_holds_nothing() -> None:
    desk = limited(1)
    for name in "1234":
        await desk.ask(name)
    await desk.end("1", "late")  # its room is that of 2
    await desk.end("2", "late")  # 1 goes on, and then 2
    await turns(8)
    assert (desk.most, desk.order) == (1, ["1", "2", "1 again", "2 again", "3"])
    await desk.end("3", "late")  # behind 4
    await desk.ask("5")
    await desk.leave("3")
    await desk.end("4")
    assert desk.order[5:] == ["4", "5"]
    await desk.close()
    await settled(desk)


async def test_one_with_several_answers_needs_room_for_one_and_its_others_take_turns_with_the_queue() -> None:
    desk = limited(2)
    await desk.ask("1")
    await desk.ask("2")
    await desk.ask("big", answers=4)
    for name in "345":
        await desk.ask(name)
    await desk.end("1")
    assert desk.order == ["1", "2", "big"]
    await desk.end("2")  # one of its own, then one of the queue, which is held
    await turns(20)
    assert desk.order == ["1", "2", "big", "big.1", "3"]
    await desk.end("3")
    await turns(20)
    assert desk.order[5:] == ["big.2", "4"]
    await desk.end("4")
    await turns(20)
    assert desk.order[7:] == ["big.3", "5"]
    assert desk.most == 2
    await desk.close()
    await settled(desk)


async def test_further_answers_are_told_where_no_engine_will_serve_them() -> None:
    desk = limited(1)
    await desk.ask("big", answers=2)
    waiting = asyncio.create_task(desk.admission.room("m", choose, 60.0, first=False))
    await turns()
    assert not waiting.done()
    desk.registry.set_ready("a", False)
    decision = await asyncio.wait_for(waiting, 5)
    assert decision.engine is None
    assert desk.admission.refusal("m").reason == "no_engine"
    await desk.close()
    await settled(desk)


async def test_the_bound_is_that_of_engines_that_can_serve() -> None:
    desk = limited(1, "a", "b")
    desk.registry.drain("b", True)
    await desk.ask("1")
    await desk.ask("2")
    assert desk.order == ["1"]
    desk.registry.drain("b", False)
    await turns()
    assert desk.order == ["1", "2"]
    await desk.close()


async def test_a_wait_that_is_too_long_is_told_with_a_time_to_come_back() -> None:
    desk = limited(1, wait_s=0.1)
    await desk.ask("1")
    with pytest.raises(Rejected) as caught:
        await waited(desk.admission)
    assert (caught.value.status, caught.value.reason) == (503, "queue_timeout")
    assert 1 <= (caught.value.retry_after_s or 0) <= 30
    await desk.close()


async def test_a_full_queue_sends_away_and_a_leaver_makes_room() -> None:
    registry = fleet("a")
    admission = gate(registry, queue_requests=1)
    first = asyncio.create_task(waited(admission))
    await asyncio.sleep(0.01)
    assert admission.fill == 1.0
    for refused_at in (admission.check, None):
        with pytest.raises(Rejected) as caught:
            refused_at(Place("m")) if refused_at else await waited(admission)
        assert (caught.value.status, caught.value.reason, caught.value.code) == (429, "queue_full", "queue_full")
        assert caught.value.retry_after_s == 1.0
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = asyncio.create_task(waited(admission))
    await asyncio.sleep(0.01)
    registry.set_ready("a", True)
    assert await third > 0


async def test_the_time_to_come_back_grows_with_the_queue() -> None:
    desk = limited(1, requests=20)
    loop = asyncio.get_running_loop()
    ends_s = [loop.time()]
    for number in range(21):
        await desk.ask(str(number))
    for number in range(3):
        await asyncio.sleep(0.2)
        await desk.end(str(number))
        ends_s.append(loop.time())
        await desk.ask(f"more {number}")
    with pytest.raises(Rejected) as caught:
        desk.admission.check(Place("m"))
    longest_s = max(end - before for before, end in pairwise([*ends_s, loop.time()]))
    assert 21 * 0.19 < (caught.value.retry_after_s or 0) <= min(21 * longest_s, 30)  # it is one of 21 that wait
    await desk.close()


# ---- whose turn it is -----------------------------------------------------------------------------------------------------


async def test_s18_a_tenant_that_floods_makes_another_wait_its_turn_only() -> None:
    desk = limited(1, requests=60)
    for number in range(61):
        await desk.ask(f"a{number}", "a")
    for number in range(3):
        await desk.ask(f"b{number}", "b")
    for _ in range(7):
        await desk.end(desk.order[-1])
    assert desk.order == ["a0", "a1", "b0", "a2", "b1", "a3", "b2", "a4"]
    ends = Counter(type(error).__name__ for error in await results(desk))
    assert ends["Rejected"] == 3  # the newest of `a`, for those of `b`
    await desk.close()


async def results(desk: Desk) -> list[BaseException]:
    return [error for task in desk.tasks.values() if task.done() and (error := task.exception()) is not None]


async def test_a_higher_priority_goes_first() -> None:
    desk = limited(1)
    await desk.ask("1")
    await desk.ask("low", priority=-1)
    await desk.ask("2")
    await desk.ask("high", priority=1)
    for name in ("1", "high", "2", "low"):
        assert desk.order[-1] == name
        await desk.end(name)
    await settled(desk)


async def test_how_many_wait_is_told_by_priority() -> None:
    desk = limited(1)
    await desk.ask("runs")
    assert desk.admission.depths("m") == desk.admission.depths("other") == {0: 0}
    for name, priority in (("1", 2), ("2", -1), ("3", 2)):
        await desk.ask(name, priority=priority)
    assert desk.admission.depths("m") == {0: 0, 2: 2, -1: 1}
    await desk.ask("4")
    await desk.end("runs")
    await desk.leave("2")
    assert desk.admission.depths("m") == {0: 1, 2: 1}
    await desk.close()
    await settled(desk)


async def settled(desk: Desk) -> None:
    """Nothing is held or waits any more, and no task is left."""
    await turns(8)
    assert desk.admission.depth("m") == 0
    assert desk.admission.view("m") == desk.registry.view("m"), "room is kept for nobody"
    assert desk.registry.running.counts == {}
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


# ---- those that are held for a better place --------------------------------------------------------------------------------


class Picky:
    """Where one request goes: it had better wait for an engine, until `good`. Then as any other."""

    def __init__(self, prefill_s: float = 0.0, awaits: str = "a") -> None:
        self.prefill_s = prefill_s
        self.awaits = awaits
        self.good = False
        self.looks = 0

    def __call__(self, view: FleetView) -> Decision:
        self.looks += 1
        if self.good or (decision := choose(view)).engine is None:
            return choose(view)
        forecast = Forecast(1, 0, 0.0, Terms(0, 0, self.prefill_s))
        return Choice(None, "hold", decision.considered, awaits=self.awaits, forecast=forecast)


def engine_of(decision: Decision | None) -> str | None:
    """Where one that waited begins, chosen when its turn had come."""
    return decision.engine if decision is not None else None


class Holds:
    """Requests that are held, on a desk whose engine has room."""

    def __init__(self, most_running: int | None = None, *ids: str, **rules: float) -> None:
        self.desk = limited(most_running, *ids, **rules)
        self.admission = self.desk.admission
        self.told_s: list[float] = []

    async def ask(self, where: Picky, tenant: str = "default", ends_at: float = 1e9) -> "asyncio.Task[Decision | None]":
        who = entrant(tenant=tenant, where=where, ends_at=ends_at)
        task = asyncio.create_task(self.admission.admit(who, self.told_s.append))
        await turns()
        return task

    async def see(self, event: Event) -> None:
        self.admission(event)
        await turns()


async def test_one_that_is_held_waits_and_a_first_token_lets_it_go() -> None:
    holds, where = Holds(), Picky()
    task = await holds.ask(where)
    assert (task.done(), holds.admission.depth("m")) == (False, 1)
    await holds.see(Prefilled("x", 1, "a", "m", 0.1))
    assert not task.done(), "its place is no better"
    where.good = True
    await turns()
    assert not task.done()
    await holds.see(Prefilled("x", 1, "a", "m", 0.1))
    assert engine_of(await task) == "a"
    assert len(holds.told_s) == 1
    await settled(holds.desk)


@pytest.mark.parametrize(
    "event",
    [
        AttemptFailed("x", 1, "a", "broke", "m"),
        AttemptServed("x", 1, "a", "m"),
        CacheTold("x", 1, "a", "m", None, Forecast(1, 0, 0.0, Terms())),
        lambda: finished("x"),
    ],
    ids=str,
)
async def test_any_end_lets_it_go_too(event: Event | Callable[[], Event]) -> None:
    holds, where = Holds(), Picky()
    task = await holds.ask(where)
    where.good = True
    await holds.see(event() if callable(event) else event)
    assert engine_of(await task) == "a"
    await settled(holds.desk)


async def test_what_happens_to_another_model_moves_nobody() -> None:
    holds, where = Holds(), Picky()
    task = await holds.ask(where)
    where.good = True
    await holds.see(Prefilled("x", 1, "a", "other", 0.1))
    assert not task.done()
    task.cancel()
    await settled(holds.desk)


async def test_one_that_is_held_goes_on_when_it_has_waited_long_enough() -> None:
    holds, where = Holds(wait_s=0.1), Picky()
    assert await (await holds.ask(where)) is None, "it was refused"
    assert holds.told_s[0] >= 0.1
    await settled(holds.desk)


async def test_its_own_deadline_ends_it_all_the_same() -> None:
    holds = Holds(wait_s=60)
    task = await holds.ask(Picky(), ends_at=asyncio.get_running_loop().time() + 0.05)
    with pytest.raises(Rejected) as caught:
        await task
    assert (caught.value.status, caught.value.reason) == (503, "queue_timeout")
    await settled(holds.desk)


async def test_a_full_queue_costs_no_held_request_its_answer() -> None:
    holds = Holds(requests=2)
    first, second = await holds.ask(Picky()), await holds.ask(Picky())
    assert await (await holds.ask(Picky())) is None
    assert holds.told_s == [], "it did not wait"
    assert holds.admission.depth("m") == 2
    holds.admission.check(Place("m"))
    for task in (first, second):
        task.cancel()
    await settled(holds.desk)


async def test_without_a_queue_nobody_is_held() -> None:
    holds = Holds(requests=0)
    assert await (await holds.ask(Picky())) is None
    assert holds.told_s == []


async def test_one_that_is_pushed_out_by_a_newcomer_goes_too() -> None:
    holds = Holds(1, requests=3)
    await holds.desk.ask("runs")
    holds.desk.emit(finished("runs"))  # there is room again
    flood = [await holds.ask(Picky(), "flood") for _ in range(3)]
    await holds.desk.ask("runs too")  # and is not
    await holds.desk.ask("waits", "calm")
    done = [task for task in flood if task.done()]
    assert [task.result() for task in done] == [None]
    assert holds.admission.depth("m") == 3
    for task in flood:
        task.cancel()
    await holds.desk.close()
    await settled(holds.desk)


async def test_one_that_could_go_at_once_pushes_nobody_out() -> None:
    registry = fleet("a")
    registry.add(next(iter(fleet("z", model="other").members.values())))  # never asked yet: who wants it waits
    registry.set_ready("a", True)
    admission = gate(registry, queue_requests=2)
    waiting = [asyncio.create_task(waited(admission, who=entrant("other", "flood"))) for _ in range(2)]
    await turns()
    task = asyncio.create_task(admission.admit(entrant(tenant="calm", where=Picky()), lambda _: None))
    await turns()
    were_done = [each.done() for each in waiting]
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert were_done == [False, False], "its place was taken for one that needs none"
    assert await asyncio.wait_for(task, 5) is None


async def test_nobody_waits_behind_one_that_is_held() -> None:
    holds = Holds()
    held = [await holds.ask(Picky()) for _ in range(20)]
    for number in range(3):
        await holds.desk.ask(f"free {number}")
    assert holds.desk.order == ["free 0", "free 1", "free 2"]
    assert not any(task.done() for task in held)
    for task in held:
        task.cancel()
    await holds.desk.close()
    await settled(holds.desk)


@pytest.mark.parametrize(("engines", "looks"), [(1, 16), (8, 16), (64, 2), (300, 1)])
async def test_a_look_at_the_queue_ends_after_some_that_can_go_nowhere(engines: int, looks: int) -> None:
    holds, wheres = Holds(None, *[f"e{number}" for number in range(engines)]), [Picky() for _ in range(40)]
    held = [await holds.ask(where) for where in wheres]
    before = sum(where.looks for where in wheres)
    await holds.see(Prefilled("x", 1, "a", "m", 0.1))
    assert sum(where.looks for where in wheres) - before == looks
    for task in held:
        task.cancel()
    await settled(holds.desk)


async def test_a_hundred_that_wait_for_a_busy_engine_hide_none_that_waits_for_another() -> None:
    holds = Holds(None, "a", "b", requests=200)
    busy = [await holds.ask(Picky(0.1)) for _ in range(100)]
    where = Picky(9.0, "b")
    task = await holds.ask(where)
    where.good = True
    await holds.see(finished("x"))
    assert task.done(), "its engine is free"
    for each in busy:
        each.cancel()
    await settled(holds.desk)


async def test_further_answers_do_not_wait_behind_those_that_are_held() -> None:
    holds = Holds(2)
    held = [await holds.ask(Picky()) for _ in range(20)]
    for name in "12":
        await holds.desk.ask(name)
    answers = [asyncio.create_task(holds.admission.room("m", choose, 60.0, first=False)) for _ in range(2)]
    await turns()
    assert not any(answer.done() for answer in answers)
    for name, answer in zip("12", answers, strict=True):
        await holds.desk.end(name)
        await turns()
        assert answer.done(), "there is room"
        holds.desk.emit(AttemptStarted(f"{name} more", 1, "a", "m", 0.0))
    for name in "12":
        holds.desk.emit(finished(f"{name} more"))
    for task in held:
        task.cancel()
    await holds.desk.close()
    await settled(holds.desk)


async def test_the_least_work_goes_first_of_those_that_are_held() -> None:
    holds = Holds()
    wheres = {name: Picky(prefill_s) for name, prefill_s in (("long", 9.0), ("short", 0.5), ("middle", 4.0))}
    tasks = {name: await holds.ask(where) for name, where in wheres.items()}
    wheres["long"].good = wheres["middle"].good = wheres["short"].good = True
    order: list[str] = []
    for name, task in tasks.items():
        task.set_name(name)
        task.add_done_callback(lambda done: order.append(done.get_name()))
    await holds.see(Prefilled("x", 1, "a", "m", 0.1))
    await asyncio.gather(*tasks.values())
    await turns()
    assert order == ["short", "middle", "long"]
    await settled(holds.desk)


@pytest.mark.parametrize("down_wait_s", [0.0, 30.0])
async def test_all_engines_go_down_while_some_are_held(down_wait_s: float) -> None:
    registry = fleet("a")
    admission = gate(registry, queue_requests=9, ready=True, down_wait_s=down_wait_s)
    wheres = [Picky() for _ in range(3)]
    tasks = [asyncio.create_task(admission.admit(entrant(where=where), lambda _: None)) for where in wheres]
    await turns()
    registry.set_ready("a", False)
    await turns(8)
    if down_wait_s:
        assert not any(task.done() for task in tasks)
        for where in wheres:
            where.good = True
        registry.set_ready("a", True)
        assert [engine_of(each) for each in await asyncio.gather(*tasks)] == ["a"] * 3
    else:
        assert await asyncio.gather(*tasks) == [None] * 3
        assert (await admission.room("m", choose, 60.0, first=True)).engine is None
        assert admission.refusal("m").reason == "no_engine"
    await turns()
    assert (admission.depth("m"), admission.view("m")) == (0, registry.view("m"))


async def test_one_that_was_held_when_its_engine_filled_up_is_refused_like_any_other() -> None:
    holds = Holds(1, wait_s=0.1)
    task = await holds.ask(Picky())
    await holds.desk.ask("runs")
    await holds.see(Prefilled("x", 1, "a", "m", 0.1))  # it is looked at: there is no room at all now
    with pytest.raises(Rejected) as caught:
        await task
    assert caught.value.reason == "queue_timeout"
    await holds.desk.close()
    await settled(holds.desk)


async def test_one_that_would_wait_longer_than_it_may_is_told_at_once() -> None:
    desk = limited(1, requests=700)
    await desk.ask("0")
    for number in range(1, 700):
        await desk.ask(str(number))
    for number in range(8):
        await asyncio.sleep(0.01)  # so that one leaves no sooner than this after another
        await desk.end(str(number))
    for refused_at in (desk.admission.check, None):
        with pytest.raises(Rejected) as caught:
            refused_at(Place("m")) if refused_at else await waited(desk.admission)
        assert (caught.value.status, caught.value.reason) == (503, "wait_too_long")
        assert 5 < (caught.value.retry_after_s or 0) <= 30
    await desk.ask("first", priority=1)  # nobody is before this one
    assert not desk.tasks["first"].done()
    await desk.close()


class Ride:
    """Requests on engines, chosen and charged by a real router, on a clock of the test's."""

    def __init__(self, *ids: str) -> None:
        self.now_s = 0.0
        self.registry = fleet(*ids, most_running=4)
        self.admission = gate(self.registry, queue_requests=6, queue_wait_s=60, ready=True)
        self.guide = Guide("m", Tuning(hold_s=0.05, chunk_tokens=16), lambda: self.now_s, random.Random(3))
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.steps: dict[str, asyncio.Queue[str]] = {}
        self.errors: list[str] = []

    @property
    def waiting(self) -> int:
        return sum(not task.done() for task in self.tasks.values()) - len(self.steps)

    async def ask(self, name: str, prompt: int, chunks: int, tenant: str) -> None:
        keys = token_chain(range(prompt << 20, (prompt << 20) + 16 * chunks), 16)
        route = Route(self.guide, Asked(keys, 16 * chunks + 1), name)
        self.tasks[name] = asyncio.create_task(self._serve(name, route, tenant))
        await turns()

    async def _serve(self, name: str, route: Route, tenant: str) -> None:
        try:
            with closing(route):
                decision = await self.admission.admit(entrant(tenant=tenant, where=route.enters), lambda _: None)
                decision = decision or await self.admission.room("m", route.first, 60.0, first=True)
                number = 0
                while decision.engine is not None:
                    number += 1
                    end = await self._run(name, number, route, decision.engine)
                    if end != "fail":
                        return
                    elsewhere = partial(route.next, avoid={decision.engine})
                    decision = await self.admission.room("m", elsewhere, 60.0, first=True)
                self.errors.append(name)
        except Rejected as error:
            self.errors.append(error.reason)
        finally:
            self._emit(finished(name))

    async def _run(self, name: str, number: int, route: Route, engine: str) -> str:
        self._emit(AttemptStarted(name, number, engine, "m", 0.0))
        steps = self.steps[name] = asyncio.Queue()
        try:
            while (step := await steps.get()) == "first":
                route.prefilled()
                self._emit(Prefilled(name, number, engine, "m", 0.1))
            if step == "end":
                route.served(16, 9, None, ())
        finally:
            del self.steps[name]
            route.close()
        if step == "fail":
            self._emit(AttemptFailed(name, number, engine, "broke", "m"))
        return step

    def _emit(self, event: Event) -> None:
        self.registry.running.apply(event)
        self.admission(event)


async def test_one_that_needs_much_memory_is_passed_until_its_wait_has_made_up_for_its_work_and_no_longer() -> None:
    ride = Ride("a")
    ride.guide.router.capacity("a", 16 * 120)
    for number in range(3):  # each needs 10 of the 120, and 16 for its answer
        await ride.ask(f"small {number}", number, 10, "t")
        ride.steps[f"small {number}"].put_nowait("first")
        await turns()
    await ride.ask("big", 7, 60, "t")
    assert "big" not in ride.steps, "there is no memory for it"
    ride.steps["small 0"].put_nowait("end")
    await turns(8)
    await ride.ask("small 3", 3, 10, "t")
    assert "small 3" in ride.steps, "it is in nobody's way yet"
    ride.steps["small 3"].put_nowait("first")
    await asyncio.sleep(0.4)  # of work it has 960 tokens of 0.1 ms
    ride.steps["small 1"].put_nowait("end")
    await turns(8)
    await ride.ask("small 4", 4, 10, "t")
    await ride.ask("small 5", 5, 1, "u")
    assert {*ride.steps} == {"small 2", "small 3"}, "it was passed once more"
    ride.steps["small 2"].put_nowait("end")
    await turns(8)
    assert "big" in ride.steps
    for name in ("small 3", "big", "small 4", "small 5"):
        ride.steps[name].put_nowait("end")
        await turns(8)
    assert ride.errors == []
    assert ride.guide.router.idle
    assert ride.admission.idle


class HeldMachine(RuleBasedStateMachine):
    """Requests are held, let go, pushed out, fail and leave, while engines come and go: what is charged is what runs, and at the
    end nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.numbers = count(1)

        async def made() -> Ride:
            return Ride("a", "b")

        self.ride = self.runner.run(made())

    @rule(prompt=st.integers(0, 3), chunks=st.sampled_from([0, 1, 100, 400]), tenant=st.sampled_from("ab"))
    def ask(self, prompt: int, chunks: int, tenant: str) -> None:
        self.runner.run(self.ride.ask(str(next(self.numbers)), prompt, chunks, tenant))

    @precondition(lambda self: self.ride.steps)
    @rule(data=st.data(), how=st.lists(st.sampled_from(["first", "end", "fail"]), min_size=1, max_size=3))
    def go_on(self, data: st.DataObject, how: list[str]) -> None:
        steps = self.ride.steps[data.draw(st.sampled_from(sorted(self.ride.steps)))]
        for each in how:
            steps.put_nowait(each)

    @precondition(lambda self: any(not task.done() for task in self.ride.tasks.values()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        alive = [name for name, task in self.ride.tasks.items() if not task.done()]
        self.ride.tasks[data.draw(st.sampled_from(alive))].cancel()

    @rule(seconds=st.floats(0, 5))
    def later(self, seconds: float) -> None:
        self.ride.now_s += seconds

    @rule(engine=st.sampled_from("ab"), ready=st.booleans())
    def turn(self, engine: str, ready: bool) -> None:
        async def change() -> None:
            self.ride.registry.set_ready(engine, ready)

        self.runner.run(change())

    @invariant()
    def what_is_charged_runs(self) -> None:
        ride = self.ride
        self.runner.run(turns(40))
        assert ride.guide.router.open == len(ride.steps) == sum(ride.registry.running.counts.values())
        assert ride.admission.depth("m") <= ride.waiting
        assert ride.admission.fill <= 1
        assert ride.admission.view("m") == ride.registry.view("m"), "room is kept for nobody"
        if not ride.steps and any(engine.usable for engine in ride.registry.view("m").engines):
            assert not ride.waiting, "they wait for an engine on which nothing runs"

    def teardown(self) -> None:
        async def end() -> None:
            for task in self.ride.tasks.values():
                task.cancel()
            await asyncio.gather(*self.ride.tasks.values(), return_exceptions=True)
            await turns(8)
            assert self.ride.guide.router.idle
            assert self.ride.admission.idle
            assert self.ride.registry.running.counts == {}
            assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

        self.runner.run(end())
        self.runner.close()


HeldMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestHeld = HeldMachine.TestCase


# ---- whatever happens, nothing is lost ------------------------------------------------------------------------------------


class AdmissionMachine(RuleBasedStateMachine):
    """Requests come, run, fail, leave at any point, and engines come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.loop = self.runner.get_loop()
        self.numbers = count(1)
        self.up = True

        async def made() -> Desk:
            return limited(2, requests=4, wait_s=60)

        self.desk = self.runner.run(made())

    @property
    def alive(self) -> list[str]:
        return [name for name, task in self.desk.tasks.items() if not task.done()]

    @property
    def inside(self) -> list[str]:
        return [name for name in self.desk.order if name in self.alive]

    @property
    def running(self) -> list[str]:
        """Those that can be ended: their first answer runs."""
        return sorted(self.desk.done)

    @rule(tenant=st.sampled_from("ab"), priority=st.integers(0, 1), answers=st.integers(1, 3))
    def ask(self, tenant: str, priority: int, answers: int) -> None:
        self.runner.run(self.desk.ask(str(next(self.numbers)), tenant, priority=priority, answers=answers))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["ok", "fail", "retry", "late"]))
    def end(self, data: st.DataObject, how: str) -> None:
        self.runner.run(self.desk.end(data.draw(st.sampled_from(self.running)), how))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.runner.run(self.desk.leave(data.draw(st.sampled_from(self.alive))))

    @precondition(lambda self: self.running and len(self.alive) > len(self.inside))
    @rule(data=st.data())
    def leave_as_it_is_let_in(self, data: st.DataObject) -> None:
        """The same step ends one that runs and cancels those that wait, in either order."""
        ending = data.draw(st.sampled_from(self.running))
        leaving = data.draw(st.sampled_from([name for name in self.alive if name not in self.inside]))
        first = data.draw(st.booleans())

        async def both() -> None:
            if first:
                self.desk.tasks[leaving].cancel()
            self.desk.done.pop(ending).set_result("ok")
            await turns(data.draw(st.integers(0, 3)))
            if not first:
                self.desk.tasks[leaving].cancel()
            await turns(8)

        self.runner.run(both())

    @rule()
    def turn(self) -> None:
        self.up = not self.up

        async def change() -> None:
            self.desk.registry.set_ready("a", self.up)
            await turns()

        self.runner.run(change())

    @invariant()
    def nothing_is_lost(self) -> None:
        self.runner.run(turns(80))  # further answers come and end
        waiting = len(self.alive) - len(self.inside)
        assert self.desk.admission.depth("m") == waiting <= 4
        assert self.desk.admission.view("m") == self.desk.registry.view("m"), "room is kept for nobody"
        assert self.desk.most <= 2
        if self.up and waiting:
            assert self.desk.registry.running.count("m", "a") == 2, "there is room, and some wait"
        if not self.up:
            assert not waiting

    def teardown(self) -> None:
        async def end() -> None:
            await self.desk.close()
            await settled(self.desk)

        self.runner.run(end())
        self.runner.close()


AdmissionMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestAdmission = AdmissionMachine.TestCase
