"""An engine's KV blocks: those that requests hold, those kept for a prefix that may come again, and those that are free.

Invariant: the blocks held, kept and private are never more than there are, and a block is kept only while those before it are.
"""

from collections import OrderedDict
from collections.abc import Sequence

from lab.traces import shared


class Blocks:
    """The blocks of one engine. What no request holds is given up oldest first, the end of a prompt before its beginning."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.private = 0  # held by one request and named by none: what it generates, and what follows its last named block
        self.evicted = 0
        self._holders: dict[int, int] = {}  # of each named block that is here
        self._idle: OrderedDict[int, None] = OrderedDict()  # those of them without a holder, the first to go in front

    @property
    def used(self) -> int:
        """Blocks that hold anything."""
        return len(self._holders) + self.private

    @property
    def held(self) -> int:
        """Blocks that requests hold now."""
        return self.used - len(self._idle)

    def cached(self, path: Sequence[int]) -> int:
        """How many of a path's blocks, from its start, are here."""
        return shared(path, self._holders)

    def take(self, path: Sequence[int], private: int) -> int | None:
        """Holds a request's blocks. How many of its path were here, or None where there is no room for the rest."""
        holders, idle = self._holders, self._idle
        cached = shared(path, holders)
        unheld = 0
        while unheld < cached and path[cached - 1 - unheld] in idle:  # held ones are the path's beginning
            unheld += 1
        need = len(path) - cached + private
        free = self.capacity - len(holders) - self.private
        if need > free + len(idle) - unheld:
            return None
        for block in path[:cached]:
            if not holders[block]:
                del idle[block]
            holders[block] += 1
        self._free_up(need - free)
        for block in path[cached:]:
            holders[block] = 1
        self.private += private
        return cached

    def grow(self) -> bool:
        """One more private block; whether there was one."""
        if self.used >= self.capacity:
            if not self._idle:
                return False
            self._free_up(1)
        self.private += 1
        return True

    def give_back(self, path: Sequence[int], private: int, computed: int) -> None:
        """Ends a request's hold. The first `computed` blocks of its path are kept; the others hold nothing, and go."""
        holders = self._holders
        for place in range(len(path) - 1, -1, -1):
            block = path[place]
            holders[block] -= 1
            if holders[block]:
                continue
            if place < computed:
                self._idle[block] = None
            else:
                del holders[block]
        self.private -= private

    def _free_up(self, count: int) -> None:
        for _ in range(count):
            del self._holders[self._idle.popitem(last=False)[0]]
            self.evicted += 1
