"""Whose turn it is, against a model that is too simple to be wrong."""

from dataclasses import dataclass, field
from itertools import count, islice
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.queue import FairQueue, Place

MODELS = ("m", "n")
WEIGHTS = {"a": 1.0, "b": 1.0, "c": 3.0}
TENANTS = sorted(WEIGHTS)


@dataclass
class Naive:
    """All that wait, in the order of coming."""

    waiting: list[tuple[int, Place]] = field(default_factory=list)

    def may_be_first(self, model: str) -> set[int]:
        """Who came first of its tenant, of the highest priority: all are as much work, and have waited as long."""
        mine = [(one, place) for one, place in self.waiting if place.model == model]
        top = max((place.priority for _, place in mine), default=0)
        firsts: dict[str, int] = {}
        for one, place in mine:
            if place.priority == top:
                firsts.setdefault(place.tenant, one)
        return set(firsts.values())

    def yields(self, newcomer: Place) -> set[int]:
        """Any of which may give up its place."""
        lowest = min((place.priority for _, place in self.waiting), default=inf)
        tenants = [place.tenant for _, place in self.waiting if place.priority == lowest]
        part = {tenant: tenants.count(tenant) / WEIGHTS[tenant] for tenant in tenants}
        most = max(part.values(), default=0.0)
        own = (tenants.count(newcomer.tenant) + 1) / newcomer.weight
        if newcomer.priority < lowest or (newcomer.priority == lowest and own >= most):
            return set()
        return {
            [one for one, place in self.waiting if place.priority == lowest and place.tenant == tenant][-1]
            for tenant in part
            if part[tenant] == most
        }


class QueueMachine(RuleBasedStateMachine):
    """Everything that may happen to a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.naive = Naive()
        self.numbers = count(1)

    @rule(model=st.sampled_from(MODELS), tenant=st.sampled_from(TENANTS), priority=st.integers(-1, 1))
    def push(self, model: str, tenant: str, priority: int) -> None:
        place, one = Place(model, tenant, priority, WEIGHTS[tenant]), next(self.numbers)
        self.queue.push(one, place)
        self.naive.waiting.append((one, place))

    @rule(model=st.sampled_from(MODELS))
    def take(self, model: str) -> None:
        first = self.queue.first(model)
        assert first == next(self.queue.order(model), None)
        if first is not None:
            assert first in self.naive.may_be_first(model)
            self.queue.take(first)
            self.naive.waiting = [entry for entry in self.naive.waiting if entry[0] != first]

    @precondition(lambda self: self.naive.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.naive.waiting))
        self.naive.waiting.remove(entry)
        self.queue.remove(entry[0])
        self.queue.remove(entry[0])  # twice is once

    @rule(tenant=st.sampled_from(TENANTS), priority=st.integers(-2, 2))
    def yields(self, tenant: str, priority: int) -> None:
        place = Place("m", tenant, priority, WEIGHTS[tenant])
        found, wanted = self.queue.yields(place), self.naive.yields(place)
        assert found in wanted if wanted else found is None

    @invariant()
    def same(self) -> None:
        assert len(self.queue) == len(self.naive.waiting)
        assert set(self.queue.models) == {place.model for _, place in self.naive.waiting}
        for model in MODELS:
            wanted = {one for one, place in self.naive.waiting if place.model == model}
            assert set(self.queue.waiting(model)) == wanted
            assert self.queue.count(model) == len(wanted)
            assert (self.queue.first(model) is None) == (not wanted)


QueueMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestQueue = QueueMachine.TestCase


def test_a_tenant_with_fifty_times_as_many_makes_the_other_wait_its_turn_only() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number in range(500):
        queue.push(("a", number), Place("m", "a"))
    for number in range(10):
        queue.push(("b", number), Place("m", "b"))
    assert list(islice(queue.order("m"), 20)) == [(tenant, number) for number in range(10) for tenant in ("a", "b")]


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


def test_a_full_queue_is_shared_by_weight() -> None:
    queue: FairQueue[int] = FairQueue()
    heavy, light = Place("m", "a", weight=3.0), Place("m", "b", weight=1.0)
    for number in range(12):
        queue.push(number, light)
    for number in range(12, 30):
        out = queue.yields(heavy)
        if out is None:
            break
        queue.remove(out)
        queue.push(number, heavy)
    of_heavy = sum(one >= 12 for one in queue.waiting("m"))
    assert (of_heavy, len(queue)) == (9, 12)
    assert queue.yields(light) is None


def test_a_higher_priority_goes_first_whatever_its_work_and_age() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("low", Place("m", priority=-1), now_s=0.0)
    queue.push("high", Place("m", priority=1), work_s=50.0, now_s=100.0)
    queue.push("middle", Place("m", "b"), work_s=1.0, now_s=50.0)
    assert list(queue.order("m")) == ["high", "middle", "low"]
    assert queue.ahead("m", Place("m", "c")) == (2.0, 51.0)


def test_the_order_goes_on_where_a_whole_priority_leaves_meanwhile() -> None:
    queue: FairQueue[str] = FairQueue()
    for priority in (3, 2, 1):
        queue.push(f"{priority}", Place("m", priority=priority))
    order = queue.order("m")
    assert next(order) == "3"
    queue.remove("2")
    assert list(order) == ["1"]
