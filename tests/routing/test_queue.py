"""Whose turn it is, against a model that is too simple to be wrong."""

from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.queue import FairQueue, Pace, Place

MODELS, TENANTS = ("m", "n"), ("a", "b", "c")


@dataclass
class Naive:
    """All that wait, in the order of coming, and when each tenant had its last turn, or began to wait after it had nobody."""

    waiting: list[tuple[int, Place]] = field(default_factory=list)
    turns: dict[tuple[str, int, str], int] = field(default_factory=dict)
    clock: int = 0

    def push(self, one: int, place: Place) -> None:
        lane = (place.model, place.priority, place.tenant)
        if not any((each.model, each.priority, each.tenant) == lane for _, each in self.waiting):
            self.clock += 1
            self.turns[lane] = self.clock
        self.waiting.append((one, place))

    def take(self, model: str) -> int | None:
        mine = [(one, place) for one, place in self.waiting if place.model == model]
        if not mine:
            return None
        top = max(place.priority for _, place in mine)
        one, place = min(
            ((one, place) for one, place in mine if place.priority == top),
            key=lambda each: (self.turns[model, top, each[1].tenant], self.waiting.index(each)),
        )
        self.waiting.remove((one, place))
        self.clock += 1
        self.turns[model, top, place.tenant] = self.clock
        return one

    def yields(self, newcomer: Place) -> int | None:
        if not self.waiting:
            return None
        lowest = min(place.priority for _, place in self.waiting)
        tenants = [place.tenant for _, place in self.waiting if place.priority == lowest]
        most = max(tenants.count(tenant) for tenant in tenants)
        fewer = newcomer.priority > lowest or (newcomer.priority == lowest and tenants.count(newcomer.tenant) + 1 < most)
        if not fewer:
            return None
        newest = {
            tenant: [one for one, place in self.waiting if place.priority == lowest and place.tenant == tenant][-1]
            for tenant in tenants
            if tenants.count(tenant) == most
        }
        return next(iter(newest.values())) if len(newest) == 1 else -1  # any of them


class QueueMachine(RuleBasedStateMachine):
    """Everything that may happen to a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.naive = Naive()
        self.numbers = count(1)

    @rule(model=st.sampled_from(MODELS), tenant=st.sampled_from(TENANTS), priority=st.integers(-1, 1))
    def push(self, model: str, tenant: str, priority: int) -> None:
        place, one = Place(model, tenant, priority), next(self.numbers)
        self.queue.push(one, place)
        self.naive.push(one, place)

    @rule(model=st.sampled_from(MODELS))
    def take(self, model: str) -> None:
        first = self.queue.first(model)
        assert self.queue.take(model) == first == self.naive.take(model)

    @precondition(lambda self: self.naive.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.naive.waiting))
        self.naive.waiting.remove(entry)
        self.queue.remove(entry[0])
        self.queue.remove(entry[0])  # twice is once

    @rule(tenant=st.sampled_from(TENANTS), priority=st.integers(-2, 2))
    def yields(self, tenant: str, priority: int) -> None:
        place = Place("m", tenant, priority)
        found, wanted = self.queue.yields(place), self.naive.yields(place)
        assert (found is None) == (wanted is None)
        if wanted not in (None, -1):
            assert found == wanted

    @invariant()
    def same(self) -> None:
        assert len(self.queue) == len(self.naive.waiting)
        assert set(self.queue.models) == {place.model for _, place in self.naive.waiting}
        for model in MODELS:
            wanted = {one for one, place in self.naive.waiting if place.model == model}
            assert set(self.queue.waiting(model)) == wanted
            assert self.queue.count(model) == len(wanted)


QueueMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase


def test_a_tenant_with_fifty_times_as_many_makes_the_other_wait_its_turn_only() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number in range(500):
        queue.push(("a", number), Place("m", "a"))
    for number in range(10):
        queue.push(("b", number), Place("m", "b"))
    order = [queue.take("m") for _ in range(20)]
    assert order == [(tenant, number) for number in range(10) for tenant in ("a", "b")]


def test_a_full_queue_makes_room_for_a_tenant_with_fewer_until_they_have_the_same() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(6):
        queue.push(number, Place("m", "a"))
    for number, newest in ((10, 5), (11, 4)):
        assert queue.yields(Place("m", "b")) == newest
        queue.remove(newest)
        queue.push(number, Place("m", "b"))
    assert queue.yields(Place("m", "b")) == 3
    queue.remove(3)
    queue.push(12, Place("m", "b"))
    assert queue.yields(Place("m", "b")) is None
    assert queue.yields(Place("m", "a")) is None
    assert queue.yields(Place("m", "b", 1)) is not None


@given(st.lists(st.floats(0.001, 100), max_size=80), st.integers(0, 1000), st.floats(0, 1e6))
def test_a_time_to_come_back_is_within_its_bounds(gaps: list[float], ahead: int, later_s: float) -> None:
    pace, now_s = Pace(), 100.0
    pace.waits(now_s)
    for gap in gaps:
        now_s += gap
        pace.left(now_s, waiting=True)
    assert 1.0 <= pace.wait_s(ahead, now_s + later_s) <= 30.0


def test_a_time_to_come_back_follows_the_rate_while_anyone_waits() -> None:
    pace = Pace()
    assert pace.wait_s(100, 0.0) == 1.0  # nothing is known
    for turn in range(20):
        pace.waits(turn * 0.5)
        pace.left(turn * 0.5 + 0.5, waiting=True)
    assert pace.wait_s(9, 10.0) == 5.0
    pace.empty()
    assert pace.wait_s(9, 10_000.0) == 5.0  # an idle night is no slow queue
    pace.waits(10_000.0)
    assert pace.wait_s(9, 10_000.1) == 5.0
    assert pace.wait_s(9, 10_010.0) > 20.0  # but one that does not move is
