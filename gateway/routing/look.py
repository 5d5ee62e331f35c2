"""A look at those that wait for one model: who of them is asked where it would go now, in bounded work.

They are asked in the order of their turns. Once one had no place on the engine for which it is held, the others that are held for
the same one are asked last: so a hundred that wait for a busy engine hide none that waits for another. A look ends when it has
found so many that can go nowhere; where it ended before everyone was asked or passed over, the next begins with the engines that
this one did not come to.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from gateway.routing.queue import FairQueue

T = TypeVar("T")

MOST_MISSES = 16  # of those that are asked, so many that can go nowhere
MOST_BIDS = 128  # and no more than cost so many looks at an engine: in a large fleet each event would take long
MOST_GIVEN = 1024  # and of a long queue so many, asked or passed over


class Look(Generic[T]):
    """The looks at one model's queue, one after the other."""

    def __init__(self, queue: FairQueue[T], model: str) -> None:
        self._queue = queue
        self._model = model
        self._missed: set[str] = set()  # engines, in this look
        self._before: set[str] = set()  # and in those before it that ended too early
        self._misses = 0
        self._claims: dict[str, int] = {}  # by engine: the first turn of those that had no place and have a claim (`claims`)
        self._turn = 0  # of the one that was given last

    @property
    def claimed(self) -> set[str]:
        """The engines to which one has a claim whose turn was before that of the one that was given last."""
        return {engine for engine, turn in self._claims.items() if turn < self._turn}

    def over(self, engines: int, now_s: float) -> Iterator[T]:
        """Those that are asked, in a fleet of so many engines. Each is taken or removed as it is given, or `missed`."""
        self._claims, self._missed, self._misses = {}, set(), 0
        most, later = max(1, min(MOST_MISSES, MOST_BIDS // max(1, engines))), list[tuple[int, T]]()
        for turn, one in enumerate(self._queue.order(self._model)):
            self._turn = turn
            if self._misses == most or turn == MOST_GIVEN:
                self._before |= self._missed
                return
            awaited = self._queue.awaits(one)
            if awaited in self._missed or awaited in self._before:
                self._claim(one, now_s)
                later.append((turn, one))
            else:
                yield one
        self._before.clear()
        for turn, one in later:
            if self._misses == most:
                return
            self._turn = turn
            yield one

    def missed(self, one: T, now_s: float) -> None:
        """It had no place, and is held for an engine, as the queue was told."""
        self._misses += 1
        if (awaited := self._queue.awaits(one)) is not None:
            self._missed.add(awaited)
        self._claim(one, now_s)

    def _claim(self, one: T, now_s: float) -> None:
        awaited = self._queue.awaits(one)
        if awaited is not None and self._queue.claims_s(one) <= now_s:
            self._claims[awaited] = min(self._turn, self._claims.get(awaited, self._turn))
