"""How many attempts run now, as a fold over the events of requests: the fleet and the metrics count with the same code.

Invariant: whatever order, repetition or loss between them, once each request's `Finished` was applied every count is zero.
Request ids are unique, made by the gateway: an id that a client chose would let it hide its load behind another request.
"""

from collections import deque
from types import MappingProxyType

from gateway.events import AttemptFailed, AttemptServed, AttemptStarted, ClientGone, Event, Finished

Place = tuple[str, str]  # model, engine
_Run = tuple[Place, int]  # and the number of the attempt, of all


class InFlight:
    """Apply each event once or more; read the counts at any time.

    An attempt that closes before it opened stays closed. The last `remembered` finished requests are known, so that an event
    that comes late opens nothing.
    """

    def __init__(self, remembered: int = 4096) -> None:
        self._attempts: dict[str, dict[int, _Run | None]] = {}  # None: closed
        self._counts: dict[Place, int] = {}
        self._opened = 0
        self._moved: dict[Place, int] = {}  # the last attempt on what was under this name before
        self._former: dict[Place, int] = {}  # how many run there
        self._over: set[str] = set()
        self._order: deque[str] = deque()
        self._remembered = remembered

    def apply(self, event: Event) -> None:
        """Counts one event."""
        match event:
            case AttemptStarted():
                self._open(event)
            case AttemptFailed() | AttemptServed() | ClientGone():
                if event.request_id not in self._over:
                    self._close(self._attempts.setdefault(event.request_id, {}), event.attempt)
            case Finished():
                self._finish(event.request_id)
            case _:
                pass

    def count(self, model: str, engine: str) -> int:
        """Attempts that run now for this model on this engine; not those on another that had its name before."""
        place = (model, engine)
        return self._counts.get(place, 0) - self._former.get(place, 0)

    def moved(self, model: str, engine: str) -> None:
        """The engine of this name is another from now on."""
        place = (model, engine)
        if running := self._counts.get(place):
            self._moved[place] = self._opened
            self._former[place] = running

    @property
    def counts(self) -> MappingProxyType[Place, int]:
        """A read-only view by (model, engine), whatever had the name; what is not in it is zero."""
        return MappingProxyType(self._counts)

    def _open(self, event: AttemptStarted) -> None:
        if event.request_id in self._over:
            return
        attempts = self._attempts.setdefault(event.request_id, {})
        if event.attempt in attempts:
            return
        place = (event.model, event.engine)
        self._opened += 1
        attempts[event.attempt] = (place, self._opened)
        self._counts[place] = self._counts.get(place, 0) + 1

    def _close(self, attempts: dict[int, _Run | None], attempt: int) -> None:
        run = attempts.get(attempt)
        attempts[attempt] = None
        if run is None:
            return
        place, number = run
        _less(self._counts, place)
        if number <= self._moved.get(place, 0):
            _less(self._former, place)
            if place not in self._former:
                del self._moved[place]

    def _finish(self, request_id: str) -> None:
        attempts = self._attempts.pop(request_id, {})
        for attempt in attempts:
            self._close(attempts, attempt)
        if request_id in self._over:
            return
        self._over.add(request_id)
        self._order.append(request_id)
        if len(self._order) > self._remembered:
            self._over.discard(self._order.popleft())


def _less(counts: dict[Place, int], place: Place) -> None:
    left = counts[place] - 1
    if left:
        counts[place] = left
    else:
        del counts[place]
