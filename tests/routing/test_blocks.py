"""Keys from an engine's own blocks, as a naive model of what it holds has them, whatever the sizes and the order."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.routing.block_rows import Rows
from gateway.routing.blocks import Blocks, KeyChanges, Run
from gateway.routing.chain import packed, token_chain
from gateway.wire.kv import Cleared, Removed, Stored

ROOT = 77


def chain(ids: Sequence[int], chunk: int = 4) -> tuple[int, ...]:
    return token_chain(ids, chunk, ROOT)


def name(ids: Sequence[int]) -> int:
    """An engine's hash of a prefix."""
    return hash(tuple(ids)) & ((1 << 60) - 1)


def stored(ids: Sequence[int], size: int, first: int = 0, tier: str = "GPU", **told: object) -> Stored:
    """The whole blocks of a prompt from the first on."""
    ends = range((first + 1) * size, len(ids) + 1, size)
    parent = name(ids[: first * size]) if first else None
    whole = ids[first * size : ends[-1]]
    return Stored(tuple(name(ids[:end]) for end in ends), parent, packed(whole), size, tier=tier, **told)  # type: ignore[arg-type]  # any field


def rooted(ids: Sequence[int], first: int = 0) -> tuple[Run, ...]:
    """The keys of a prompt from this one on, as they are told."""
    keys = chain(ids)
    return (Run(keys[first - 1] if first else None, keys[first:]),)


def held(blocks: Blocks) -> set[int]:
    return {key for run in blocks.held() for key in run.keys}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 8, 12, 16, 40])
def test_any_size_of_block_gives_the_keys_of_its_tokens(size: int) -> None:
    ids = list(range(100, 140))
    blocks = Blocks(ROOT, 4)
    changes = blocks.apply([stored(ids, size)])
    whole = chain(ids[: len(ids) // size * size])
    assert changes == KeyChanges((Run(None, whole),) if whole else ())
    assert blocks.held() == changes.stored


@pytest.mark.parametrize("size", [1, 3, 4, 16])
def test_one_block_an_event_gives_the_same(size: int) -> None:
    ids = list(range(48))
    blocks = Blocks(ROOT, 4)
    for first in range(len(ids) // size):
        blocks.apply([stored(ids[: (first + 1) * size], size, first)])
    assert blocks.held() == rooted(ids)


def test_a_block_that_leaves_takes_what_goes_on_from_it_until_it_is_back() -> None:
    ids = list(range(32))
    blocks = Blocks(ROOT, 4)
    blocks.apply([stored(ids, 4)])
    keys = chain(ids)
    assert set(blocks.apply([Removed((name(ids[:12]),))]).removed) == set(keys[2:])
    assert blocks.held() == rooted(ids[:8])
    assert blocks.apply([stored(ids[:12], 4, 2)]) == KeyChanges(rooted(ids, 2))


def test_what_left_from_its_end_leaves_nothing_behind() -> None:
    ids = list(range(32))
    blocks = Blocks(ROOT, 4)
    blocks.apply([stored(ids, 4)])
    for end in (12, 32, 28, 24, 20, 16, 8, 4):
        blocks.apply([Removed((name(ids[:end]),))])
    assert (len(blocks), blocks.keys, blocks.strange) == (0, 0, 0)


def test_an_orphan_is_adopted_when_its_parent_shows() -> None:
    ids = list(range(32))
    blocks = Blocks(ROOT, 4)
    assert blocks.apply([stored(ids, 4, 4)]) == KeyChanges()
    assert (len(blocks), blocks.orphans) == (0, 4)
    assert blocks.apply([stored(ids[:16], 4)]) == KeyChanges(rooted(ids))
    assert blocks.orphans == 0


def test_an_orphan_that_left_is_not_adopted() -> None:
    ids = list(range(16))
    blocks = Blocks(ROOT, 4)
    blocks.apply([stored(ids, 4, 2), Removed((name(ids[:16]),))])
    assert blocks.apply([stored(ids[:8], 4)]) == KeyChanges(rooted(ids[:12]))


def test_orphans_are_bounded_and_the_oldest_goes() -> None:
    blocks = Blocks(ROOT, 4, most_orphans=8)
    for start in range(40):
        blocks.apply([stored([start, *range(7)], 4, 1)])
    assert blocks.orphans == 8
    assert blocks.apply([stored([39, 0, 1, 2], 4), stored([3, 0, 1, 2], 4)]).stored == (
        *rooted([39, *range(7)]),
        *rooted([3, 0, 1, 2]),
    )


def leaf(ids: Sequence[int], index: int) -> Stored:
    """The last block of a prompt that goes on from this one."""
    return stored([*ids, *[1000 + index] * 4], 4, len(ids) // 4)


def test_what_grows_is_told_by_what_is_new() -> None:
    ids = list(range(40))
    blocks, keys = Blocks(ROOT, 4), chain(ids)
    blocks.apply([stored(ids[:20], 4)])
    assert blocks.apply([stored(ids, 4, 5)]) == KeyChanges((Run(keys[4], keys[5:]),))


def test_many_that_part_are_told_in_as_few_runs_as_can_be() -> None:
    ids, other = list(range(40)), [*range(20), *range(50, 70)]
    blocks, keys = Blocks(ROOT, 4), chain(ids)
    for end in range(24, 41, 4):
        blocks.apply([stored(ids[:end], 4, 0), stored(other[:end], 4, 0)])
    assert blocks.held() == (Run(None, keys), Run(keys[4], chain(other)[5:]))


def test_a_key_is_held_while_any_tier_holds_it() -> None:
    ids = list(range(16))
    names = tuple(name(ids[:end]) for end in (4, 8, 12, 16))
    blocks = Blocks(ROOT, 4)
    blocks.apply([stored(ids, 4), Stored(names, None, b"", 0, tier="CPU")])
    assert blocks.apply([Removed(names, "GPU")]) == KeyChanges()
    assert blocks.apply([Removed(names[3:], "CPU")]).removed == chain(ids)[3:]
    assert blocks.apply([Stored(names[3:], None, b"", 0, tier="CPU")]) == KeyChanges()  # it is not known any more
    assert blocks.strange == 1
    assert set(blocks.apply([Removed(names[:3])]).removed) == set(chain(ids)[:3])  # of all tiers


def test_an_offloaded_orphan_stays_in_the_other_tier() -> None:
    ids = list(range(8))
    blocks = Blocks(ROOT, 4)
    blocks.apply([stored(ids, 4, 1), Stored((name(ids),), None, b"", 0, tier="CPU"), Removed((name(ids),), "GPU")])
    assert blocks.apply([stored(ids[:4], 4)]).stored == rooted(ids)


def test_an_orphan_that_is_told_again_with_a_parent_that_is_known() -> None:
    ids = list(range(8))
    blocks = Blocks(ROOT, 4)
    blocks.apply([Stored((name(ids),), 99, packed(ids[4:]), 4)])
    assert blocks.apply([stored(ids, 4)]).stored == rooted(ids)
    assert blocks.orphans == 0


def test_what_leaves_and_was_never_told_is_counted() -> None:
    blocks = Blocks(ROOT, 4)
    assert blocks.apply([Removed((1, 2))]) == KeyChanges()
    assert blocks.strange == 2


def test_told_twice_is_told_once() -> None:
    ids = list(range(16))
    blocks = Blocks(ROOT, 4)
    blocks.apply([stored(ids, 4)])
    assert blocks.apply([stored(ids, 4)]) == KeyChanges()
    assert len(blocks.apply([Removed((name(ids[:4]),))]).removed) == 4


def test_what_comes_and_goes_within_a_batch_changes_nothing() -> None:
    ids, more = list(range(8)), list(range(16))
    blocks = Blocks(ROOT, 4)
    blocks.apply([stored(ids, 4)])
    leaf = Removed((name(more),))
    assert blocks.apply([stored(more, 4), leaf, Removed((name(more[:12]),))]) == KeyChanges()
    assert blocks.apply([Removed((name(ids),)), stored(ids, 4, 1)]) == KeyChanges()


def test_only_layers_that_see_the_whole_prompt_count() -> None:
    ids = list(range(16))
    blocks = Blocks(ROOT, 4)
    assert blocks.apply([stored(ids, 4, group=1), stored(ids, 4, full=False)]) == KeyChanges()
    blocks.apply([stored(ids, 4, full=True), Removed((name(ids[:4]),), group=1)])
    assert blocks.keys == 4


def test_another_adapter_says_nothing_of_ours() -> None:
    ids = list(range(16))
    blocks = Blocks(ROOT, 4, adapter="mine")
    blocks.apply([stored(ids, 4)])
    assert blocks.apply([stored(ids, 4, adapter="theirs")]) == KeyChanges()
    # Only now is it known that the name is that of an adapter: what was told of the model without one is not ours.
    assert blocks.apply([stored(ids[:8], 4, adapter="mine")]) == KeyChanges(rooted(ids[:8]), cleared=True)
    assert blocks.apply([stored(list(range(50, 66)), 4)]) == KeyChanges()


def test_a_salted_block_and_what_goes_on_from_it_is_not_ours() -> None:
    ids = list(range(32))
    blocks = Blocks(ROOT, 4)
    assert blocks.apply([stored(ids[:16], 4, salted=1)]).stored == rooted(ids[:4])
    assert blocks.apply([stored(ids, 4, 4)]) == KeyChanges()
    assert (len(blocks), blocks.orphans) == (8, 0)


def test_cleared_leaves_nothing() -> None:
    ids = list(range(16))
    blocks = Blocks(ROOT, 4)
    blocks.apply([stored(ids, 4), stored([9, *range(7)], 4, 1)])
    assert blocks.apply([Cleared(), stored(ids[:8], 4)]) == KeyChanges(rooted(ids[:8]), cleared=True)
    assert (blocks.keys, blocks.orphans) == (2, 0)


def test_more_blocks_than_are_kept_end_it_until_all_is_cleared() -> None:
    blocks = Blocks(ROOT, 4, most_blocks=8)
    blocks.apply([stored(list(range(32)), 4)])
    assert blocks.keys == 8
    assert blocks.apply([stored(list(range(50, 54)), 4)]) == KeyChanges(cleared=True)
    assert (blocks.problem, len(blocks)) == ("overfull", 0)
    assert blocks.apply([stored(list(range(8)), 4)]) == KeyChanges(cleared=True)
    blocks.apply([Cleared(), stored(list(range(8)), 4)])
    assert blocks.keys == 2


def test_an_orphan_that_does_not_fit_any_more_ends_it() -> None:
    ids = list(range(16))
    blocks = Blocks(ROOT, 4, most_blocks=2)
    blocks.apply([stored(ids, 4, 1), stored(ids[:4], 4)])
    assert blocks.problem == "overfull"


@pytest.mark.parametrize("count", [0, 2, 5])
def test_ids_that_are_not_those_of_the_blocks_do_not_fit(count: int) -> None:
    blocks = Blocks(ROOT, 4)
    blocks.apply([Stored(tuple(range(count)), None, packed(range(13)), 4)])
    assert blocks.problem == "unfit"


def test_the_last_block_may_be_shorter_and_a_later_one_longer() -> None:
    ids = list(range(32))
    blocks = Blocks(ROOT, 4)
    blocks.apply([Stored((1, 2), None, packed(ids[:7]), 4), Stored((3,), 1, packed(ids[4:16]), 12)])
    assert blocks.held() == rooted(ids[:16])


def test_siblings_in_which_the_same_chunk_ends_hold_its_key_together() -> None:
    ids, other = list(range(6)), [0, 1, 2, 3, 8, 9]
    blocks = Blocks(ROOT, 4)
    for each in (ids, other, [0, 1, 2, 3, 8, 7]):
        blocks.apply([stored(each, 3)])
    assert blocks.apply([Removed((name(ids),))]) == KeyChanges()
    assert blocks.apply([Removed((name(other),))]) == KeyChanges()
    assert blocks.apply([Removed((name([0, 1, 2, 3, 8, 7]),))]).removed == chain(ids)


class Engine(RuleBasedStateMachine):
    """Against a naive model: which prefixes are stored, and the keys of those of which all before them are."""

    @initialize(size=st.sampled_from((1, 2, 3, 4, 6, 9)), chunk=st.sampled_from((2, 3, 4)))
    def begin(self, size: int, chunk: int) -> None:
        self.size, self.chunk = size, chunk
        self.blocks = Blocks(ROOT, chunk)
        self.present: dict[tuple[int, ...], set[str]] = {}
        self.seen: set[int] = set()
        self.batch: list[Stored | Removed | Cleared] = []

    def tell(self, *events: Stored | Removed | Cleared, more: bool = False) -> None:
        """`more`: in one batch with the next."""
        self.batch += events
        if more:
            return
        changes = self.blocks.apply(self.batch)
        self.batch.clear()
        if changes.cleared:
            self.seen = set()
        assert self.seen >= set(changes.removed)
        self.seen -= set(changes.removed)
        for after, keys in changes.stored:
            assert after is None or after in self.seen
            assert self.seen.isdisjoint(keys)
            self.seen |= set(keys)

    @rule(
        ids=st.lists(st.integers(0, 1), min_size=9, max_size=30),
        first=st.integers(0, 6),
        tier=st.sampled_from(("GPU", "CPU")),
        more=st.booleans(),
    )
    def store(self, ids: list[int], first: int, tier: str, more: bool) -> None:
        count = len(ids) // self.size
        first = min(first, count - 1)
        self.tell(stored(ids[: count * self.size], self.size, first, tier), more=more)
        for index in range(first, count):
            self.present.setdefault(tuple(ids[: (index + 1) * self.size]), set()).add(tier)

    @rule(data=st.data(), tier=st.sampled_from(("GPU", "CPU", None)), more=st.booleans())
    def remove(self, data: st.DataObject, tier: str | None, more: bool) -> None:
        if self.present:
            gone = data.draw(st.lists(st.sampled_from(sorted(self.present)), min_size=1, max_size=4, unique=True))
            self.tell(Removed(tuple(name(each) for each in gone), tier), more=more)
            for each in gone:
                self.present[each] -= {tier} if tier else {"GPU", "CPU"}
                if not self.present[each]:
                    del self.present[each]

    @rule()
    def clear(self) -> None:
        self.tell(Cleared())
        self.present = {}

    @invariant()
    def as_the_naive_model(self) -> None:
        if not hasattr(self, "blocks") or self.batch:
            return
        keys: set[int] = set()
        for each in self.present:
            if all(each[:end] in self.present for end in range(self.size, len(each) + 1, self.size)):
                keys |= set(token_chain(each, self.chunk, ROOT))
        assert held(self.blocks) == keys == self.seen
        assert self.blocks.keys == len(keys)
        assert self.blocks.problem is None


TestEngine = Engine.TestCase


def test_a_block_that_comes_and_goes_costs_what_goes_on_from_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, breaths = list(range(4 * 50)), list[int]()
    blocks = Blocks(ROOT, 4, breathe=lambda: breaths.append(1))
    blocks.apply([stored(ids, 4)])
    monkeypatch.setattr("gateway.routing.blocks._KEY_BREATH", 1)  # for each block that is looked at, and key that is told
    breaths.clear()
    again: list[Removed | Stored] = [Removed((name(ids[:4]),)), stored(ids[:4], 4)]
    assert blocks.apply(again * 100) == KeyChanges()
    assert len(breaths) == 0
    assert len(blocks.apply([*again * 100, again[0]]).removed) == 50
    assert len(breaths) == 50


def test_a_full_cache_that_lets_go_of_as_much_as_comes_has_room() -> None:
    blocks = Blocks(ROOT, 4, most_blocks=2)
    for start in range(0, 80, 8):
        ids = list(range(start, start + 8))
        gone = Removed((name(ids[:4]), name(ids)))
        assert blocks.apply([stored(ids, 4), gone, stored([*ids[4:], *ids[:4]], 4)]).stored == rooted([*ids[4:], *ids[:4]])
        assert (blocks.problem, len(blocks)) == (None, 2)
        blocks.apply([Removed((name(ids[4:]), name([*ids[4:], *ids[:4]])))])


def test_a_block_that_goes_on_from_one_that_had_to_leave_for_it_does_not_fit() -> None:
    blocks = Blocks(ROOT, 4, most_blocks=2)
    blocks.apply([stored([1] * 4, 4), stored([2] * 4, 4)])
    blocks.apply([Removed((name([1] * 4),)), stored([1] * 8, 4, 1)])
    assert (blocks.problem, len(blocks)) == ("overfull", 0)


def test_tiers_beyond_some_are_one() -> None:
    ids = list(range(4))
    blocks = Blocks(ROOT, 4)
    for number in range(300):
        blocks.apply([stored(ids, 4, tier=f"disk {number}")])
    assert len(blocks._tier_bits) < 8
    for number in range(7):
        assert blocks.apply([Removed((name(ids),), f"disk {number}")]) == KeyChanges()
    assert blocks.apply([Removed((name(ids),), "disk 299")]).removed == chain(ids)


def test_blocks_that_grow_move_the_others_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, widen = list[int](), Rows._widen

    def counted(rows: Rows, stride: int) -> None:
        moved.append(stride)
        widen(rows, stride)

    monkeypatch.setattr(Rows, "_widen", counted)
    blocks = Blocks(ROOT, 4)
    for size in range(1, 1000):
        blocks.apply([stored([size] * size, size)])
    assert moved == [4 << doubled for doubled in range(11)]
    assert held(blocks) == {key for size in range(1, 1000) for key in chain([size] * size)}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 9))
def test_the_ends_decide(ids: list[int], size: int, chunk: int) -> None:
    blocks = Blocks(ROOT, chunk)
    whole = len(ids) // size * size
    if whole:
        blocks.apply([stored(ids[:whole], size)])
    assert held(blocks) == set(token_chain(ids[:whole], chunk, ROOT))


def test_much_at_once_lets_others_work() -> None:
    breaths: list[int] = []
    blocks = Blocks(ROOT, 4, breathe=lambda: breaths.append(blocks.keys))
    blocks.apply([stored(list(range(400)), 4)])
    assert len(breaths) == 3
    blocks.apply([Cleared(), stored(list(range(4 * 10_000)), 4)])
    breaths.clear()
    blocks.held()
    assert len(breaths) == 2  # every 4,096 keys
