"""When failures take an engine out, for how long, and what puts it back: by table, and against a model by brute force."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.breaker import Breaker, BreakerRules, BreakerState

RULES = BreakerRules()


def after(ends: str, rules: BreakerRules = RULES) -> Breaker:
    """A breaker after requests that were answered (`.`), failed (`x`), found no connection (`u`) or say nothing (`-`)."""
    breaker = Breaker(rules)
    for end in ends:
        visit = breaker.started(0)
        match end:
            case ".":
                breaker.succeeded(visit)
            case "x":
                breaker.failed(visit, 0)
            case "u":
                breaker.failed(visit, 0, unreached=True)
            case _:
                breaker.excused(visit)
    return breaker


def opened(rules: BreakerRules = RULES) -> Breaker:
    return after("x" * rules.failures, rules)


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ("", "closed"),
        ("xxxx", "closed"),
        ("xxxxx", "open"),
        ("xxxx.xxxx", "closed"),  # 8 of 9, but nine are too few to tell a share
        ("xxxx-x", "open"),  # what says nothing breaks no row
        ("-" * 40, "closed"),
        ("u", "closed"),
        ("uu", "open"),
        ("u.u", "closed"),
        ("uxu", "closed"),  # not two in a row
        ("xuxu", "closed"),
        ("x.x.x.x...", "closed"),  # 4 of 10, but the fourth came when there were seven
        ("..x.x.x..x", "open"),
        ("...x.x.x..", "closed"),
        ("." * 20 + "xx." * 3 + "x", "closed"),  # 7 of 20
        ("." * 20 + "xx." * 3 + "xx", "open"),
    ],
)
def test_what_opens_it(ends: str, state: BreakerState) -> None:
    assert after(ends).state(0) == state


def test_a_request_that_began_before_it_opened_says_nothing_later() -> None:
    breaker = Breaker(RULES)
    late = [breaker.started(0) for _ in range(3)]
    for _ in range(5):
        breaker.failed(breaker.started(0), 0)
    trial = breaker.started(10)
    breaker.succeeded(late[0])
    breaker.failed(late[1], 10)
    breaker.excused(late[2])
    assert breaker.state(10) == "half_open"
    assert not breaker.admits(10)
    breaker.succeeded(trial)
    assert breaker.state(10) == "closed"
    assert breaker.failing(10) == 0


def test_half_open_lets_one_through_and_its_end_decides() -> None:
    breaker = opened()
    assert not breaker.admits(9.99)
    assert breaker.admits(10)
    trial = breaker.started(10)
    assert not breaker.admits(10)
    aside = breaker.started(10)  # sent all the same: that it fails decides nothing
    breaker.heard(aside)
    breaker.failed(aside, 10)
    breaker.excused(aside)
    assert breaker.state(1000) == "half_open"
    assert not breaker.admits(1000)
    breaker.failed(trial, 12)
    assert [breaker.state(at) for at in (12, 31.9, 32)] == ["open", "open", "half_open"]


@pytest.mark.parametrize("trial", [False, True])
def test_what_was_served_since_it_opened_closes_it(trial: bool) -> None:
    breaker = Breaker(RULES)
    before = breaker.started(0)
    for _ in range(5):
        breaker.failed(breaker.started(0), 0)
    first = breaker.started(1)  # sent though none should be
    breaker.succeeded(before)
    assert breaker.state(1) == "open"
    if trial:
        breaker.started(10)
    breaker.succeeded(first)
    assert breaker.state(10) == "closed"
    assert breaker.admits(10)
    assert breaker.failing(10) == 0


def test_what_was_served_closes_no_breaker_that_opened_after_it_began() -> None:
    breaker = opened()
    aside = breaker.started(1)
    breaker.failed(breaker.started(10), 11)
    breaker.succeeded(aside)
    assert breaker.state(12) == "open"
    breaker.succeeded(breaker.started(12))
    assert breaker.state(12) == "closed"
    breaker.failed(aside, 12)
    assert breaker.failing(12) == 0


def test_a_trial_that_says_nothing_makes_room_for_the_next() -> None:
    breaker = opened()
    first = breaker.started(10)
    breaker.excused(first)
    assert breaker.state(10) == "half_open"
    assert breaker.admits(10)
    second = breaker.started(10)
    breaker.failed(first, 10)  # told late
    assert breaker.state(10) == "half_open"
    breaker.succeeded(second)
    assert breaker.state(10) == "closed"


def test_a_trial_that_is_answered_closes_it_before_it_ends_and_may_fail_yet() -> None:
    breaker = opened()
    trial = breaker.started(10)
    breaker.heard(trial)
    assert breaker.state(10) == "closed"
    assert breaker.admits(10)
    breaker.failed(trial, 11)
    assert breaker.failing(11) == 1
    for _ in range(4):
        breaker.failed(breaker.started(11), 11)
    assert breaker.state(11 + 19) == "open"  # twice as long: it has served nothing since
    assert breaker.state(11 + 20) == "half_open"


def test_it_is_open_longer_each_time_but_not_for_ever() -> None:
    breaker, now_s, spans = opened(), 0.0, []
    for _ in range(40):
        span = next(s for s in range(1, 1000) if breaker.state(now_s + s) == "half_open")
        spans.append(span)
        now_s += span
        breaker.failed(breaker.started(now_s), now_s)
    assert spans[:7] == [10, 20, 40, 80, 160, 300, 300]
    assert set(spans[7:]) == {300}


@pytest.mark.parametrize(("served", "span_s"), [(1, 20), (19, 20), (20, 10), (30, 10)])
def test_it_is_trusted_anew_once_it_has_served_a_window(served: int, span_s: float) -> None:
    breaker = opened()
    for _ in range(served):
        breaker.succeeded(breaker.started(10))
    for _ in range(20):
        if breaker.admits(10):
            breaker.failed(breaker.started(10), 10)
    assert breaker.state(10 + span_s - 0.1) == "open"
    assert breaker.state(10 + span_s) == "half_open"


def test_an_engine_that_was_away_is_tried_at_once() -> None:
    breaker = opened()
    breaker.back(3)
    assert breaker.state(3) == "half_open"
    trial = breaker.started(3)
    breaker.back(4)
    assert not breaker.admits(4)
    breaker.failed(trial, 4)
    assert breaker.state(4 + 19.9) == "open"
    closed = after("xxxx")
    closed.back(1)
    assert closed.state(1) == "closed"
    closed.failed(closed.started(1), 1)
    assert closed.state(1) == "open"  # being back forgives a closed one nothing


def test_an_old_failure_fades_and_a_new_one_counts_whole() -> None:
    breaker = after("x.")
    assert [breaker.failing(at) for at in (0, 30, 60)] == [0.5, 0.25, 0.125]
    assert breaker.failing(3600) < 1e-6
    breaker.failed(breaker.started(3600), 3600)
    assert breaker.failing(3600) == 2 / 3


def test_what_opens_it_does_not_fade() -> None:
    breaker = Breaker(RULES)
    for hour, end in enumerate("x.xx.x..x."):
        at_s = hour * 3600.0
        visit = breaker.started(at_s)
        if end == "x":
            breaker.failed(visit, at_s)
        else:
            breaker.succeeded(visit)
    assert breaker.state(10 * 3600.0) == "closed"
    breaker.failed(breaker.started(36_000), 36_000)
    assert breaker.state(36_000) == "open"


@dataclass
class Model:
    """The same by brute force: what was told, in order, and everything computed anew from it."""

    since: list[tuple[bool, bool]] = field(default_factory=list)  # failed, unreached; since it last closed or opened
    until_s: float | None = None
    openings: int = 0
    trial: int | None = None  # the request that tries it
    aside: set[int] = field(default_factory=set)  # requests that were sent though none should be, since it opened

    def state(self, now_s: float) -> BreakerState:
        return "closed" if self.until_s is None else "open" if now_s < self.until_s else "half_open"

    def fails(self) -> bool:
        row = 0
        for failed, _ in reversed(self.since):
            if not failed:
                break
            row += 1
        last = [failed for failed, _ in self.since[-SMALL.window :]]
        share = 2 * len(last) >= SMALL.window and sum(last) / len(last) >= SMALL.failing
        return row >= SMALL.failures or all_unreached(self.since[-SMALL.unreached :]) or share


def all_unreached(last: list[tuple[bool, bool]]) -> bool:
    return len(last) == SMALL.unreached and all(unreached for _, unreached in last)


SMALL = BreakerRules(failures=3, unreached=2, failing=0.5, window=6, open_s=8, most_open_s=20)
PICK = st.integers(0, 1 << 16)


class BreakerMachine(RuleBasedStateMachine):
    """Requests start, are answered and end in any order, while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.breaker = Breaker(SMALL)
        self.model = Model()
        self.running: dict[int, tuple[int, bool]] = {}  # by number: the breaker's visit, whether the model counts it
        self.numbers = 0

    @rule(seconds=st.sampled_from([0.5, 1, 4, 8, 20]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def start(self) -> None:
        self.numbers += 1
        model = self.model
        counts = model.until_s is None
        if model.state(self.now_s) == "half_open" and model.trial is None:
            model.trial = self.numbers
            self.running = {number: (visit, False) for number, (visit, _) in self.running.items()}
            counts = True
        elif not counts:
            model.aside.add(self.numbers)
        self.running[self.numbers] = (self.breaker.started(self.now_s), counts)

    @precondition(lambda self: self.running)
    @rule(pick=PICK)
    def hear(self, pick: int) -> None:
        number = self.one(pick)
        self.breaker.heard(self.running[number][0])
        self.close(number)

    @precondition(lambda self: self.running)
    @rule(pick=PICK)
    def serve(self, pick: int) -> None:
        number = self.one(pick)
        visit, counts = self.running.pop(number)
        self.breaker.succeeded(visit)
        self.close(number)
        if number in self.model.aside and self.model.until_s is not None:
            self.model.trial = number
            self.close(number)
            counts = True
        if counts:
            self.model.since.append((False, False))
            if len(self.model.since) >= SMALL.window:
                self.model.openings = 0

    @precondition(lambda self: self.running)
    @rule(pick=PICK, unreached=st.booleans())
    def fail(self, pick: int, unreached: bool) -> None:
        number = self.one(pick)
        visit, counts = self.running.pop(number)
        self.breaker.failed(visit, self.now_s, unreached=unreached)
        if not counts:
            return
        model = self.model
        model.since.append((True, unreached))
        if model.trial == number or model.fails():
            model.until_s = self.now_s + min(SMALL.open_s * 2**model.openings, SMALL.most_open_s)
            model.openings += 1
            model.trial = None
            model.since = []
            model.aside = set()
            self.running = {number: (visit, False) for number, (visit, _) in self.running.items()}

    @precondition(lambda self: self.running)
    @rule(pick=PICK)
    def excuse(self, pick: int) -> None:
        number = self.one(pick)
        self.breaker.excused(self.running.pop(number)[0])
        if self.model.trial == number:
            self.model.trial = None

    @rule()
    def come_back(self) -> None:
        self.breaker.back(self.now_s)
        if self.model.until_s is not None and self.model.trial is None:
            self.model.until_s = min(self.model.until_s, self.now_s)

    def one(self, pick: int) -> int:
        return sorted(self.running)[pick % len(self.running)]

    def close(self, number: int) -> None:
        """The trial was answered."""
        if self.model.trial == number:
            self.model.trial = None
            self.model.until_s = None
            self.model.since = []

    @invariant()
    def agrees(self) -> None:
        state = self.model.state(self.now_s)
        assert self.breaker.state(self.now_s) == state
        assert self.breaker.admits(self.now_s) is (state == "closed" or (state == "half_open" and self.model.trial is None))
        if self.model.until_s is not None:
            assert self.model.until_s <= self.now_s + SMALL.most_open_s


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
