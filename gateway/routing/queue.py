"""Who is next of those that wait: by priority, within one round robin by tenant, and within a tenant who came first.

Invariant: between two turns of a tenant that waits, no other of its priority has more than one, however many it has waiting. A
tenant cannot fill the queue either: at its bound, the newest of the tenant with the most gives its place to one with fewer.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

DEFAULT_TENANT = "default"
_NEWEST_SHARE = 0.2  # of the last gap in the mean of gaps
LEAST_WAIT_S, MOST_WAIT_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """For which model one waits, and whose it is. A larger `priority` goes first."""

    model: str
    tenant: str = DEFAULT_TENANT
    priority: int = 0


class FairQueue(Generic[T]):
    """Those that wait, of all models. Each is in it once."""

    def __init__(self) -> None:
        self._places: dict[T, Place] = {}
        # Both by priority and tenant: the lanes of a model in the order of their turns, and all that a tenant has, by arrival.
        self._lanes: dict[str, dict[int, OrderedDict[str, OrderedDict[T, None]]]] = {}
        self._held: dict[int, dict[str, OrderedDict[T, None]]] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def count(self, model: str) -> int:
        """How many wait for this model."""
        return self._counts.get(model, 0)

    @property
    def models(self) -> tuple[str, ...]:
        """The models for which anyone waits."""
        return tuple(self._counts)

    def waiting(self, model: str) -> Iterator[T]:
        """All that wait for this model, in no order that means anything. They may be removed meanwhile."""
        lanes = self._lanes.get(model, {})
        yield from [one for tenants in lanes.values() for lane in tenants.values() for one in lane]

    def push(self, one: T, place: Place) -> None:
        """It waits from now on."""
        self._places[one] = place
        self._lanes.setdefault(place.model, {}).setdefault(place.priority, OrderedDict()).setdefault(place.tenant, OrderedDict())[
            one
        ] = None
        self._held.setdefault(place.priority, {}).setdefault(place.tenant, OrderedDict())[one] = None
        self._counts[place.model] = self.count(place.model) + 1

    def first(self, model: str) -> T | None:
        """Whose turn it is; None where nobody waits."""
        lanes = self._lanes.get(model)
        if not lanes:
            return None
        lane = next(iter(lanes[max(lanes)].values()))
        return next(iter(lane))

    def take(self, model: str) -> T | None:
        """Removes and gives the one whose turn it is. Its tenant's next turn comes after all others' of its priority."""
        one = self.first(model)
        if one is None:
            return None
        place = self._places[one]
        self.remove(one)
        tenants = self._lanes.get(model, {}).get(place.priority, OrderedDict())
        if place.tenant in tenants:
            tenants.move_to_end(place.tenant)
        return one

    def remove(self, one: T) -> None:
        """It waits no more; nothing where it does not wait."""
        place = self._places.pop(one, None)
        if place is None:
            return
        lanes = self._lanes[place.model]
        _drop(lanes[place.priority], place.tenant, one)
        if not lanes[place.priority]:
            del lanes[place.priority]
        if not lanes:
            del self._lanes[place.model]
        _drop(self._held[place.priority], place.tenant, one)
        if not self._held[place.priority]:
            del self._held[place.priority]
        self._counts[place.model] -= 1
        if not self._counts[place.model]:
            del self._counts[place.model]

    def yields(self, place: Place) -> T | None:
        """Who gives up its place for one more of this kind; None where nobody does: the newest of the tenant that has the most of
        the lowest priority, where the newcomer has a higher one, or would still have fewer."""
        if not self._held or place.priority < (lowest := min(self._held)):
            return None
        tenants = self._held[lowest]
        most = max(tenants, key=lambda tenant: len(tenants[tenant]))
        own = len(tenants.get(place.tenant, ()))
        if place.priority == lowest and own + 1 >= len(tenants[most]):
            return None
        return next(reversed(tenants[most]))


def _drop(tenants: dict[str, OrderedDict[T, None]], tenant: str, one: T) -> None:
    del tenants[tenant][one]
    if not tenants[tenant]:
        del tenants[tenant]


class Pace:
    """How quickly a queue moves: the mean time between two that leave it for an engine, while anyone waits. Times are seconds."""

    def __init__(self) -> None:
        self._gap_s: float | None = None
        self._since_s: float | None = None  # when the last left, or the first came; None while nobody waits

    def waits(self, now_s: float) -> None:
        """Somebody waits."""
        if self._since_s is None:
            self._since_s = now_s

    def left(self, now_s: float, *, waiting: bool) -> None:
        """One left for an engine; `waiting`: others still wait."""
        self._gap_s = self._gap(now_s)
        self._since_s = now_s if waiting else None

    def empty(self) -> None:
        """Nobody waits any more."""
        self._since_s = None

    def wait_s(self, ahead: int, now_s: float) -> float:
        """When one with so many before it may have its turn, between 1 and 30 s."""
        gap_s = self._gap_s or 0.0
        if self._since_s is not None and now_s - self._since_s > gap_s:  # nobody left for longer than usual
            gap_s = self._gap(now_s)
        return min(max((ahead + 1) * gap_s, LEAST_WAIT_S), MOST_WAIT_S)

    def _gap(self, now_s: float) -> float:
        if self._since_s is None:
            return self._gap_s or 0.0
        gap_s = now_s - self._since_s
        return gap_s if self._gap_s is None else self._gap_s + (gap_s - self._gap_s) * _NEWEST_SHARE
