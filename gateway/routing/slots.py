"""What an engine finds of a prompt that keeps a whole sequence in each of its slots and shares none between requests: llama.cpp.

A request takes the free slot that begins most like it, or the one unused for longest, and what that held beyond goes. Only where
that would be more than half is it saved first, and a saved sequence taken out instead that fits better. What lies in other slots
is saved too whenever one begins. So of two requests with one system prompt, running at a time, one makes it anew; and a new
conversation may cut an old one back to what they share.

All is counted in keys (gateway.routing.chain), in the order in which requests are sent.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

_SIMILAR = 0.1  # of a prompt: a slot with no more in common is not preferred
_KEEPS = 0.5  # of a slot's sequence: what keeps less is saved before
_WORTH = 0.25  # of a saved sequence: what uses less leaves it
_MOST_SAVED = 128  # the room for them is not told; it holds some prompts of a large model

Keys = tuple[int, ...]


@dataclass(slots=True)
class _Slot:
    """What it holds, for whom, and when it was last left. `kept`: that is saved."""

    keys: Keys = ()
    request: str | None = None
    left: float = -inf
    kept: bool = True


@dataclass(slots=True)
class _Place:
    """Where a request would go: `found` of its keys are there, in the slot or the saved sequence of this number. `saves`: what is
    in the slot is kept."""

    slot: _Slot
    found: int
    saves: bool
    saved: int | None = None


class Slots:
    """The slots of one engine, and what it saved of them."""

    def __init__(self, count: int) -> None:
        self._slots = [_Slot() for _ in range(count)]
        self._saved: deque[tuple[float, Keys]] = deque(maxlen=_MOST_SAVED)
        self._waiting: dict[str, Keys] = {}

    def follow(self, count: int) -> None:
        """The engine has so many slots now. Of those that are too many, the free go first that were left longest ago."""
        while len(self._slots) > count and (free := self._free()):
            oldest = min(free, key=lambda each: each.left)
            self._slots = [slot for slot in self._slots if slot is not oldest]
        self._slots += [_Slot() for _ in range(count - len(self._slots))]
        self._let_in()

    def finds(self, keys: Keys) -> int:
        """How many keys, from the root, a request finds that is sent now; what is in any slot, where it has to wait for one."""
        if (place := self._place(keys)) is not None:
            return place.found
        held = [slot.keys for slot in self._slots] + [saved for _, saved in self._saved]
        return max(_alike(each, keys) for each in held)

    def begins(self, request: str, keys: Keys) -> None:
        """It was sent."""
        place = self._place(keys)
        if place is None:
            self._waiting[request] = keys
            return
        slot = place.slot
        taken = self._saved[place.saved] if place.saved is not None else None
        if place.saves:
            self._save(slot)
        if taken is not None and taken in self._saved:
            self._saved.remove(taken)
        slot.keys, slot.request = keys, request
        for idle in self._slots:
            if idle.request is None and not idle.kept:
                self._save(idle)

    def ends(self, request: str, keys: Keys, now_s: float) -> None:
        """It is over, and its slot holds these."""
        if self._waiting.pop(request, None) is not None:
            return
        for slot in self._slots:
            if slot.request == request:
                slot.keys, slot.request, slot.left, slot.kept = keys, None, now_s, False
                break
        self._let_in()

    def forget(self, before_s: float) -> None:
        """What was left before this is not there."""
        for slot in self._slots:
            if slot.request is None and slot.left < before_s:
                slot.keys = ()
        self._saved = deque([each for each in self._saved if each[0] >= before_s], _MOST_SAVED)

    def _free(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.request is None]

    def _let_in(self) -> None:
        """Those that wait begin, as far as slots are free."""
        while self._waiting and self._free():
            first = next(iter(self._waiting))
            self.begins(first, self._waiting.pop(first))

    def _place(self, keys: Keys) -> _Place | None:
        """None: no slot is free."""
        free = self._free()
        if not free:
            return None
        like = [slot for slot in free if slot.keys[:1] == keys[:1]] or free[:1]  # others share nothing with it
        slot = max(like, key=lambda each: _alike(each.keys, keys))
        found = _alike(slot.keys, keys)
        similar = found > _SIMILAR * len(keys)
        if not similar:
            slot = min(free, key=attrgetter("left"))
            found = _alike(slot.keys, keys)
        if similar and found >= _KEEPS * len(slot.keys):
            return _Place(slot, found, saves=False)
        saved, found = self._better(slot, found, keys)
        return _Place(slot, found, saves=True, saved=saved)

    def _better(self, slot: _Slot, found: int, keys: Keys) -> tuple[int | None, int]:
        """The number of the saved sequence that is taken out, and how much of the prompt it has; None: the slot's is as good."""
        best, kept = None, _share(found, slot.keys)
        for number, (_, saved) in enumerate(self._saved):
            if saved[found : found + 1] != keys[found : found + 1]:  # no more in common than that: a key stands for all before it
                continue
            alike = _alike(saved, keys)
            share = _share(alike, saved)
            if alike > found and share > kept and share >= _WORTH:
                best, found, kept = number, alike, share
        return best, found

    def _save(self, slot: _Slot) -> None:
        """Those that it goes on from are saved no more, nor itself where another goes on from it."""
        keys, slot.kept = slot.keys, True
        if not keys or any(_goes_on(saved, keys) for _, saved in self._saved):
            return
        others = [each for each in self._saved if not _goes_on(keys, each[1])]
        self._saved = deque([*others, (slot.left, keys)], _MOST_SAVED)


def _share(found: int, keys: Sequence[int]) -> float:
    """How much of a sequence a prompt uses; of none, any is better."""
    return found / len(keys) if keys else -1.0


def _goes_on(one: Keys, other: Keys) -> bool:
    """Whether it begins with all of the other, which has some."""
    return len(one) >= len(other) and one[len(other) - 1] == other[-1]


def _alike(one: Keys, other: Keys) -> int:
    """How many keys, from the root, they share."""
    low, high = 0, min(len(one), len(other))
    if not high or one[0] != other[0]:
        return 0
    if one[high - 1] == other[high - 1]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
