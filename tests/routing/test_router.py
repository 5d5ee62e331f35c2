"""The router of one model: where a prompt goes, what is charged, and that nothing is left of a request that is over."""

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from gateway.routing.chain import token_chain
from gateway.routing.choice import Choice, PolicyName, Query, Tuning
from gateway.routing.reuse import ReuseGaps
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView

CHUNK = 100
POLICIES: tuple[PolicyName, ...] = ("cost", "round_robin", "least_outstanding", "session")


def fleet(*names: str, **told: dict[str, Any]) -> FleetView:
    return FleetView(tuple(EngineView(**{"id": name, "ready": True, **told.get(name, {})}) for name in names))


def router(policy: PolicyName = "cost", **told: Any) -> Router:
    return Router(Tuning(policy, **{"chunk_tokens": CHUNK, "hold_s": None, **told}), random.Random(1))


def query(request: str, length: int, start: int = 0, **told: Any) -> Query:
    """A prompt of so many chunks, the same for the same start."""
    keys = token_chain(range(start, start + length * CHUNK), CHUNK)
    return Query(request, keys, length * CHUNK + 1, **told)


def serve(our: Router, asked: Query, view: FleetView, now_s: float, cached: int | None = None) -> Choice:
    """From the choice to the end."""
    choice = our.choose(asked, view, now_s)
    our.first_token(asked.request, now_s + 0.1)
    our.finished(asked.request, now_s + 0.5, 20, cached)
    return choice


AB = fleet("a", "b")


def test_a_conversation_stays_where_its_prefix_is() -> None:
    our = router()
    engine = serve(our, query("0", 50), AB, 0.0).engine
    for turn in range(1, 30):
        choice = serve(our, query(str(turn), 50 + turn), AB, float(turn))
        assert (choice.engine, choice.why, choice.cached_tokens) == (engine, "cheapest", (49 + turn) * CHUNK)


def test_it_moves_when_the_wait_is_longer_than_its_prompt_made_anew() -> None:
    our = router()
    home = serve(our, query("0", 50), AB, 0.0).engine
    engines = [our.choose(query(f"x{number}", 51, 0), AB, 1.0).engine for number in range(40)]
    assert engines[0] == home
    assert set(engines) == {"a", "b"}
    assert engines.index("b" if home == "a" else "a") > 1  # not at once: a copy costs fifty chunks, a wait one


def test_a_burst_does_not_choose_by_one_picture() -> None:
    our, view = router(), fleet(*"abcdefgh")
    engines = Counter(our.choose(query(str(number), 20, number * 7919), view, 0.0).engine for number in range(64))
    assert set(engines.values()) == {8}


@pytest.mark.no_cover  # ten thousand requests, of which the other tests run the same code
def test_requests_that_share_a_system_prompt_spread() -> None:
    """Ten thousand, as fast as the engines make them: 30 chunks shared, 3 their own."""
    our, view, chance, engines = router(), fleet(*"abcdefgh"), random.Random(2), Counter[str]()
    shared, free_s = list(range(3000)), dict.fromkeys("abcdefgh", 0.0)
    ends: list[tuple[float, str]] = []
    now_s = 0.0
    for number in range(10_000):
        now_s += chance.expovariate(8 / 0.045)  # nine tenths of what they can
        for end in [end for end in ends if end[0] <= now_s]:
            ends.remove(end)
            our.first_token(end[1], end[0])
            our.finished(end[1], end[0], 10)
        keys = token_chain([*shared, *(chance.randrange(1 << 17) for _ in range(300))], CHUNK)
        choice = our.choose(Query(str(number), keys, 3300), view, now_s)
        assert choice.engine is not None
        engines[choice.engine] += 1
        free_s[choice.engine] = max(now_s, free_s[choice.engine]) + 0.04
        ends.append((free_s[choice.engine], str(number)))
    assert max(engines.values()) / (10_000 / 8) <= 1.2


def test_what_is_equal_is_left_to_chance_or_to_the_hint() -> None:
    view = fleet(*"abcd")
    our = router()
    assert len({serve(our, query(f"r{number}", 5, number * 999), view, 60.0 * number).engine for number in range(40)}) == 4
    hinted = [router().choose(query("r", 5, affinity=f"s{number}"), view, 0.0).engine for number in range(40)]
    again = [router().choose(query("r", 5, affinity=f"s{number}"), view, 0.0).engine for number in range(40)]
    assert hinted == again
    assert len(set(hinted)) == 4


def test_a_hint_is_no_identity() -> None:
    """Where its prefix is decides, not what the client calls itself."""
    our = router()
    home = serve(our, query("0", 50, affinity="x"), AB, 0.0).engine
    assert all(serve(our, query(f"r{n}", 51, affinity=f"y{n}"), AB, n + 1.0).engine == home for n in range(20))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("engines", "told", "chosen", "why"),
    [
        ({"a": {"ready": False}}, {}, "b", None),
        ({"a": {"draining": True}}, {}, "b", None),
        ({"a": {"rests_s": 3.0}}, {}, "b", None),
        ({"a": {"ejected": True, "failing": 0.9}}, {}, "b", None),
        ({"a": {"most_running": 3, "running": 3}}, {}, "b", None),
        ({"a": {}}, {"avoid": ("a",)}, "b", "elsewhere"),
        ({"a": {"weights": "x"}}, {"weights": ""}, "b", "resume"),
        ({"a": {"ejected": True}, "b": {"ready": False}}, {}, "a", "panic"),
        ({"a": {"ready": False}, "b": {"ready": False}}, {}, None, "none"),
    ],
)
def test_which_engines_may_be_used(
    policy: PolicyName, engines: dict[str, Any], told: dict[str, Any], chosen: str | None, why: str | None
) -> None:
    our = router(policy)
    serve(our, query("0", 50), fleet("a"), 0.0)  # the cache would say a
    view = FleetView(tuple(replace(EngineView(name, ready=True), **engines.get(name, {})) for name in "ab"))
    choice = our.choose(query("1", 51, affinity="s", **told), view, 1.0)
    assert choice.engine == chosen
    assert why is None or choice.why == why
    assert our.open == (chosen is not None)


def test_when_all_rest_it_says_how_long() -> None:
    choice = router().choose(query("0", 5), fleet("a", "b", a={"rests_s": 3.0}, b={"rests_s": 2.0}), 0.0)
    assert (choice.engine, choice.hold, choice.wait_s) == (None, False, 2.0)


def test_an_engine_that_warms_up_gets_its_share() -> None:
    view = fleet("a", "b", a={"share": 0.1})
    our = router()
    engines = Counter(our.choose(query(str(n), 20, n * 7919), view, 0.0).engine for n in range(44))
    assert 2 <= engines["a"] <= 8


def test_round_robin_takes_turns_among_those_that_may() -> None:
    our, view = router("round_robin"), fleet(*"abc", b={"ready": False})
    assert [our.choose(query(str(n), 3), view, 0.0).engine for n in range(4)] == ["a", "c", "a", "c"]


def test_least_outstanding_counts_its_own_and_what_it_is_told() -> None:
    our, view = router("least_outstanding"), fleet("a", "b", "c", c={"running": 2})
    engines = Counter(our.choose(query(str(n), 3), view, 0.0).engine for n in range(5))
    assert engines["c"] <= 1
    assert abs(engines["a"] - engines["b"]) <= 1


def test_a_session_moves_only_with_its_engine() -> None:
    our, names = router("session"), [f"s{number}" for number in range(200)]
    asked = [query(name, 2, affinity=name) for name in names]
    before = [serve(our, each, fleet(*"abcd"), 0.0).engine for each in asked]
    after = [serve(our, each, fleet(*"abc"), 0.0).engine for each in asked]
    assert all(was == now for was, now in zip(before, after, strict=True) if was != "d")
    assert max(Counter(before).values()) <= 75
    assert our.choose(query("r", 2), fleet(*"abcd"), 0.0).why == "cheapest"  # who names no session


@pytest.mark.parametrize("told", [{"share": 0.1}, {"failing": 0.9}, {"failing": 1.0}])
def test_sessions_leave_an_engine_for_the_part_that_it_cannot_take(told: dict[str, Any]) -> None:
    our, asked = router("session"), [query(f"s{number}", 2, affinity=f"s{number}") for number in range(400)]
    fine, worse = fleet(*"abcd"), fleet(*"abcd", d=told)
    before = [serve(our, each, fine, 0.0).engine for each in asked]
    after = [serve(our, each, worse, 0.0).engine for each in asked]
    assert all(was == now for was, now in zip(before, after, strict=True) if was != "d")
    assert 3 <= Counter(after)["d"] <= 25
    assert [serve(our, each, fine, 0.0).engine for each in asked] == before


def test_it_holds_back_what_would_wait_at_an_engine() -> None:
    our, view = router(hold_s=1.0), fleet("a")
    held = None
    for number in range(99):
        held = our.choose(query(str(number), 40, number * 7919), view, 0.0)
        if held.hold:
            break
    assert held is not None
    assert (held.engine, held.why, held.hold) == (None, "hold", True)
    assert held.ttft_s > 1.0 + held.prefill_s
    open_before = our.open
    assert our.choose(query("impatient", 40, patient=False), view, 0.0).engine == "a"
    our.cancelled("impatient", 0.0)
    for number in range(open_before):
        our.first_token(str(number), 1.0)
        our.finished(str(number), 1.0, 5)
    assert our.choose(query("again", 40), view, 1.0).engine == "a"


def test_it_never_holds_where_nothing_would_wake_it() -> None:
    our = router(hold_s=0.0)
    our.capacity("a", 1000)
    assert our.choose(query("r", 500), fleet("a"), 0.0).engine == "a"


def test_a_full_memory_holds_back() -> None:
    our = router(hold_s=99.0)
    our.capacity("a", 60 * CHUNK)
    assert our.choose(query("1", 40), fleet("a"), 0.0).engine == "a"
    assert our.choose(query("2", 40, 99_999), fleet("a"), 0.0).hold
    assert our.choose(query("3", 41), fleet("a"), 0.0).engine == "a"  # shares what is held


def test_the_prediction_counts_what_is_cached_and_what_waits() -> None:
    our = router()
    first = serve(our, query("0", 50), fleet("a"), 0.0)
    assert (first.cached_tokens, first.terms is not None) == (0, True)
    again = our.choose(query("1", 50), fleet("a"), 1.0)
    assert again.cached_tokens == 50 * CHUNK
    exact = Query("2", query("x", 50).keys, 50 * CHUNK)
    behind = our.choose(exact, fleet("a"), 1.0)
    assert behind.cached_tokens == 50 * CHUNK - 1  # the last is made anew
    assert behind.ttft_s == pytest.approx(behind.prefill_s + again.prefill_s)


def test_keys_of_text_stand_for_as_many_tokens_as_each_has() -> None:
    our = router()
    asked = replace(query("0", 4), ends=(5, 20, 120, 220), unit_tokens=100.0, tokens=220)
    serve(our, replace(asked, keys=asked.keys[:2], ends=(5, 20), tokens=20), fleet("a"), 0.0)
    choice = our.choose(replace(asked, request="1"), fleet("a"), 1.0)
    assert choice.cached_tokens == 20
    assert choice.forecast is not None
    assert choice.forecast.unit_tokens == 100.0


def test_a_long_result_after_short_turns_is_no_restart() -> None:
    """Of a conversation an engine has exactly its short turns, which are most keys and few tokens."""
    our, view = router(), fleet("a")
    our.capacity("a", 1000 * CHUNK)
    for number in range(4):
        keys = query("x", 40, number * 99_991).keys
        ends = (*range(10, 210, 10), *range(300, 2300, 100))
        serve(our, Query(f"s{number}", keys[:20], 200, ends[:20], 100.0), view, 10.0 * number, cached=0)
        long = Query(f"l{number}", keys, 2200, ends, 100.0)
        assert serve(our, long, view, 10.0 * number + 5, cached=200).cached_tokens == 200
    assert our.entries == 160
    assert our.snapshot("a").capacity_tokens == 1000 * CHUNK


def test_an_engine_that_was_lost_holds_nothing() -> None:
    our = router()
    home = serve(our, query("0", 50), AB, 0.0).engine
    assert home is not None
    our.choose(query("1", 51), AB, 1.0)
    our.engine_lost(home)
    assert our.entries == 0
    our.cancelled("1", 2.0)
    assert our.choose(query("2", 51), AB, 3.0).cached_tokens == 0


def test_another_process_of_an_engine_holds_nothing() -> None:
    our = router()
    assert serve(our, query("0", 50), fleet("a", a={"life": 1}), 0.0).cached_tokens == 0
    assert serve(our, query("1", 50), fleet("a", a={"life": 1}), 1.0).cached_tokens == 50 * CHUNK
    assert our.choose(query("2", 50), fleet("a", a={"life": 2}), 2.0).cached_tokens == 0


@pytest.mark.parametrize("slots", [None, 4])
def test_what_an_engine_says_with_its_first_token_counts(slots: int | None) -> None:
    """Of four prompts that it had, it says so that two are gone: the others are believed to be too."""
    our, view = router(), fleet("a", a={"slots": slots})
    prompts = [query(str(number), 50, number * 99_991) for number in range(4)]
    for turn, asked in enumerate(prompts):
        serve(our, asked, view, float(turn), cached=0)
    found = []
    for turn, asked in enumerate(prompts[:3], 4):
        found.append(our.choose(replace(asked, request="again"), view, float(turn)).cached_tokens)
        our.first_token("again", turn + 0.1, cached_tokens=0)
        our.finished("again", turn + 0.5, 20)
    assert found == [5000, 5000, 0]


def test_a_restart_that_nobody_saw_is_found_after_two() -> None:
    our, view = router(), fleet("a")
    serve(our, query("0", 50, 7), view, 0.0)
    for number in range(4):
        serve(our, query(f"s{number}", 50, number * 99_991), view, 1.0, cached=0)
    serve(our, query("s0 again", 50, 0), view, 2.0, cached=5000)
    wrong = 0
    for number in range(5):
        choice = our.choose(query(f"w{number}", 50, number * 99_991 if number < 4 else 7), view, 3.0 + number)
        wrong += choice.cached_tokens > 0
        our.first_token(f"w{number}", 3.1 + number)
        our.finished(f"w{number}", 3.5 + number, 5, 0)
    assert wrong == 2


def test_a_request_that_failed_leaves_nothing_but_one_that_was_cancelled_late_does() -> None:
    our, view = router(), fleet("a")
    our.choose(query("0", 50), view, 0.0)
    our.cancelled("0", 1.0)
    assert our.entries == 0
    our.choose(query("1", 50), view, 2.0)
    our.first_token("1", 3.0)
    our.cancelled("1", 4.0)
    assert our.entries == 50


def test_a_request_that_failed_takes_nothing_along_that_its_engine_has_but_would_not_have_used() -> None:
    """An engine of slots finds less of a prompt than it has."""
    our, view = router(), fleet("a", a={"slots": 1})
    serve(our, query("0", 20), view, 0.0)
    serve(our, query("1", 20, 99_999), view, 1.0)
    assert our.choose(query("2", 4), view, 2.0).cached_tokens == 0  # of the first, too little to be worth its place
    our.cancelled("2", 3.0)
    assert our.entries == 40


@pytest.mark.parametrize("engines", [("a",), ("a", "b")])
@pytest.mark.parametrize("cut", [True, False])
def test_one_that_is_chosen_for_again_is_no_reuse_of_itself(engines: tuple[str, ...], cut: bool) -> None:
    our = router()
    before = our._reuse.chance_after(60.0)
    serve(our, query("0", 50), fleet("a"), 0.0)
    for attempt in range(5):
        our.choose(query("1", 50), fleet(engines[attempt % len(engines)]), 100.0 + attempt)
        if cut:
            our.cancelled("1", 100.5 + attempt)
    assert our._reuse.chance_after(60.0) > before  # one gap, of 100 seconds
    assert our._reuse.chance_after(60.0) == pytest.approx(_after_one_gap(100.0))
    if len(engines) == 1:
        our.choose(query("1", 50), fleet("a"), 110.0)
        charge = our._ledger.get("1")
        assert charge is not None
        assert charge.used < 1.0


def _after_one_gap(gap_s: float) -> float:
    gaps = ReuseGaps()
    gaps.seen(gap_s)
    return gaps.chance_after(60.0)


@pytest.mark.parametrize("served", [True, False])
def test_an_engine_that_is_gone_is_forgotten_with_its_last_request(served: bool) -> None:
    our = router()
    for number in range(2):
        our.choose(query(str(number), 50, 9000 * number), fleet("a"), 0.0)
        our.first_token(str(number), 1.0)
    serve(our, query("2", 5, 70_000), fleet("b"), 2.0)
    for number in range(2):
        assert our.entries == 105
        if served:
            our.finished(str(number), 3.0, 5)
        else:
            our.cancelled(str(number), 3.0)
    assert our.entries == 5
    assert our._ledger.forget(("b",)) == []


def test_an_engine_has_as_many_slots_as_it_says_now() -> None:
    our = router()
    serve(our, query("0", 50), fleet("a", a={"slots": 1}), 0.0)
    view = fleet("a", a={"slots": 4})
    our.choose(query("1", 50, 99_991), view, 1.0)  # runs on
    serve(our, query("2", 50, 199_982), view, 2.0)
    assert our.choose(query("3", 50, 199_982), view, 3.0).cached_tokens == 5000


def test_nothing_is_learned_of_speed_where_the_clock_stands() -> None:
    our, view = router(), fleet("a")
    before = our.snapshot("a")
    for number in range(50):
        our.choose(query(str(number), 300, number * 99_991), view, 1.0)
        our.first_token(str(number), 1.0)
        our.finished(str(number), 1.0, 5)
    assert our.snapshot("a").prefill_tokens_per_s == before.prefill_tokens_per_s


def test_every_policy_feeds_the_index() -> None:
    for policy in POLICIES:
        our = router(policy)
        serve(our, query("0", 50, affinity="s"), fleet("a"), 0.0)
        assert our.choose(query("1", 50, affinity="s"), fleet("a"), 1.0).cached_tokens == 5000


def test_it_learns_how_fast_engines_are() -> None:
    our, view = router(), fleet("a")
    for number in range(300):
        asked = query(str(number), 20, number * 7919)
        our.choose(asked, view, float(number))
        our.first_token(asked.request, number + 0.6)
        our.finished(asked.request, number + 0.7, 5)
    assert our.choose(query("x", 20, 5), view, 301.0).ttft_s == pytest.approx(0.6, rel=0.1)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=40), st.sampled_from(POLICIES), st.integers(1, 60))
def test_the_index_keeps_its_budget(asked: list[tuple[int, int]], policy: PolicyName, entries: int) -> None:
    our = router(policy, index_entries=entries)
    for number, (start, length) in enumerate(asked):
        serve(our, query(str(number), length, start * 50_000), AB, float(number))
        assert our.entries <= entries


class Balanced(RuleBasedStateMachine):
    """Requests come, get first tokens, end or are cut, engines are lost, all in any order: at the end nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        self.our = router(hold_s=2.0, index_entries=200)
        self.names = "abc"
        self.open: list[str] = []
        self.now_s = 0.0
        self.number = 0
        self.before: dict[int, int] = {}  # each key, and the one that it continues

    @rule(
        start=st.integers(0, 4),
        length=st.integers(0, 30),
        avoid=st.sets(st.sampled_from("abc")),
        told=st.fixed_dictionaries({"ready": st.booleans(), "ejected": st.booleans(), "running": st.integers(0, 3)}),
    )
    def ask(self, start: int, length: int, avoid: set[str], told: dict[str, Any]) -> None:
        self.number += 1
        a, b, c = EngineView("a", **told), EngineView("b", ready=True, slots=2), EngineView("c", ready=True, most_running=2)
        asked = query(str(self.number), length, start * 50_000, avoid=avoid)
        self.before.update((key, before) for before, key in pairwise(asked.keys))
        choice = self.our.choose(asked, FleetView((a, b, c)), self.now_s)
        assert choice.engine not in avoid
        assert 0 <= choice.cached_tokens <= length * CHUNK
        if choice.engine is not None:
            self.open.append(str(self.number))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), what=st.sampled_from(["first", "finished", "cancelled"]), cached=st.sampled_from([None, 0, 500]))
    def go_on(self, data: st.DataObject, what: str, cached: int | None) -> None:
        request = data.draw(st.sampled_from(self.open))
        if what == "first":
            self.our.first_token(request, self.now_s, cached)
            return
        self.open.remove(request)
        for _ in range(2):  # said twice is said once
            if what == "finished":
                self.our.finished(request, self.now_s, 10, cached)
            else:
                self.our.cancelled(request, self.now_s)

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(engine=st.sampled_from("abc"))
    def lose(self, engine: str) -> None:
        self.our.engine_lost(engine)

    @invariant()
    def counts_what_is_open(self) -> None:
        assert self.our.open == len(self.open)
        assert sum(self.our._ledger.account(name).running for name in self.names) == len(self.open)

    @invariant()
    def what_is_held_is_held_from_the_root(self) -> None:
        for name in self.names:
            held = self.our._map(name)._used
            assert all(before in held for key, before in self.before.items() if key in held)

    def teardown(self) -> None:
        for request in self.open:
            self.our.cancelled(request, self.now_s)
        for name in self.names:
            account, held = self.our._ledger.account(name), self.our._map(name)
            assert (account.running, account.pending_ns, held.pinned, held.expected) == (0, 0, 0, 0)
            assert self.our.pending_s(name) == 0.0
        assert self.our.idle


TestBalanced = Balanced.TestCase
