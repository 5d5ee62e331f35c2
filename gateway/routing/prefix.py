"""What each engine of one model is believed to hold of prompts: keys by last use, bounded by one budget.
 Each map is closed: who holds a key holds all before it in its chain. So a match is a binary search, and the leaf goes first:
it is touched before its root. What running requests hold cannot leave. Invariant: of an unpinned key, all that continue it are
older.
"""

from collections import Counter, OrderedDict
from collections.abc import Container, Sequence
from math import inf, nextafter

_ROTATIONS = 512  # pinned keys that one trim steps over: what is pinned beyond that may stand over the capacity
_BATCH = 64  # keys that leave one engine before the oldest is looked for again


def shared(keys: Sequence[int], held: Container[int], most: int | None = None) -> int:
    """How many of these keys, from the root, are held: the held are closed."""
    low, high = 0, len(keys) if most is None else most
    if high and keys[0] not in held:  # most engines, most often
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low


class EngineMap:
    """The keys of one engine. `capacity` in keys; `expected`: room that the answers of running requests will take."""

    __slots__ = ("_pins", "_used", "capacity", "expected")

    def __init__(self, capacity: int) -> None:
        self._used: OrderedDict[int, float] = OrderedDict()
        self._pins: Counter[int] = Counter()
        self.capacity = capacity
        self.expected = 0

    def __len__(self) -> int:
        return len(self._used)

    @property
    def pinned(self) -> int:
        """Keys that running requests hold, each once."""
        return len(self._pins)

    @property
    def oldest(self) -> float:
        """When the next key to leave was last used; infinity: there is none."""
        return self._used[next(iter(self._used))] if self._used else inf

    def match(self, keys: Sequence[int]) -> int:
        """How many keys, from the root, it holds."""
        return shared(keys, self._used)

    def match_pinned(self, keys: Sequence[int], most: int) -> int:
        """How many of the first `most` keys running requests hold."""
        return shared(keys, self._pins, most)

    def last_use(self, key: int) -> float:
        """When it was last used; -infinity: never."""
        return self._used.get(key, -inf)

    def pin(self, keys: Sequence[int], stamp: float) -> None:
        """A request with this prompt runs from now on."""
        self._pins.update(keys)
        self.touch(keys, stamp)

    def touch(self, keys: Sequence[int], stamp: float) -> None:
        """They are held, and were used now: the leaf first."""
        used, to_end = self._used, self._used.move_to_end
        for key in reversed(keys):
            used[key] = stamp
            to_end(key)

    def unpin(self, keys: Sequence[int]) -> None:
        """The request is over. To be followed by `touch` or `settle`: a leaf that was pinned may have been passed over."""
        pins = self._pins
        for key in keys:
            left = pins[key] - 1
            if left:
                pins[key] = left
            else:
                del pins[key]

    def settle(self, keys: Sequence[int]) -> None:
        """Brings what is held of these in order again, the leaf first, without a new use."""
        used = self._used
        for key in reversed(keys):
            if key in used:
                used.move_to_end(key)

    def drop_unproved(self, keys: Sequence[int], matched: int, stamp: float) -> None:
        """The request never got a first token: what only it would have brought is not there."""
        for key in reversed(keys[matched:]):
            if self._used.get(key) != stamp or key in self._pins:
                return
            del self._used[key]

    def trim(self) -> None:
        """Lets the oldest leave until what is held and expected fits."""
        over = len(self._used) + self.expected - self.capacity
        if over > 0:
            self.evict(over)

    def evict(self, count: int) -> int:
        """Lets so many leave, the least recently used first; how many could."""
        used, pins = self._used, self._pins
        gone = rotated = 0
        while gone < count and rotated < _ROTATIONS and len(used) > len(pins):
            key, stamp = used.popitem(last=False)
            if key in pins:
                used[key] = stamp
                rotated += 1
            else:
                gone += 1
        return gone

    def clear(self) -> None:
        """The engine holds nothing any more. Requests that still run keep their pins: they let go themselves."""
        self._used.clear()


class PrefixIndex:
    """The maps of a model's engines, under one budget of entries."""

    def __init__(self, entries: int) -> None:
        self._budget = entries
        self._maps: dict[str, EngineMap] = {}
        self._stamp = -inf

    def __len__(self) -> int:
        return sum(len(each) for each in self._maps.values())

    def get(self, engine: str) -> EngineMap | None:
        """The map of an engine that has one."""
        return self._maps.get(engine)

    def of(self, engine: str, capacity: int) -> EngineMap:
        """The map of an engine; a new one has this capacity."""
        found = self._maps.get(engine)
        if found is None:
            found = self._maps[engine] = EngineMap(capacity)
        return found

    def drop(self, engine: str) -> None:
        """Forgets an engine that is gone for good."""
        self._maps.pop(engine, None)

    def stamp(self, now_s: float) -> float:
        """Now, and later than every stamp before: no two uses are at the same time."""
        self._stamp = max(now_s, nextafter(self._stamp, inf))
        return self._stamp

    def trim(self, engine: EngineMap) -> None:
        """After a map has grown: brings it under its own capacity, and all under the budget."""
        engine.trim()
        over = len(self) - self._budget
        while over > 0:
            gone = 0
            for each in sorted(self._maps.values(), key=lambda each: each.oldest):
                gone = each.evict(min(over, _BATCH))
                if gone:
                    break
            if not gone:
                return
            over -= gone
