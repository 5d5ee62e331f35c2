"""Turns of tenants by weight and work: the bound on unfairness, against bookkeeping that is too simple to be wrong."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import count, islice, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.queue import FairQueue, Place
from gateway.routing.turns import LEAST_WORK_S, MOST_GONE

WEIGHTS = {"a": 1.0, "b": 1.0, "c": 2.5, "d": 0.2}
WORK = st.sampled_from([0.0, 0.001, 0.1, 1.0, 30.0]) | st.floats(0.0, 50.0)
ROUNDING = 1e-6

tenants = st.sampled_from(sorted(WEIGHTS))


def place(tenant: str, priority: int = 0) -> Place:
    return Place("m", tenant, priority, WEIGHTS.get(tenant, 1.0))


def charge(work_s: float) -> float:
    return max(work_s, LEAST_WORK_S)


@dataclass
class Gap:
    """How much more by its weight one tenant got than another since both wait: now, and at the least until now."""

    now: float = 0.0
    least: float = 0.0

    def add(self, amount: float) -> None:
        self.now += amount
        self.least = min(self.least, self.now)


class FairMachine(RuleBasedStateMachine):
    """Whatever comes, leaves and is reworked, and is taken in its turn or not: what each tenant gets of work."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.numbers = count()
        self.has: dict[str, dict[int, float]] = defaultdict(dict)  # work by number, by tenant
        self.largest: dict[str, float] = defaultdict(float)  # charge by weight
        self.gaps: dict[tuple[str, str], Gap] = {}  # of the first over the second, which was not passed over

    def whose(self, one: int) -> str:
        return next(tenant for tenant, has in self.has.items() if one in has)

    def expects(self, tenant: str, work_s: float) -> None:
        self.largest[tenant] = max(self.largest[tenant], charge(work_s) / WEIGHTS[tenant])

    @rule(tenant=tenants, works=st.lists(WORK, min_size=1, max_size=4), now_s=st.floats(0, 100))
    def push(self, tenant: str, works: list[float], now_s: float) -> None:
        for work_s in works:
            one = next(self.numbers)
            self.queue.push(one, place(tenant), work_s=work_s, now_s=now_s)
            self.has[tenant][one] = work_s
            self.expects(tenant, work_s)

    @precondition(lambda self: len(self.queue) > 0)
    @rule(turns=st.integers(1, 6))
    def take_in_turn(self, turns: int) -> None:
        for _ in range(turns):
            first = self.queue.first("m")
            if first is not None:
                self.taken(first)

    @precondition(lambda self: len(self.queue) > 0)
    @rule(skipped=st.integers(1, 8))
    def take_out_of_turn(self, skipped: int) -> None:
        order = list(self.queue.order("m"))
        one = order[min(skipped, len(order) - 1)]
        by_turn = list(dict.fromkeys(self.whose(each) for each in order))
        for passed_over in by_turn[: by_turn.index(self.whose(one))]:
            for pair in [pair for pair in self.gaps if pair[1] == passed_over]:
                self.gaps[pair] = Gap()
        self.taken(one)

    def taken(self, one: int) -> None:
        tenant = self.whose(one)
        self.queue.take(one)
        served = charge(self.has[tenant].pop(one)) / WEIGHTS[tenant]
        for (more, less), gap in self.gaps.items():
            if tenant in (more, less):
                gap.add(served if tenant == more else -served)
        self.bounded()
        self.pairs()

    @precondition(lambda self: len(self.queue) > 0)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(sorted(self.queue.waiting("m"))))
        self.queue.remove(one)
        del self.has[self.whose(one)][one]

    @precondition(lambda self: len(self.queue) > 0)
    @rule(data=st.data(), work_s=WORK)
    def rework(self, data: st.DataObject, work_s: float) -> None:
        one = data.draw(st.sampled_from(sorted(self.queue.waiting("m"))))
        self.queue.rework(one, work_s)
        self.has[self.whose(one)][one] = work_s
        self.expects(self.whose(one), work_s)

    def bounded(self) -> None:
        for (more, less), gap in self.gaps.items():
            assert gap.now - gap.least <= self.largest[more] + self.largest[less] + ROUNDING, (more, less)

    @invariant()
    def pairs(self) -> None:
        waits = [tenant for tenant, has in self.has.items() if has]
        both = set(permutations(waits, 2))
        self.gaps = {pair: self.gaps.get(pair, Gap()) for pair in both}
        assert self.queue.remembered <= len(WEIGHTS)
        assert len(self.queue) == sum(map(len, self.has.values()))


FairMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFair = FairMachine.TestCase


class InTurnMachine(FairMachine):
    """The same without any that is passed over: the bound holds both ways over every span."""

    @precondition(lambda self: False)
    @rule()
    def take_out_of_turn(self) -> None:
        raise AssertionError


InTurnMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFairInTurn = InTurnMachine.TestCase

PUSHES = st.lists(st.tuples(tenants, st.integers(0, 1), WORK, st.floats(0, 60)), max_size=40)


def queued(pushes: list[tuple[str, int, float, float]], turns: int) -> FairQueue[int]:
    """After some turns, half of the pushes before them."""
    queue: FairQueue[int] = FairQueue()
    for number, (tenant, priority, work_s, now_s) in enumerate(pushes):
        if number == len(pushes) // 2:
            drain(queue, turns)
        queue.push(number, place(tenant, priority), work_s=work_s, now_s=now_s)
    return queue


def drain(queue: FairQueue[int], turns: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < turns and (first := queue.first("m")) is not None:
        queue.take(first)
        taken.append(first)
    return taken


@given(PUSHES, st.integers(0, 10))
def test_the_order_is_that_in_which_all_would_be_taken(pushes: list[tuple[str, int, float, float]], turns: int) -> None:
    queue = queued(pushes, turns)
    order = list(queue.order("m"))
    assert sorted(order) == sorted(queue.waiting("m"))
    assert drain(queue, 1000) == order
    assert (len(queue), queue.remembered, queue.models) == (0, 0, ())


@given(PUSHES, st.integers(0, 10), st.data())
def test_each_is_given_once_whatever_is_done_with_it(
    pushes: list[tuple[str, int, float, float]], turns: int, data: st.DataObject
) -> None:
    queue = queued(pushes, turns)
    waiting, given, left = set(queue.waiting("m")), list[int](), set[int]()
    for one in queue.order("m"):
        given.append(one)
        done = data.draw(st.sampled_from(["take", "remove", "rework", "nothing"]))
        if done == "take":
            queue.take(one)
        elif done == "remove":
            queue.remove(one)
        elif done == "rework":
            queue.rework(one, data.draw(WORK))
        if done in ("rework", "nothing"):
            left.add(one)
    assert len(given) == len(waiting)
    assert set(given) == waiting
    assert set(queue.waiting("m")) == left == set(queue.order("m"))


@given(PUSHES, st.integers(0, 10))
def test_all_taken_as_they_are_given_are_taken_in_their_turns(pushes: list[tuple[str, int, float, float]], turns: int) -> None:
    queue, given = queued(pushes, turns), []
    expected = list(queue.order("m"))
    for one in queue.order("m"):
        assert queue.first("m") == one
        queue.take(one)
        given.append(one)
    assert given == expected


def test_those_without_a_place_of_one_tenant_do_not_stop_the_others() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number in range(100):
        queue.push(("a", number), place("a"), work_s=1.0)
    for number in range(30):
        queue.push(("b", number), place("b"), work_s=1.0)
    for _ in range(20):  # while nothing of `a` has a place
        tried = list(islice(queue.order("m"), 16))
        assert tried[0] == ("a", 0)
        assert Counter(tenant for tenant, _ in tried) == {"a": 8, "b": 8}
        queue.take(tried[1])
    order = list(islice(queue.order("m"), 6))
    assert [tenant for tenant, _ in order] == ["a", "b", "a", "b", "a", "b"]  # it is next, and has no turn more than that
    taken = []
    for _ in order:
        first = queue.first("m")
        assert first is not None
        queue.take(first)
        taken.append(first)
    assert taken == order


@given(PUSHES, st.integers(0, 10), tenants, st.integers(0, 1))
def test_what_is_ahead_of_a_newcomer_is_as_predicted(
    pushes: list[tuple[str, int, float, float]], turns: int, tenant: str, priority: int
) -> None:
    queue = queued(pushes, turns)
    here, waits = place(tenant, priority), set(queue.waiting("m"))
    predicted = queue.ahead("m", here)
    assert predicted.work_s == queue.ahead_s("m", here)
    queue.push(-1, here, work_s=1e6)  # the last of its tenant
    before = list(queue.order("m"))
    before = before[: before.index(-1)]
    charges = {number: charge(work_s) for number, (_, _, work_s, _) in enumerate(pushes)}
    rough_s, rough = 0.0, 0
    for other in WEIGHTS.keys() - {tenant}:
        of_other = [charges[one] for one in waits if pushes[one][:2] == (other, priority)]
        rough_s += max(of_other, default=0.0)
        rough += len(of_other)
    assert abs(predicted.work_s - sum(charges[one] for one in before)) <= rough_s + ROUNDING
    assert len(before) - rough - ROUNDING <= predicted.requests <= len(before) + rough + ROUNDING


def test_what_is_ahead_where_all_are_alike() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(40):
        queue.push(number, Place("m", "abcd"[number % 4]), work_s=2.0)
    assert queue.ahead("m", Place("m", "e")) == (4.0, 8.0)  # each other has one turn first
    assert queue.ahead("m", Place("m", "a")) == (40.0, 80.0)
    assert queue.ahead("m", Place("m", "a", 1)) == (0.0, 0.0)
    assert queue.ahead("m", Place("m", "a", -1)) == (40.0, 80.0)
    assert queue.ahead("n", Place("n", "a")) == (0.0, 0.0)
    assert queue.ahead_s("m", Place("m", "e")) == 8.0


def test_what_is_ahead_of_a_newcomer_where_very_many_tenants_wait() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(6000):
        queue.push(number, Place("m", f"t{number % 2000}"), work_s=1.0 + number % 7)
    for tenant in ("new", "t77"):
        queue.push(-1, Place("m", tenant), work_s=1e6)
        truth = list(queue.order("m")).index(-1)
        queue.remove(-1)
        assert queue.ahead("m", Place("m", tenant)).requests == pytest.approx(truth, rel=0.1)


def test_tenants_that_always_wait_get_work_by_their_weights() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    weights, works = {"a": 3.0, "b": 1.0, "c": 0.5}, {"a": 0.3, "b": 2.0, "c": 0.1}
    numbers, got = count(), Counter[str]()
    for tenant, weight in weights.items():
        for _ in range(2):
            queue.push((tenant, next(numbers)), Place("m", tenant, weight=weight), work_s=works[tenant])
    for _ in range(5000):
        first = queue.first("m")
        assert first is not None
        queue.take(first)
        tenant = first[0]
        got[tenant] += 1
        queue.push((tenant, next(numbers)), Place("m", tenant, weight=weights[tenant]), work_s=works[tenant])
    shares = [got[tenant] * works[tenant] / weights[tenant] for tenant in weights]
    assert max(shares) - min(shares) <= 2.0 + 0.3 / 3  # the largest of two


def test_one_that_comes_back_after_a_rest_has_no_credit_for_it() -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number in range(300):
        queue.push(("a", number), place("a"), work_s=1.0)
    queue.push(("b", 0), place("b"), work_s=1.0)
    for _ in range(200):
        first = queue.first("m")
        assert first is not None
        queue.take(first)
    for number in range(1, 50):
        queue.push(("b", number), place("b"), work_s=1.0)
    order = [tenant for tenant, _ in islice(queue.order("m"), 20)]
    assert 9 <= order.count("b") <= 11


def test_one_that_waits_with_one_at_a_time_gets_no_more_than_its_share() -> None:
    """It has nobody waiting when the next turn is found, and is as soon as that is over."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for number in range(1000):
        queue.push(("a", number), place("a"), work_s=1.0)
    numbers, work = count(), Counter[str]()
    queue.push(("b", next(numbers)), place("b"), work_s=10.0)
    for _ in range(500):
        first = queue.first("m")
        assert first is not None
        queue.take(first)
        work[first[0]] += 10 if first[0] == "b" else 1
        if first[0] == "b":
            queue.push(("b", next(numbers)), place("b"), work_s=10.0)
    assert abs(work["a"] - work["b"]) <= 11


def test_one_that_leaves_and_comes_back_has_its_turn_no_sooner() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("b1", place("b"), work_s=10.0)
    for number in range(50):
        queue.push(f"a{number}", place("a"), work_s=1.0)
    queue.take("b1")
    for number in range(2, 5):
        queue.push(f"b{number}", place("b"), work_s=1.0)
        turn = list(queue.order("m")).index(f"b{number}")
        queue.remove(f"b{number}")
        assert turn == 10  # when the other has had ten seconds too
    assert queue.remembered == 2
    for number in range(11):
        queue.take(f"a{number}")
    assert queue.remembered == 1


@pytest.mark.parametrize("work_s", [0.0, 0.1, 1.0])
def test_names_that_are_always_new_do_not_keep_one_from_its_turn(work_s: float) -> None:
    """While ten others wait it has an eleventh of all work."""
    queue: FairQueue[str] = FairQueue()
    queue.push("heavy", place("a"), work_s=5.0)
    queue.push("next", place("a"), work_s=5.0)
    for number in range(10):
        queue.push(f"{number}", Place("m", f"t{number}"), work_s=work_s)
    queue.take("heavy")
    turns = 0
    while (first := queue.first("m")) != "next":
        assert first is not None
        queue.take(first)
        turns += 1
        queue.push(f"{turns + 10}", Place("m", f"t{turns + 10}"), work_s=work_s)
        assert turns * charge(work_s) <= 11 * (5.0 + charge(work_s))
    assert turns * charge(work_s) >= 5.0


@pytest.mark.parametrize("in_turn", [True, False])
def test_nothing_grows_with_names_that_come_once(in_turn: bool) -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("stays", place("a"), work_s=1000.0)
    for number in range(20_000):
        queue.push(f"{number}", Place("m", f"t{number}"), work_s=1.0 + number % 7)
        if in_turn and (first := queue.first("m")) is not None:
            queue.take(first)
            if first == "stays":
                queue.push("stays", place("a"), work_s=0.0)
        else:
            queue.take(f"{number}")
        if number % 1000 == 0:
            assert queue.remembered <= queue.count("m") + MOST_GONE
    assert queue.remembered <= queue.count("m") + MOST_GONE
    for one in list(queue.waiting("m")):
        queue.remove(one)
    assert queue.remembered == 0


def test_the_smallest_goes_first_until_another_has_waited_for_it() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("large", place("a"), work_s=10.0, now_s=100.0)
    queue.push("small", place("a"), work_s=1.0, now_s=129.9)
    queue.push("late", place("a"), work_s=1.0, now_s=130.1)
    assert list(queue.order("m")) == ["small", "large", "late"]
    queue.push("none", place("a"), work_s=0.0, now_s=133.0)
    assert queue.first("m") == "none"


def test_work_that_is_predicted_anew_keeps_its_age() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("old", place("a"), work_s=10.0, now_s=100.0)
    queue.push("new", place("a"), work_s=1.0, now_s=110.0)
    assert queue.first("m") == "new"
    queue.rework("old", 3.9)
    assert queue.first("m") == "old"
    queue.rework("old", 4.1)
    assert queue.first("m") == "new"
    assert queue.ahead_s("m", place("a")) == pytest.approx(5.1)


def test_of_two_alike_the_one_that_came_first_goes_first() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(10):
        queue.push(number, place("a"))
    assert list(queue.order("m")) == list(range(10))


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_is_above_nothing(weight: float) -> None:
    with pytest.raises(ValueError, match="weight of a tenant"):
        Place("m", "a", weight=weight)


@pytest.mark.parametrize("work_s", [float("inf"), float("nan")])
def test_work_is_a_number(work_s: float) -> None:
    queue: FairQueue[str] = FairQueue()
    with pytest.raises(ValueError, match="number of seconds"):
        queue.push("one", place("a"), work_s=work_s)
    assert (len(queue), queue.models) == (0, ())
    queue.push("one", place("a"), work_s=-1.0)
    with pytest.raises(ValueError, match="number of seconds"):
        queue.rework("one", work_s)
    assert list(queue.order("m")) == ["one"]


def test_nobody_has_a_turn_that_does_not_wait() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("one", place("a"))
    queue.take("one")
    with pytest.raises(KeyError):
        queue.take("one")
    with pytest.raises(KeyError):
        queue.rework("one", 1.0)
