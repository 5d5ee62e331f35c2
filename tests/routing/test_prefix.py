"""Keys of prompts, and what an engine is believed to hold: by table, and by every order of uses, pins and evictions."""

import random
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.routing.chain import ChainCache, packed, root_key, text_chain, token_chain
from gateway.routing.prefix import EngineMap, PrefixIndex, shared

IDS = st.lists(st.integers(0, 200_000), max_size=200)


@given(IDS, IDS, st.integers(1, 9))
def test_keys_agree_exactly_as_far_as_whole_chunks_do(one: list[int], other: list[int], chunk: int) -> None:
    first, second = token_chain(one, chunk), token_chain(one[: len(one) // 2] + other, chunk)
    alike = 0
    for a, b in zip(one, one[: len(one) // 2] + other, strict=False):
        if a != b:
            break
        alike += 1
    assert len(first) == len(one) // chunk
    assert [a == b for a, b in zip(first, second, strict=False)] == [
        (number + 1) * chunk <= alike for number in range(min(len(first), len(second)))
    ]


@given(IDS)
def test_packed_ids_have_the_same_keys(ids: list[int]) -> None:
    assert token_chain(packed(ids), 8) == token_chain(tuple(ids), 8)


def test_a_chain_does_not_change() -> None:
    """Replicas share keys: another release must make the same."""
    assert token_chain(range(6), 2) == (51669153076738193, 36222236219024966, 30086213768298816)
    assert all(0 <= key < 1 << 56 for key in token_chain(range(6), 2))


def test_what_else_decides_is_the_root() -> None:
    roots = [root_key("m"), root_key("m", ""), root_key("m", "adapter"), root_key("n"), 0]
    assert len({token_chain(range(8), 4, root)[-1] for root in roots}) == len(roots)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([b"tools", b"hello"], [b"tools", b"hello", b"answer"], 4),
        ([b"tools", b"hello"], [b"tools", b"other"], 2),
        ([b"ab", b"c"], [b"a", b"bc"], 0),
        ([b"abcd"], [b"ab", b"cd"], 0),
        ([b"12345678", b"x"], [b"12345678", b"y"], 2),  # eight bytes are two chunks of four
        ([b"", b"x"], [b"x"], 0),
        ([b"", b"x"], [b"", b"x"], 2),
        ([b"12345678ab"], [b"12345678cdef"], 2),  # one document, and a question of another length
        ([b"1234"], [b"12345678"], 0),
    ],
)
def test_text_is_cut_at_the_ends_of_messages(one: list[bytes], other: list[bytes], same: int) -> None:
    (first, ends), (second, _) = text_chain(one, 4), text_chain(other, 4)
    assert (len(ends), ends[-1]) == (len(first), sum(map(len, one)))
    assert sum(a == b for a, b in zip(first, second, strict=False)) == same


@given(st.data())
def test_the_cache_of_chains_changes_no_key(data: st.DataObject) -> None:
    cache = ChainCache(2, max_bytes=data.draw(st.sampled_from([0, 400, 10_000])))
    prompts: list[list[int]] = [[]]
    for _ in range(data.draw(st.integers(1, 12))):
        base = data.draw(st.sampled_from(prompts))
        ids = base[: data.draw(st.integers(0, len(base)))] + data.draw(st.lists(st.integers(0, 3), max_size=60))
        root = data.draw(st.sampled_from([0, 7]))
        assert cache.chain(ids, root) == token_chain(ids, 2, root)
        assert cache.held_bytes <= cache._max_bytes
        prompts.append(ids)


def test_the_cache_holds_a_conversation_once() -> None:
    cache, ids = ChainCache(4), list(range(64))
    for _ in range(30):
        ids += range(10)
        cache.chain(ids)
    assert cache.held_bytes == len(ids) // 4 * 4 * 4


@pytest.mark.parametrize("alike", [0, 1, 7, 8, 13, 16, 40])
def test_a_prompt_of_before_is_gone_on_with_from_where_another_leaves_it(alike: int) -> None:
    cache, first = ChainCache(4), list(range(40 * 4))
    other = [*first[: alike * 4], *range(1000, 1000 + (40 - alike) * 4)]
    held = 0
    for ids, more in ((first, 1), (other, alike < 40), (first, 0), (other, 0)):
        assert cache.chain(ids) == token_chain(ids, 4)
        held += more * len(ids) * 4
        assert cache.held_bytes == held


def test_the_places_of_prompts_that_are_forgotten_are_so_too() -> None:
    cache = ChainCache(1, max_bytes=64 * 4)
    for start in range(0, 64 * 100, 64):
        cache.chain(range(start, start + 64))
        assert cache.held_bytes == 64 * 4
    assert len(cache._places) <= 16 * 2


@pytest.mark.parametrize("held", range(6))
def test_a_match_is_found_by_halves(held: int) -> None:
    keys = (11, 12, 13, 14, 15)
    assert shared(keys, set(keys[:held])) == held
    assert shared(keys, set(keys), 3) == 3
    assert shared((), set(keys)) == 0


def test_the_leaf_goes_first_and_the_oldest_prompt_before_it() -> None:
    engine = EngineMap(5)
    for stamp, keys in enumerate([(1, 2, 3), (1, 2, 4), (5,)]):
        engine.touch(keys, float(stamp))
    assert (len(engine), engine.oldest) == (5, 0.0)
    engine.capacity = 3
    engine.trim()
    assert [engine.match(keys) for keys in [(1, 2, 3), (1, 2, 4), (5,)]] == [2, 2, 1]


def test_what_runs_stays_and_answers_take_room() -> None:
    engine = EngineMap(4)
    engine.pin((1, 2), 0.0)
    engine.touch((3, 4), 1.0)
    engine.expected = 1
    engine.trim()
    assert (engine.match((1, 2)), engine.match((3, 4))) == (2, 1)
    engine.capacity = 1
    engine.trim()
    assert (engine.match((1, 2)), engine.match((3, 4))) == (2, 0)  # over its capacity, as the engine is
    engine.unpin((1, 2))
    engine.touch((1, 2), 2.0)
    engine.trim()
    assert len(engine) == 0


def test_a_request_without_a_first_token_leaves_what_others_brought() -> None:
    engine = EngineMap(9)
    engine.touch((1, 2), 0.0)
    engine.pin((1, 2, 3, 4), 1.0)
    engine.touch((1, 2, 3), 2.0)
    engine.unpin((1, 2, 3, 4))
    engine.drop_unproved((1, 2, 3, 4), 2, 1.0)
    assert engine.match((1, 2, 3, 4)) == 3


def test_one_budget_for_all_engines_and_the_oldest_leave_first() -> None:
    index = PrefixIndex(6)
    one, other = index.of("a", 99), index.of("b", 99)
    one.touch((1, 2, 3), index.stamp(0.0))
    other.touch((4, 5, 6), index.stamp(1.0))
    other.touch((7, 8), index.stamp(2.0))
    index.trim(other)
    assert (len(index), len(one), len(other)) == (6, 1, 5)
    assert (one.match((1, 2, 3)), index.of("c", 3).oldest) == (1, inf)


def test_stamps_rise_whatever_the_clock_says() -> None:
    index = PrefixIndex(1)
    stamps = [index.stamp(now_s) for now_s in (5.0, 5.0, 4.0, 6.0, 6.0)]
    assert all(a < b for a, b in pairwise(stamps))


def paths(chance: random.Random) -> tuple[int, ...]:
    """A path in a small tree: keys are of what is before them."""
    key, path = 1, []
    for _ in range(chance.randrange(1, 7)):
        key = key * 3 + chance.randrange(3)
        path.append(key)
    return tuple(path)


class Closed(RuleBasedStateMachine):
    """Whatever is done to it, a map is closed, holds what runs, and lets go in the order of last use."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(20)
        self.map = self.index.of("a", 12)
        self.other = self.index.of("b", 12)
        self.running: list[tuple[tuple[int, ...], int, float]] = []
        self.lost = False

    @rule(chance=st.randoms(use_true_random=False))
    def send(self, chance: random.Random) -> None:
        keys, stamp = paths(chance), self.index.stamp(0.0)
        self.running.append((keys, self.map.match(keys), stamp))
        self.map.pin(keys, stamp)
        self.index.trim(self.map)

    @rule(chance=st.randoms(use_true_random=False))
    def elsewhere(self, chance: random.Random) -> None:
        self.other.touch(paths(chance), self.index.stamp(0.0))
        self.index.trim(self.other)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 99), end=st.sampled_from(["finished", "cancelled", "unproved"]))
    def end(self, which: int, end: str) -> None:
        keys, matched, stamp = self.running.pop(which % len(self.running))
        self.map.unpin(keys)
        if end == "finished":
            self.map.touch(keys, self.index.stamp(0.0))
            self.index.trim(self.map)
        else:
            if end == "unproved":
                self.map.drop_unproved(keys, matched, stamp)
            self.map.touch(keys[: self.map.match(keys)], self.index.stamp(0.0))
            self.index.trim(self.map)

    @rule(capacity=st.integers(1, 20))
    def shrink(self, capacity: int) -> None:
        self.map.capacity = capacity
        self.index.trim(self.map)

    @rule()
    def lose(self) -> None:
        self.map.clear()
        self.lost = True

    @invariant()
    def holds_all_before_a_key(self) -> None:
        for key in self.map._used:
            before = key // 3
            assert before == 1 or before in self.map._used

    @invariant()
    def what_may_leave_is_in_the_queue(self) -> None:
        queued = {key for stamp, keys in self.map._uses for key in keys if self.map._used.get(key) == stamp}
        assert self.map._used.keys() - self.map._pins.keys() <= queued
        assert self.map._queued == sum(len(keys) for _, keys in self.map._uses)

    @rule()
    def compact(self) -> None:
        self.map._compact()

    @invariant()
    def holds_what_runs(self) -> None:
        pinned = {key for keys, _, _ in self.running for key in keys}
        assert self.map.pinned == len(pinned)
        if not self.lost:
            assert pinned <= self.map._used.keys()
            assert len(self.map) <= max(self.map.capacity, len(pinned))


TestClosed = Closed.TestCase


def test_what_was_told_key_by_key_leaves_from_its_end_the_least_recently_told_first() -> None:
    held, ours, others = EngineMap(60), tuple(range(1, 41)), tuple(range(101, 141))
    held.tells(1)
    for at in range(40):
        for each in (ours, others) if at < 20 else (ours,):
            held.stored(each[at - 1] if at else None, each[at : at + 1], at + each[0] / 1000)
    held.silent()
    assert (held.match(ours), held.match(others)) == (40, 20)
    for gone in range(1, 21):
        held.evict(1)
        assert (held.match(ours), held.match(others), len(held)) == (40, 20 - gone, 60 - gone)
    for gone in range(1, 41):
        held.evict(1)
        assert (held.match(ours), len(held)) == (40 - gone, 40 - gone)


def test_an_engine_may_tell_that_a_key_is_gone_before_those_that_go_on_from_it() -> None:
    held = EngineMap(1 << 20)
    held.tells(1)
    held.stored(None, (1,), 1.0)
    held.stored(1, (2, 3, 4), 1.5)
    held.removed((2,))
    held.evict(0)
    for number in range(1, 3000):  # until the queue is made short
        held.touch((10,), 5.0 + number)
    held.removed((3, 4))
    assert held.match((1, 2, 3, 4)) == 1
