"""What each engine of one model is believed to hold of prompts: keys by last use, bounded by one budget.

Each map is closed: who holds a key holds all before it in its chain. So a match is a binary search, and the leaf goes first.
What running requests hold cannot leave. The order is kept by uses, not by keys: a queue of whole prompts, of which those keys
count that were not used again since. That takes two thirds of the memory of an ordered map, and a use costs half.
"""

from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from math import inf, nextafter

_BATCH = 64  # keys that leave one engine before the oldest is looked for again
_SLACK = 1024  # keys that the queue may hold beyond twice those of the map
_CONFIRM_S = 5.0  # so long after its end an engine's events may still tell what it has of a prompt
_WRONG_IN_A_ROW = 3
_MOST_DUE = 512


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


class _Hopes:
    """What is believed held by an engine that tells what it holds, and that it has not told: `untold`, of requests that run or
    are over for less than `_CONFIRM_S`. `least` is how many keys a prompt must have for the engine to tell of it at all."""

    __slots__ = ("due", "least", "untold", "wrong")

    def __init__(self, untold: Iterable[int], least: int) -> None:
        self.untold = set(untold)
        self.least = least
        self.wrong = 0
        self.due: deque[tuple[float, Sequence[int], bool]] = deque()


class EngineMap:
    """The keys of one engine. `capacity` in keys; `expected`: room that the answers of running requests will take.

    Invariant: a key that no request holds stands in the queue with its last use, and all that continue it stand before it.

    With `tells` an engine itself tells what it holds: that, and what requests bring there, is held, whatever the capacity.
    """

    __slots__ = ("_hopes", "_pins", "_queued", "_used", "_uses", "capacity", "expected")

    def __init__(self, capacity: int) -> None:
        self._used: dict[int, float] = {}
        self._uses: deque[tuple[float, Sequence[int]]] = deque()
        self._queued = 0
        self._pins: Counter[int] = Counter()
        self._hopes: _Hopes | None = None
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
        used, uses, pins = self._used, self._uses, self._pins
        while uses:
            stamp, keys = uses[0]
            if keys and used.get(keys[-1]) == stamp and keys[-1] not in pins:
                return stamp
            uses.popleft()
            self._queued -= len(keys)
            left = self._left(stamp, keys)
            if left:
                uses.appendleft((stamp, keys[:left]))
                self._queued += left
        return inf

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
        """They are held, and were used now."""
        if self._hopes is not None:
            self._hopes.untold.update([key for key in keys if key not in self._used])
        self._used.update(dict.fromkeys(keys, stamp))
        self._uses.append((stamp, keys))
        self._queued += len(keys)
        if self._queued > 2 * len(self._used) + _SLACK:
            self._compact()

    def unpin(self, keys: Sequence[int]) -> None:
        """The request is over. To be followed by a `touch` of what is held of it: what was pinned may have left the queue."""
        pins = self._pins
        for key in keys:
            left = pins[key] - 1
            if left:
                pins[key] = left
            else:
                del pins[key]

    def drop_unproved(self, keys: Sequence[int], matched: int, stamp: float) -> None:
        """The request never got a first token: what only it would have brought, and the engine has not told of, is not there."""
        hopes = self._hopes
        for key in reversed(keys[matched:]):
            told = hopes is not None and key not in hopes.untold
            if told or self._used.get(key) != stamp or key in self._pins:
                return
            del self._used[key]

    def trim(self) -> None:
        """Lets the oldest leave until what is held and expected fits."""
        over = len(self._used) + self.expected - self.capacity
        if over > 0 and self._hopes is None:
            self.evict(over)

    def evict(self, count: int) -> int:
        """Lets so many leave, the least recently used first; how many could."""
        gone = 0
        while gone < count and self.oldest < inf:
            stamp, keys = self._uses.popleft()
            self._queued -= len(keys)
            left = len(keys)
            while left and gone < count:
                key = keys[left - 1]
                if self._used.get(key) != stamp or key in self._pins:
                    break  # so it is with all before it
                del self._used[key]
                gone += 1
                left -= 1
            if gone == count and left:
                self._uses.appendleft((stamp, keys[:left]))
                self._queued += left
        return gone

    def forget(self, before: float) -> None:
        """What was last used before this is not there, but for what running requests hold."""
        while self.oldest < before:
            self.evict(1)

    def clear(self) -> None:
        """The engine holds nothing any more. Requests that still run keep their pins: they let go themselves."""
        self._used.clear()
        self._uses.clear()
        self._queued = 0
        if self._hopes is not None:
            self._hopes.untold.clear()
            self._hopes.due.clear()

    # What the engine tells

    @property
    def told(self) -> bool:
        """Whether the engine tells what it holds."""
        return self._hopes is not None

    def tells(self, least: int) -> None:
        """From now on the engine tells: it holds what it will say, and what running requests bring there."""
        for key in [key for key in self._used if key not in self._pins]:
            del self._used[key]
        self._hopes = _Hopes(self._used, least)

    def silent(self) -> None:
        """It tells no more: what it has told is believed, as far as there is room."""
        self._hopes = None

    def stored(self, keys: Sequence[int], stamp: float) -> None:
        """It tells that it holds this chain, from the root."""
        if self._hopes is None:
            return
        if keys and keys[-1] not in self._used:
            self.touch(keys, stamp)
        if self._hopes.untold:
            self._hopes.untold.difference_update(keys)

    def removed(self, keys: Iterable[int]) -> None:
        """It tells that it does not hold them, nor what goes on from them. What running requests bring there is about to come."""
        if self._hopes is None:
            return
        known = [key for key in keys if key in self._used]
        self._discard(self._hopes, {key for key in known if key not in self._pins})
        self._hopes.untold.update([key for key in known if key in self._pins])

    def over(self, keys: Sequence[int], now_s: float, *, whole: bool) -> None:
        """A request is over, unpinned and touched; `whole`: it was answered. If the engine tells, it has some time to tell that
        it holds the prompt."""
        if self._hopes is not None:
            self._hopes.due.append((now_s + _CONFIRM_S, keys, whole))
            if len(self._hopes.due) > _MOST_DUE:
                self._settle(self._hopes)

    def disputed(self, now_s: float) -> bool:
        """Drops what it has not told in time. Whether nothing that it told was of the last three prompts."""
        if self._hopes is None:
            return False
        while self._hopes.due and self._hopes.due[0][0] <= now_s:
            self._settle(self._hopes)
        return self._hopes.wrong >= _WRONG_IN_A_ROW

    def _settle(self, hopes: _Hopes) -> None:
        """The next that is due: what was not told of it is not there."""
        _, keys, whole = hopes.due.popleft()
        told = self._told(keys, hopes)
        if told:
            hopes.wrong = 0
        elif whole and len(keys) >= hopes.least and keys[0] in self._used:  # else it told of it, and that it is gone again
            hopes.wrong += 1
        late = [key for key in keys[told:] if key not in self._pins]
        self._discard(hopes, {key for key in late if key in self._used})
        hopes.untold.difference_update(late)

    def _told(self, keys: Sequence[int], hopes: _Hopes) -> int:
        """How many of these keys, from the root, it has told: who told one told all before it."""
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in self._used and keys[middle] not in hopes.untold:
                low = middle + 1
            else:
                high = middle
        return low

    def _discard(self, hopes: _Hopes, gone: set[int]) -> None:
        """Drops these keys, with what was hoped to go on from them."""
        untold, more = hopes.untold, set(gone)
        for _, keys, _ in hopes.due if gone and untold else ():
            if not keys or (keys[-1] in self._used and keys[-1] not in untold):  # all of it was told, most often
                continue
            first = max(self._told(keys, hopes) - 1, 0)
            cut = next((index for index in range(first, len(keys)) if keys[index] in gone), len(keys))
            more.update([key for key in keys[cut:] if key in self._used])
        for key in more:
            del self._used[key]
        untold.difference_update(more)

    def _left(self, stamp: float, keys: Sequence[int]) -> int:
        """How many of the keys of a use may still leave by it, from the root: none, where the last that is held was used again,
        or is pinned and comes back when its request is over."""
        left = len(keys)
        while left and keys[left - 1] not in self._used:
            left -= 1
        current = left and self._used[keys[left - 1]] == stamp and keys[left - 1] not in self._pins
        return left if current else 0

    def _compact(self) -> None:
        """Leaves in the queue what counts. Of one prompt that are the last keys: those before were used again with others."""
        kept: deque[tuple[float, Sequence[int]]] = deque()
        self._queued = 0
        for stamp, keys in self._uses:
            low = high = self._left(stamp, keys)
            first = 0
            while first < low:
                middle = (first + low) // 2
                if self._used.get(keys[middle]) == stamp:
                    low = middle
                else:
                    first = middle + 1
            if low < high:
                kept.append((stamp, keys[low:high]))
                self._queued += high - low
        self._uses = kept


class PrefixIndex:
    """The maps of a model's engines, under one budget of entries."""

    def __init__(self, entries: int) -> None:
        self._budget = entries
        self._maps: dict[str, EngineMap] = {}
        self._stamp = -inf

    def __len__(self) -> int:
        return sum(len(each) for each in self._maps.values())

    @property
    def idle(self) -> bool:
        """Whether no request holds anything, or is expected to."""
        return not any(each.pinned or each.expected for each in self._maps.values())

    def get(self, engine: str) -> EngineMap | None:
        """The map of an engine that has one."""
        return self._maps.get(engine)

    def of(self, engine: str, capacity: int) -> EngineMap:
        """The map of an engine; a new one has this capacity."""
        found = self._maps.get(engine)
        if found is None:
            found = self._maps[engine] = EngineMap(capacity)
        return found

    def forget(self, engine: str) -> None:
        """The engine is no more."""
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
