"""What each engine of one model is believed to hold of prompts: keys by last use, bounded by one budget.

Each map is closed: who holds a key holds all before it in its chain. So a match is a binary search, and the leaf goes first.
What running requests hold cannot leave. The order is kept by uses, not by keys: a queue of whole prompts, of which those keys
count that were not used again since. That takes two thirds of the memory of an ordered map, and a use costs half.
"""

from collections import Counter, deque
from collections.abc import Collection, Container, Mapping, Sequence
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


class _Word:
    """An engine's own word: `before` has each key that it told that it holds, and the one before it, None for the first of a
    prompt. What else is believed held there is of requests that run, or are `due`: over for less than `_CONFIRM_S`. `least` is
    how many keys a prompt must have for the engine to tell of it at all. `loose` counts the last uses in the queue since which
    keys before told ones may be queued as used earlier than those."""

    __slots__ = ("before", "due", "least", "loose", "wrong")

    def __init__(self, least: int) -> None:
        self.before: dict[int, int | None] = {}
        self.least = least
        self.loose = 0
        self.wrong = 0
        self.due: deque[tuple[float, Sequence[int], bool]] = deque()


class EngineMap:
    """The keys of one engine. `capacity` in keys; `expected`: room that the answers of running requests will take.

    Invariant: a key that no request holds stands in the queue with its last use, and all that continue it stand before it; but
    for what an engine told key by key, before any leaves.

    With `tells` an engine itself tells what it holds: that, and what requests bring there, is held, whatever the capacity.
    """

    __slots__ = ("_pins", "_queued", "_used", "_uses", "_word", "capacity", "expected")

    def __init__(self, capacity: int) -> None:
        self._used: dict[int, float] = {}
        self._uses: deque[tuple[float, Sequence[int]]] = deque()
        self._queued = 0
        self._pins: Counter[int] = Counter()
        self._word: _Word | None = None
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

    @property
    def pins(self) -> Mapping[int, int]:
        """How many running requests hold each key that any does."""
        return self._pins

    def last_use(self, key: int) -> float:
        """When it was last used; -infinity: never."""
        return self._used.get(key, -inf)

    def pin(self, keys: Sequence[int], stamp: float) -> None:
        """A request with this prompt runs from now on."""
        self._pins.update(keys)
        self.touch(keys, stamp)

    def touch(self, keys: Sequence[int], stamp: float) -> None:
        """They are held, and were used now."""
        self._used.update(dict.fromkeys(keys, stamp))
        if self._word is not None and self._word.loose:
            self._word.loose += 1
        self._queue(keys, stamp)

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
        told = self._word.before if self._word is not None else ()
        for key in reversed(keys[matched:]):
            if key in told or self._used.get(key) != stamp or key in self._pins:
                return
            del self._used[key]

    def trim(self) -> None:
        """Lets the oldest leave until what is held and expected fits."""
        over = len(self._used) + self.expected - self.capacity
        if over > 0 and self._word is None:
            self.evict(over)

    def evict(self, count: int) -> int:
        """Lets so many leave, the least recently used first; how many could."""
        self._line_up()
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
        if self._word is not None:
            self._word.before.clear()
            self._word.due.clear()
            self._word.loose = 0

    # What the engine tells

    @property
    def told(self) -> bool:
        """Whether the engine tells what it holds."""
        return self._word is not None

    def tells(self, least: int) -> None:
        """From now on the engine tells: it holds what it will say, and what running requests bring there."""
        for key in [key for key in self._used if key not in self._pins]:
            del self._used[key]
        self._word = _Word(least)

    def silent(self) -> None:
        """It tells no more: what it has told is believed, as far as there is room."""
        self._line_up()
        self._word = None

    def stored(self, after: int | None, keys: Sequence[int], stamp: float) -> None:
        """It tells that it holds these, which go on from each other, and from `after`, which it told before; None: from the root.
        What goes on from a key that had to leave is not held either."""
        word, used = self._word, self._used
        if word is None or (after is not None and after not in word.before):
            return
        held = after is None or after in used
        word.before.update(zip(keys, (after, *keys), strict=False))
        new = keys[shared(keys, used) :] if held else ()
        if new:
            used.update(dict.fromkeys(new, stamp))
            word.loose += 1
            self._queue(new, stamp)

    def removed(self, keys: Collection[int]) -> None:
        """It tells that it does not hold them, nor what goes on from them. What running requests bring there is about to come."""
        if self._word is None:
            return
        for key in keys:
            self._word.before.pop(key, None)
        self._discard(self._word, {key for key in keys if key in self._used and key not in self._pins})

    def over(self, keys: Sequence[int], now_s: float, *, whole: bool) -> None:
        """A request is over, unpinned and touched; `whole`: it was answered. If the engine tells, it has some time to tell that
        it holds the prompt."""
        if self._word is not None:
            self._word.due.append((now_s + _CONFIRM_S, keys, whole))
            if len(self._word.due) > _MOST_DUE:
                self._settle(self._word)

    def disputed(self, now_s: float) -> bool:
        """Drops what it has not told in time. Whether nothing that it told was of the last three prompts."""
        if self._word is None:
            return False
        while self._word.due and self._word.due[0][0] <= now_s:
            self._settle(self._word)
        return self._word.wrong >= _WRONG_IN_A_ROW

    def _settle(self, word: _Word) -> None:
        """The next that is due: what was not told of it is not there."""
        _, keys, whole = word.due.popleft()
        told = shared(keys, word.before)
        if told:
            word.wrong = 0
        elif whole and len(keys) >= word.least and keys[0] in self._used:  # else it told of it, and that it is gone again
            word.wrong += 1
        self._discard(word, {key for key in keys[told:] if key in self._used and key not in self._pins})

    def _discard(self, word: _Word, gone: set[int]) -> None:
        """Drops these keys, which are held, with what was hoped to go on from them."""
        more = set(gone)
        for _, keys, _ in word.due if gone else ():
            if not keys or keys[-1] in word.before:  # all of it was told, most often
                continue
            first = shared(keys, word.before)
            cut = next((index for index in range(first, len(keys)) if keys[index] in gone), len(keys))
            more.update([key for key in keys[cut:] if key in self._used])
        for key in more:
            del self._used[key]

    def _line_up(self) -> None:
        """Queues what is before a told key as used when that was told, or later. The newest goes first, so that each key is moved
        once."""
        word, used, uses = self._word, self._used, self._uses
        if word is None or not word.loose:
            return
        last = [uses.pop() for _ in range(min(word.loose, len(uses)))]
        for at, (stamp, keys) in enumerate(last):
            if self._left(stamp, keys) and used.get(keys[0]) == stamp:
                moved, key = list[int](), word.before.get(keys[0])
                while key is not None and used.get(key, inf) < stamp:
                    used[key] = stamp
                    moved.append(key)
                    key = word.before.get(key)
                last[at] = (stamp, (*reversed(moved), *keys))
                self._queued += len(moved)
        uses.extend(reversed(last))
        word.loose = 0

    def _queue(self, keys: Sequence[int], stamp: float) -> None:
        self._uses.append((stamp, keys))
        self._queued += len(keys)
        if self._queued > 2 * len(self._used) + _SLACK:
            self._compact()

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
