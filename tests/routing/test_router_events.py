"""A router whose engines tell what they hold: that is believed, beside what our own requests are about to bring there."""

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.chain import token_chain
from gateway.routing.choice import Query, Tuning
from gateway.routing.prefix import PrefixIndex
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView

CHUNK = 100
A = FleetView((EngineView("a", True),))


def router(**told: Any) -> Router:
    return Router(Tuning(**{"chunk_tokens": CHUNK, "hold_s": None, **told}), random.Random(1))


def keys_of(length: int, start: int = 0) -> tuple[int, ...]:
    return token_chain(range(start, start + length * CHUNK), CHUNK)


def query(request: str, length: int, start: int = 0) -> Query:
    return Query(request, keys_of(length, start), length * CHUNK + 1, patient=False)


def expected(our: Router, length: int, start: int = 0, now_s: float = 1e6) -> int:
    """How many chunks of a prompt it expects on the engine."""
    asked = query("probe", length, start)
    found = our.choose(asked, A, now_s).cached_tokens // CHUNK
    our.cancelled("probe", now_s)
    return found


def finish(our: Router, asked: Query, now_s: float) -> None:
    our.choose(asked, A, now_s)
    our.first_token(asked.request, now_s + 0.1)
    our.finished(asked.request, now_s + 0.2, 10)


def live(**told: Any) -> Router:
    our = router(**told)
    our.trust("a", True)
    return our


def test_what_it_told_is_expected_and_what_it_no_longer_holds_is_not() -> None:
    our = live()
    our.stored("a", None, keys_of(10), 0.0)
    assert expected(our, 12) == 10
    our.removed("a", keys_of(10)[4:])
    assert expected(our, 12) == 4
    our.cleared("a")
    assert (expected(our, 12), our.entries) == (0, 0)


def test_nothing_that_it_tells_counts_where_it_is_not_trusted() -> None:
    our = router()
    our.stored("a", None, keys_of(10), 0.0)
    assert our.entries == 0
    finish(our, query("1", 10), 0.0)
    our.removed("a", keys_of(10))
    assert expected(our, 10) == 10


def test_its_own_word_has_no_capacity_but_the_budget_holds() -> None:
    our = live(index_entries=50)
    our.capacity("a", 8 * CHUNK)
    our.stored("a", None, keys_of(40), 0.0)
    assert expected(our, 40) == 40
    our.stored("a", None, keys_of(30, 70_000), 1.0)
    assert our.entries == 50
    assert expected(our, 30, 70_000) == 30


def test_its_capacity_is_ours_to_guess_again_when_it_tells_no_more() -> None:
    our = live()
    our.capacity("a", 20 * CHUNK)
    our.stored("a", None, keys_of(40), 0.0)
    our.trust("a", False)
    assert (our.entries, our.told("a")) == (20, False)
    assert expected(our, 40) == 20


def test_what_runs_there_is_expected_before_it_is_told() -> None:
    our = live()
    our.choose(query("1", 10), A, 0.0)
    assert expected(our, 10, now_s=0.0) == 10
    our.removed("a", keys_of(10))
    assert expected(our, 10, now_s=0.0) == 10  # it is about to be made
    our.finished("1", 0.2, 10)
    assert expected(our, 10, now_s=1.0) == 10
    our.stored("a", None, keys_of(2, 9999), 6.0)
    assert expected(our, 10, now_s=6.0) == 0  # it was never told


def test_it_goes_live_with_what_is_told_and_what_runs() -> None:
    our = router()
    finish(our, query("1", 10), 0.0)
    our.choose(query("2", 5, 70_000), A, 1.0)
    our.trust("a", True)
    assert our.entries == 5
    our.stored("a", None, keys_of(7), 1.0)
    assert (expected(our, 10, now_s=1.0), expected(our, 5, 70_000, now_s=1.0)) == (7, 5)


def test_two_prompts_of_which_it_told_nothing_are_a_dispute() -> None:
    our = live()
    for number in range(3):
        finish(our, query(str(number), 4, number * 1000), number * 10.0)
        assert our.agrees("a")
    our.stored("a", None, keys_of(1, 50_000), 30.0)
    assert (our.agrees("a"), our.told("a")) == (False, False)
    our.trust("a", True)
    assert (our.agrees("a"), our.told("a")) == (True, True)


def test_three_prompts_of_which_it_reports_nothing_that_it_told_are_a_dispute() -> None:
    our = live()
    our.stored("a", None, keys_of(20), 0.0)
    for number in range(2):
        assert our.agrees("a")
        our.choose(query(str(number), 20), A, float(number))
        our.first_token(str(number), number + 0.1)
        our.finished(str(number), number + 0.2, 10, cached_tokens=0)
    assert not our.agrees("a")
    assert expected(our, 20) == 20  # the last of them


def test_a_prompt_that_it_told_of_ends_a_dispute() -> None:
    our = live()
    for number in range(12):
        finish(our, query(str(number), 4, number * 1000), number * 10.0)
        if number % 3 == 2:
            our.stored("a", None, keys_of(1, number * 1000), number * 10.0 + 1)
    assert our.agrees("a")


def test_prompts_of_less_than_a_block_and_broken_answers_are_no_dispute() -> None:
    our = router()
    our.trust("a", True, block_tokens=4 * CHUNK + 1)
    for number in range(9):
        finish(our, query(str(number), 4, number * 1000), number * 10.0)
        our.choose(query(f"x{number}", 40, number * 5000), A, number * 10.0)
        our.cancelled(f"x{number}", number * 10.0 + 1)
    our.stored("a", None, keys_of(1, 50_000), 200.0)
    assert our.agrees("a")
    assert our.entries == 1


def test_prompts_that_it_told_of_and_has_let_go_of_since_are_no_dispute() -> None:
    """A small cache through which much goes."""
    our = live()
    for number in range(9):
        asked = query(str(number), 4, number * 1000)
        our.choose(asked, A, number * 10.0)
        our.stored("a", None, asked.keys, number * 10.0)
        our.first_token(asked.request, number * 10.0 + 0.1)
        our.finished(asked.request, number * 10.0 + 0.2, 10)
        our.removed("a", asked.keys)
    our.stored("a", None, keys_of(1, 50_000), 200.0)
    assert our.agrees("a")
    assert our.entries == 1


def test_what_it_told_of_a_prompt_is_there_though_its_client_left_before_the_first_token() -> None:
    our = live()
    our.choose(query("1", 10), A, 0.0)
    our.stored("a", None, keys_of(6), 0.1)
    our.cancelled("1", 0.2)
    assert expected(our, 10, now_s=0.3) == 6


def test_what_it_told_since_it_was_away_is_not_forgotten_as_it_is_met_again() -> None:
    """Its events may be here before the first request is."""
    our = live()
    finish(our, query("1", 10), 0.0)
    our.trust("a", False)
    our.cleared("a")
    our.trust("a", True)
    our.stored("a", None, keys_of(6), 1.0)
    again = FleetView((EngineView("a", True, life=1),))
    assert our.choose(query("2", 10), again, 2.0).cached_tokens == 6 * CHUNK


def test_an_answer_that_it_does_not_tell_of_is_not_expected_by_the_next_turn() -> None:
    our = live()
    our.choose(query("1", 10), A, 0.0)
    our.stored("a", None, keys_of(10), 0.1)
    our.finished("1", 0.2, 300, keys=keys_of(13))
    our.stored("a", None, keys_of(1, 50_000), 6.0)
    assert expected(our, 14, now_s=6.0) == 10


def test_what_had_to_leave_is_expected_again_once_it_is_asked_for_and_no_dispute() -> None:
    our = live(index_entries=50)
    our.stored("a", None, keys_of(40), 0.0)
    our.stored("a", None, keys_of(40, 70_000), 1.0)
    our.stored("a", keys_of(40)[-1], keys_of(42)[40:], 2.0)  # of which the keys before had to leave
    assert (our.entries, expected(our, 42)) == (50, 10)
    for number in range(4):
        finish(our, query(str(number), 42), number * 10.0)
    our.stored("a", None, keys_of(1, 50_000), 60.0)
    assert our.agrees("a")
    assert expected(our, 42) == 42


def test_many_ends_at_once_are_bounded() -> None:
    our = live()
    for number in range(600):
        finish(our, query(str(number), 1, number * 1000), 0.0)
    assert our.entries == 512
    assert our.agrees("a")


def paths(chance: random.Random) -> tuple[int, ...]:
    """A way through a tree of three branches a level, as keys."""
    key, path = 1, []
    for _ in range(chance.randrange(1, 7)):
        key = key * 3 + chance.randrange(3)
        path.append(key)
    return tuple(path)


class Told(RuleBasedStateMachine):
    """Whatever is sent and told: the map is closed, in the queue's order, and has what was told, what runs and what just ran."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(10_000)
        self.map = self.index.of("a", 12)
        self.map.tells(2)
        self.running: list[tuple[tuple[int, ...], int, float]] = []
        self.engine: set[int] = set()
        self.lost: set[int] = set()  # which the engine holds, and told, and for which there was no room
        self.now_s = 0.0

    @rule(chance=st.randoms(use_true_random=False))
    def send(self, chance: random.Random) -> None:
        keys, stamp = paths(chance), self.index.stamp(self.now_s)
        self.running.append((keys, self.map.match(keys), stamp))
        self.map.pin(keys, stamp)
        self.lost -= set(keys)
        self.index.trim(self.map)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), end=st.sampled_from(["finished", "cancelled", "unproved"]))
    def end(self, which: int, end: str) -> None:
        keys, matched, stamp = self.running.pop(which % len(self.running))
        self.map.unpin(keys)
        if end == "unproved":
            self.map.drop_unproved(keys, matched, stamp)
        left = keys if end == "finished" else keys[: self.map.match(keys)]
        self.lost -= set(left)
        self.map.touch(left, self.index.stamp(self.now_s))
        self.map.over(keys, self.now_s, whole=end == "finished")
        self.map.disputed(self.now_s)
        self.index.trim(self.map)

    @rule(chance=st.randoms(use_true_random=False))
    def store(self, chance: random.Random) -> None:
        """Of a prompt what was not told before, and maybe some that was."""
        keys = paths(chance)
        first = chance.randint(0, len([key for key in keys if key in self.engine]))
        after = keys[first - 1] if first else None
        new = set(keys[first:]) - self.engine
        self.engine |= new
        if first and after not in self.map._used:
            self.lost |= new
        else:
            self.lost -= set(keys[first:])
        self.map.stored(after, keys[first:], self.index.stamp(self.now_s))

    @rule(count=st.integers(1, 3))
    def evict(self, count: int) -> None:
        """All engines' maps have one budget."""
        self.map.evict(count)
        self.lost |= self.engine - self.map._used.keys()

    @rule()
    def nobody_tells_what_was_not_told_before(self) -> None:
        self.map.stored(-1, (-2, -3), self.index.stamp(self.now_s))

    @precondition(lambda self: self.engine)
    @rule(chance=st.randoms(use_true_random=False))
    def remove(self, chance: random.Random) -> None:
        top = chance.choice(sorted(self.engine))
        gone = {key for key in self.engine if key == top or top in before(key)}
        self.engine -= gone
        self.lost -= gone
        self.map.removed(sorted(gone, key=lambda _: chance.random()))

    @rule(seconds=st.sampled_from([1.0, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.map.disputed(self.now_s)

    @rule()
    def begin_anew(self) -> None:
        self.map.tells(2)
        self.engine, self.lost = set(), set()

    @rule()
    def clear(self) -> None:
        self.map.clear()
        self.engine, self.lost = set(), set()
        self.running_again()

    def running_again(self) -> None:
        for keys, _, _ in self.running:
            self.map.touch(keys, self.index.stamp(self.now_s))

    @rule()
    def compact(self) -> None:
        self.map._compact()

    @invariant()
    def holds_all_before_a_key(self) -> None:
        for key in self.map._used:
            assert key // 3 == 1 or key // 3 in self.map._used

    @invariant()
    def what_may_leave_is_in_the_queue(self) -> None:
        queued = {key for stamp, keys in self.map._uses for key in keys if self.map._used.get(key) == stamp}
        assert self.map._used.keys() - self.map._pins.keys() <= queued

    @invariant()
    def holds_what_is_told_and_what_runs_or_just_ran(self) -> None:
        word = self.map._word
        assert word is not None
        assert word.before.keys() == self.engine
        assert self.map._used.keys() & self.engine == self.engine - self.lost
        pinned = {key for keys, _, _ in self.running for key in keys}
        late = {key for due_s, keys, _ in word.due for key in keys if due_s > self.now_s}
        assert pinned <= self.map._used.keys() <= self.engine | pinned | late


def before(key: int) -> list[int]:
    found = []
    while key > 1:
        key //= 3
        found.append(key)
    return found


TestTold = Told.TestCase
