"""Who of those that wait is asked where it would go, and which engines are whose."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.look import MOST_GIVEN, Look
from gateway.routing.queue import FairQueue, Place
from gateway.routing.turns import AGEING

PLACE = Place("m")


class Counting(FairQueue[int]):
    """It counts whom it was asked for."""

    given = 0

    def order(self, model: str) -> Iterator[int]:
        for one in super().order(model):
            self.given += 1
            yield one


def held(*engines: str, work_s: float = 1.0) -> FairQueue[int]:
    """A queue of one that is held for each, in this order."""
    queue = Counting()
    for number, engine in enumerate(engines):
        queue.push(number, PLACE, work_s=work_s, awaits=engine)
    return queue


def asked(queue: FairQueue[int], look: Look[int], engines: int = 8, now_s: float = 0.0) -> list[int]:
    """Those that are asked, where none has a place."""
    found = list[int]()
    for one in look.over(engines, now_s):
        found.append(one)
        look.missed(one, now_s)
    return found


def test_one_is_asked_for_each_engine_before_a_second_for_any() -> None:
    queue = held(*["a"] * 40, "b", "b", "c")
    assert asked(queue, Look(queue, "m")) == [0, 40, 42, *range(1, 14)]


def test_those_that_are_held_for_none_are_asked_in_their_turn() -> None:
    queue = held("a", "a", "b")
    queue.rework(1, None)
    assert queue.awaits(1) is None
    assert asked(queue, Look(queue, "m")) == [0, 1, 2]


@pytest.mark.parametrize(("engines", "looks"), [(1, 16), (8, 16), (16, 8), (64, 2), (300, 1)])
def test_a_look_is_bounded_by_what_the_fleet_makes_each_cost(engines: int, looks: int) -> None:
    queue = held(*[f"e{number}" for number in range(40)])
    assert len(asked(queue, Look(queue, "m"), engines)) == looks


def test_in_a_large_fleet_the_next_look_begins_where_the_last_one_ended() -> None:
    queue = held(*[f"e{number // 3}" for number in range(60)])
    look = Look(queue, "m")
    rounds = [asked(queue, look, 64) for _ in range(11)]
    assert [each for one in rounds[:10] for each in one] == list(range(0, 60, 3)), "one for each engine"
    assert rounds[10] == [0, 1], "and then all again"


def test_no_look_goes_through_all_of_a_long_queue() -> None:
    queue = held(*["a"] * 3 * MOST_GIVEN)
    assert asked(queue, Look(queue, "m")) == [0]
    assert isinstance(queue, Counting)
    assert queue.given <= MOST_GIVEN + 1


def test_those_that_go_are_not_counted_and_may_go_though_they_were_passed_over() -> None:
    queue = held(*["a"] * 30)
    look, gone = Look(queue, "m"), list[int]()
    for one in look.over(8, 0.0):
        if one:
            queue.take(one)
            gone.append(one)
        else:
            look.missed(one, 0.0)
    assert gone == list(range(1, 30))


def test_an_engine_is_claimed_by_one_that_has_waited_for_it_long_enough() -> None:
    queue = held("a", "a", "b", work_s=0.3)
    look = Look(queue, "m")
    early_s, late_s = 0.3 / AGEING - 0.01, 0.3 / AGEING
    assert [claimed for _, claimed in claims(queue, look, early_s)] == [set()] * 3
    assert queue.claimed(PLACE, early_s) == set()
    assert claims(queue, look, late_s) == [(0, set()), (2, {"a"}), (1, {"a"})]
    assert queue.claimed(PLACE, late_s) == {"a", "b"}
    for one in (0, 1):
        queue.rework(one, 0.0, "c")
    assert queue.claimed(PLACE, 0.0) == {"c"}


def claims(queue: FairQueue[int], look: Look[int], now_s: float) -> list[tuple[int, set[str]]]:
    """Those that are asked, where none has a place, each with the engines that are not for it."""
    found = list[tuple[int, set[str]]]()
    for one in look.over(8, now_s):
        found.append((one, look.claimed))
        look.missed(one, now_s)
    return found


def test_one_that_is_passed_over_claims_its_engine_from_those_behind_it() -> None:
    """And not from itself, nor from one before it that is asked later."""
    queue = FairQueue[int]()
    for number, (tenant, awaits, since_s) in enumerate(
        [("w", "a", 0.0), ("x", "a", 0.0), ("y", "a", -5.0), ("z", "b", 0.0), ("z", "a", 0.0)]
    ):
        queue.push(number, Place("m", tenant), work_s=0.2, awaits=awaits, now_s=since_s)
    expected = [(0, set[str]()), (3, {"a"}), (1, set()), (2, set()), (4, {"a"})]
    assert claims(queue, Look(queue, "m"), 0.0) == expected


def test_who_has_a_higher_priority_goes_before_a_claim() -> None:
    queue = held("a", work_s=0.0)
    queue.push(1, Place("m", priority=1), work_s=9.0, awaits="b")
    assert queue.claimed(Place("m", priority=1), 5.0) == set()
    assert queue.claimed(Place("m", priority=-1), 5.0) == {"a"}
    assert queue.claimed(Place("m", priority=1), 40.0) == {"b"}
    assert queue.claimed(Place("other"), 40.0) == set()


class ClaimsMachine(RuleBasedStateMachine):
    """Whatever comes, goes and is reworked, an engine is claimed while one that waits for it has waited long enough."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: FairQueue[int] = FairQueue()
        self.waiting: dict[int, tuple[Place, str | None, float]] = {}  # with the moment from which it claims
        self.since_s: dict[int, float] = {}
        self.now_s = 0.0

    @rule(
        model=st.sampled_from("mn"),
        priority=st.integers(-1, 1),
        awaits=st.sampled_from(["a", "b", None]),
        work_s=st.sampled_from([0.0, 0.1, 0.5, 3.0]),
    )
    def push(self, model: str, priority: int, awaits: str | None, work_s: float) -> None:
        number = len(self.since_s)
        place = Place(model, priority=priority)
        self.queue.push(number, place, work_s=work_s, now_s=self.now_s, awaits=awaits)
        self.since_s[number] = self.now_s
        self.waiting[number] = place, awaits, self.now_s + work_s / AGEING

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), awaits=st.sampled_from(["a", "b", None]), work_s=st.sampled_from([0.0, 0.2, 2.0, None]))
    def rework(self, data: st.DataObject, awaits: str | None, work_s: float | None) -> None:
        one = data.draw(st.sampled_from(sorted(self.waiting)))
        place, _, from_s = self.waiting[one]
        self.queue.rework(one, work_s, awaits)
        self.waiting[one] = place, awaits, from_s if work_s is None else self.since_s[one] + work_s / AGEING

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), taken=st.booleans())
    def leave(self, data: st.DataObject, taken: bool) -> None:
        one = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[one]
        (self.queue.take if taken else self.queue.remove)(one)

    @rule(seconds=st.floats(0, 4))
    def later(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def claims_are_of_those_that_wait(self) -> None:
        for model in "mn":
            for priority in (-1, 0, 1):
                expected = {
                    awaits
                    for place, awaits, from_s in self.waiting.values()
                    if place.model == model and place.priority >= priority and awaits is not None and from_s <= self.now_s
                }
                assert self.queue.claimed(Place(model, priority=priority), self.now_s) == expected

    def teardown(self) -> None:
        for one in self.waiting:
            self.queue.remove(one)
        assert Counter(self.queue._claims) == Counter()


ClaimsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestClaims = ClaimsMachine.TestCase
