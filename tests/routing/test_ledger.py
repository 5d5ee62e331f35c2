"""The ledger is exact: whatever happens to requests, with none open all is 0; and capacity follows what engines report."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.ledger import Account, Charge, Ledger

ZERO = (0.0, 0.0, 0.0)


def charge(request: str = "r", engine: str = "a", **told: Any) -> Charge:
    values: dict[str, Any] = {"keys": (1, 2, 3), "believed_tokens": 0, "unit_tokens": 100.0, "work": ZERO, "prefill_s": 2.0}
    return Charge(**{"request": request, "engine": engine, "answer_units": 1, "stamp": 0.0, **values, **told})


def test_the_wait_is_what_is_ahead_less_what_the_first_has_had() -> None:
    ledger = Ledger(100)
    account = ledger.account("a")
    ledger.open(charge("r1"), 10.0)
    ledger.open(charge("r2", prefill_s=3.0), 11.0)
    assert account.wait_s(11.5) == pytest.approx(3.5)
    assert account.wait_s(19.0) == pytest.approx(3.0)  # the first is late: no more than it was is taken off
    first = ledger.get("r1")
    assert first is not None
    assert account.first_token(first, 14.0) == pytest.approx(4.0)
    assert account.wait_s(14.0) == pytest.approx(3.0)
    assert ledger.close("r2", 15.0) is not None
    assert (account.pending_ns, account.idle, account.running) == (0, True, 1)
    assert account.wait_s(15.0) == 0.0


def test_what_was_never_done_is_no_work() -> None:
    ledger = Ledger(100)
    account = ledger.account("a")
    ledger.open(charge("r1"), 0.0)
    ledger.close("r1", 0.0)
    assert account.work_s(0.0) == pytest.approx(0.0)
    ledger.open(charge("r2"), 0.0)
    done = ledger.get("r2")
    assert done is not None
    account.first_token(done, 1.0)
    ledger.close("r2", 1.0)
    assert account.work_s(60.0) == pytest.approx(2.0 / 2.718281828, rel=1e-3)


def test_it_is_closed_once() -> None:
    ledger = Ledger(100)
    ledger.open(charge(), 0.0)
    assert ledger.close("r", 0.0) is not None
    assert ledger.close("r", 0.0) is None
    assert ledger.close("never", 0.0) is None


@pytest.mark.parametrize(
    ("matched", "reported", "capacity"),
    [
        (50, 5000, 1000),
        (50, 4700, 1000),  # three units, a sixteenth of what was believed: nothing
        (50, 4600, 950),
        (50, 0, 950),
        (50, 5300, 1000),
        (50, 5400, 1100),
        (0, 300, 1100),
        (2, 0, 1000),
    ],
)
def test_capacity_follows_what_the_engine_had(matched: int, reported: int, capacity: int) -> None:
    account = Account(1000)
    account.compare(charge(believed_tokens=100 * matched), reported, 1000)
    assert account.capacity_units == capacity


def test_more_than_was_believed_of_an_engine_that_is_not_full_says_nothing_of_its_memory() -> None:
    """A gateway that has just started finds caches that it did not fill."""
    account = Account(1000)
    for held in range(0, 500, 50):
        account.compare(charge(believed_tokens=0), 3000, held)
    assert account.capacity_units == 1000


def test_nothing_said_is_unknown_until_something_was_said() -> None:
    account = Account(1000)
    for _ in range(9):
        assert account.compare(charge(believed_tokens=5000), None, 0) is None
    assert account.capacity_units == 1000
    account.compare(charge(believed_tokens=5000), 5000, 0)
    account.compare(charge(believed_tokens=5000), None, 0)
    assert account.capacity_units == 950


def lost(account: Account, *told: tuple[int, int], held: int = 0, **each: Any) -> list[float | None]:
    """What follows from each of these in turn: what was matched, and what was reported. They were sent at 1, 2, 3 …"""
    return [
        account.compare(charge(believed_tokens=100 * matched, **{"stamp": float(number), **each}), reported, held)
        for number, (matched, reported) in enumerate(told, 1)
    ]


def test_two_wrong_in_a_row_and_what_was_there_before_is_forgotten() -> None:
    told = lost(Account(1000), (8, 0), (8, 800), (8, 0), (7, 0), (9, 0), (8, 0))
    assert told == [None] * 4 + [3.0, None]


def test_what_came_after_the_first_wrong_one_proves_nothing() -> None:
    account = Account(1000)
    assert lost(account, (8, 0)) == [None]
    assert account.compare(charge(believed_tokens=800, stamp=2.0, used=1.5), 800, 0) is None
    assert account.compare(charge(believed_tokens=800, stamp=3.0), 0, 0) == 1.0
    assert lost(account, (8, 0)) == [None]
    assert account.compare(charge(believed_tokens=800, stamp=2.0, used=0.5), 800, 0) is None
    assert account.compare(charge(believed_tokens=800, stamp=3.0), 0, 0) is None


def test_a_lack_is_only_wrong_where_there_is_room_for_all() -> None:
    """Else the oldest had to go, but not the beginning that others use too."""
    partly = [(50, 1000)] * 3
    account = Account(1000)
    assert lost(account, *partly) == [None] * 3  # how much room there is was not said
    account.tell_capacity(1000)
    assert lost(account, *partly, held=1000) == [None] * 3
    assert lost(account, *partly, held=999) == [None, 1.0, None]


def test_what_another_request_was_to_bring_is_not_wrong() -> None:
    assert lost(Account(1000), (50, 0), (50, 0), (50, 0), proved=False) == [None] * 3


def test_what_waited_for_memory_teaches_no_capacity() -> None:
    account = Account(1000)
    assert lost(account, *[(50, 0)] * 9, prompt=False) == [None] * 9
    assert account.capacity_units == 1000


def test_capacity_has_bounds_and_a_restart_takes_it_back() -> None:
    account = Account(1000)
    for _ in range(999):
        account.compare(charge(believed_tokens=5000), 100, 0)
    assert account.capacity_units == 200
    account.tell_capacity(1000)  # said again
    assert account.capacity_units == 200
    account.tell_capacity(2000)
    assert account.capacity_units == 2000
    for _ in range(999):
        account.compare(charge(), 10_000, account.capacity_units)
    assert account.capacity_units == 64 * 2000
    account.restarted()
    assert account.capacity_units == 2000


def test_answers_and_holds_are_learned() -> None:
    ledger = Ledger(100)
    for number in range(1000):
        each = charge(f"r{number}", first_s=1.0)
        ledger.open(each, 0.0)
        ledger.close(each.request, 6.0)
        ledger.answered(each, 6.0, 40)
    assert ledger.answer_tokens == pytest.approx(40, rel=0.01)
    assert ledger.account("a").hold_s == pytest.approx(5, rel=0.01)


class Exact(RuleBasedStateMachine):
    """Any order of sends, first tokens and ends, also of requests that are not there, with any prefill times."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(100)
        self.open: dict[str, Charge] = {}
        self.now_s = 0.0
        self.number = 0

    @rule(engine=st.sampled_from("ab"), prefill_s=st.floats(0, 1e4), later_s=st.floats(0, 100))
    def send(self, engine: str, prefill_s: float, later_s: float) -> None:
        self.number += 1
        self.now_s += later_s
        each = charge(str(self.number), engine, prefill_s=prefill_s)
        self.open[each.request] = each
        self.ledger.open(each, self.now_s)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        each = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        assert self.ledger.account(each.engine).first_token(each, self.now_s) >= 0.0
        each.first_s = self.now_s

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([*sorted(self.open), "unknown"]))
        assert self.ledger.close(request, self.now_s) is self.open.pop(request, None)

    @invariant()
    def sums_are_of_what_is_open(self) -> None:
        assert len(self.ledger) == len(self.open)
        for engine in "ab":
            here = [each for each in self.open.values() if each.engine == engine]
            account = self.ledger.account(engine)
            assert account.running == len(here)
            assert account.pending_ns == sum(each.prefill_ns for each in here if each.first_s is None)
            assert account.idle is all(each.first_s is not None for each in here)
            assert account.wait_s(self.now_s) >= 0.0
            assert account.work_s(self.now_s) >= 0.0


TestExact = Exact.TestCase
