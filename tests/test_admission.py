"""Requests pass, wait or are sent away; a waiting one that leaves costs nothing."""

import asyncio
from collections import Counter
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.wiring import fleet, lose

from gateway.admission import Admission, QueueRules
from gateway.errors import EngineRefused, GatewayError, Rejected
from gateway.events import AttemptFailed, AttemptServed, AttemptStarted, ClientGone, Event, Finished
from gateway.fleet.registry import Registry
from gateway.routing.policy import choose
from gateway.routing.queue import Place
from gateway.timer import Watchdog
from gateway.waiting import Entrant


def gate(
    registry: Registry, *, queue_requests: int = 2, queue_wait_s: float = 5.0, down_wait_s: float = 0.0, ready: bool = False
) -> Admission:
    if ready:
        for engine in registry.members:
            registry.set_ready(engine, True)
    return Admission(registry, QueueRules(queue_requests, queue_wait_s, down_wait_s), Watchdog())


def entrant(model: str = "m", tenant: str = "default", *, priority: int = 0, ends_at: float = 1e9) -> Entrant:
    return Entrant(Place(model, tenant, priority), ends_at)


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
    registry = fleet("a")
    waiting = asyncio.create_task(waited(gate(registry)))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    registry.set_ready("a", True)
    assert 0.02 < await waiting < 2


async def test_a_change_right_after_the_wait_began_is_not_missed() -> None:
    registry = fleet("a")
    waiting = asyncio.create_task(waited(gate(registry)))
    await asyncio.sleep(0)
    registry.set_ready("a", True)
    assert await waiting < 2


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
    assert await back < 2


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
    desk = limited(None, "a", "b")
    for name, rest_s in (("a", 20.0), ("b", 7.0)):
        desk.registry.visit(name).failed(refused(rest_s))
    with pytest.raises(Rejected) as caught:
        await waited(desk.admission)
    assert caught.value.reason == "engines_busy"
    assert 6 < (caught.value.retry_after_s or 0) <= 7
    desk = limited(1, "a", "b")
    await desk.ask("1")
    desk.registry.visit("b").failed(refused(0.1))
    waiting = asyncio.create_task(waited(desk.admission))
    await turns()
    assert not waiting.done()  # `a` is full
    assert 0.05 < await waiting < 2
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
    for number in range(21):
        await desk.ask(str(number))
    for number in range(3):
        await asyncio.sleep(0.2)
        await desk.end(str(number))
        await desk.ask(f"more {number}")
    with pytest.raises(Rejected) as caught:
        desk.admission.check(Place("m"))
    assert 2.0 < (caught.value.retry_after_s or 0) < 20.0  # 21 times some 0.2 s
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


async def settled(desk: Desk) -> None:
    """Nothing is held or waits any more, and no task is left."""
    await turns(8)
    assert desk.admission.depth("m") == 0
    assert desk.admission.view("m") == desk.registry.view("m"), "room is kept for nobody"
    assert desk.registry.running.counts == {}
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


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
