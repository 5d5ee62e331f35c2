"""Whatever an engine tells of its cache, the router holds what the mirror holds, and of each prompt all from its first key on."""

import random

import pytest

from engines.kv_events import ZmqEvents
from gateway.fleet import kv_mirror
from gateway.fleet.kv_mirror import Mirror, News
from gateway.routing.blocks import Blocks
from gateway.routing.chain import packed
from gateway.routing.prefix import EngineMap, PrefixIndex
from gateway.wire.kv import Cleared, KvBatch, KvEvent, Removed, Stored

ROOT, NAMES = 7, 12


def event(chance: random.Random) -> KvEvent:
    """Names of a few blocks in any order: twice in one event, their own parents, each other's, with other tokens than before."""
    kind = chance.random()
    names = tuple([chance.randrange(NAMES) for _ in range(chance.randrange(5))])
    if kind < 0.03:
        return Cleared()
    if kind < 0.45:
        return Removed(names, chance.choice([None, "A", "B"]), chance.choice([0] * 8 + [1]))
    size = chance.choice([1, 2, 3, 9])
    return Stored(
        names,
        chance.choice([None, chance.randrange(NAMES), chance.randrange(NAMES)]),
        packed([chance.randrange(2) for _ in range(len(names) * size)]) if chance.random() < 0.85 else b"",
        size,
        adapter=chance.choice([None] * 8 + ["x"]),
        salted=chance.choice([None] * 6 + [0, 1]),
        tier=chance.choice("ABC"),
        group=chance.choice([0] * 8 + [1]),
        full=chance.choice([None, None, None, False]),
    )


class Told:
    """One engine's map in an index, as it is told what is new."""

    def __init__(self, entries: int) -> None:
        self.index = PrefixIndex(entries)
        self.map: EngineMap = self.index.of("a", 10)
        self.live = False
        self._now_s = 0.0

    def take(self, news: News) -> None:
        if news.reason is not None:
            self.live = not news.reason
            self.map.tells(1) if self.live else self.map.silent()
        if not self.live:
            return
        if news.changes.cleared:
            self.map.clear()
        self.map.removed(news.changes.removed)
        for after, keys in news.changes.stored:
            self._now_s += 1.0
            self.map.stored(after, keys, self.index.stamp(self._now_s))
            self.index.trim(self.map)


@pytest.mark.parametrize("seed", range(300))
def test_the_router_holds_what_was_told(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(kv_mirror, "PIECE", chance.choice([1, 2, 5, 4096]))
    most_blocks, most_orphans = chance.choice([5, 8, 1000]), chance.choice([2, 8])
    blocks = Blocks(
        ROOT, chance.choice([1, 2, 4]), chance.choice([None, "x"]), most_blocks=most_blocks, most_orphans=most_orphans
    )
    mirror, told = Mirror(ZmqEvents(), blocks, None), Told(chance.choice([5, 1000]))
    mirror.begin()
    for _ in range(60):
        mirror.read(KvBatch(tuple([event(chance) for _ in range(chance.randrange(4))])))
        if chance.random() < 0.05:
            mirror.again()
        if chance.random() < 0.5:
            continue
        for news in mirror.news():
            told.take(news)
        assert told.live == mirror.complete
        assert len(blocks) <= most_blocks
        assert blocks.orphans <= most_orphans
        if told.live:
            assert told.map._word is not None
            before, used = told.map._word.before, told.map._used
            assert before.keys() == {key for run in blocks.held() for key in run.keys}
            assert used.keys() <= before.keys()
            assert all(before[key] is None or before[key] in used for key in used)
