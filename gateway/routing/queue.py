"""Who is next of those that wait: by priority, within one by fair turns of the tenants (`turns`), and whose place is given up.

A tenant cannot fill the queue either: at its bound, the newest of the tenant with the most for its weight gives its place to one
with less. Nothing is kept of a model and priority for which nobody waits, and of tenants that wait no more while others do, no
more than `turns.MOST_GONE` tags.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

import msgspec

from gateway.routing.claims import Claims, claims_s
from gateway.routing.turns import Ahead, Turns, Waiting

T = TypeVar("T")

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How many requests may wait and how long, in seconds; how long for an engine where all are known to be down."""

    requests: int = 256
    wait_s: float = 30.0
    down_wait_s: float = 0.0


class Place(msgspec.Struct, frozen=True):
    """For which model one waits, and whose it is. A larger `priority` goes first; `weight` is its tenant's share."""

    model: str
    tenant: str = DEFAULT_TENANT
    priority: int = 0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < inf:
            raise ValueError(f"the weight of a tenant is a number above 0, not {self.weight}")


class FairQueue(Generic[T]):
    """Those that wait, of all models. Each is in it once. Raises KeyError where one is named that does not wait."""

    def __init__(self) -> None:
        self._entries: dict[T, tuple[Place, Waiting[T]]] = {}
        self._turns: dict[str, dict[int, Turns[T]]] = {}  # by model and priority
        self._parts: dict[int, _Parts[T]] = {}  # by priority, of all models
        self._claims: dict[str, Claims] = {}  # by model
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def count(self, model: str) -> int:
        """How many wait for this model."""
        return sum(map(len, self._turns.get(model, {}).values()))

    def counts(self, model: str) -> dict[int, int]:
        """How many of them wait at each priority at which any does."""
        return {priority: len(turns) for priority, turns in self._turns.get(model, {}).items()}

    @property
    def models(self) -> tuple[str, ...]:
        """The models for which anyone waits."""
        return tuple(self._turns)

    @property
    def remembered(self) -> int:
        """Of how many tenants anything is kept, counted for each model and priority."""
        return sum(turns.remembered for levels in self._turns.values() for turns in levels.values())

    def waiting(self, model: str) -> Iterator[T]:
        """All that wait for this model, in no order that means anything. They may be removed meanwhile."""
        yield from [one for turns in self._turns.get(model, {}).values() for one in turns.all()]

    def push(self, one: T, place: Place, *, work_s: float = 0.0, now_s: float = 0.0, awaits: str | None = None) -> None:
        """It waits from now on. `work_s` is the prefill that it is predicted to need on the engine that is best for it, `awaits`
        that engine where it is held for it."""
        self._pushed += 1
        entry = Waiting(one, place.tenant, place.weight, self._pushed, now_s, _checked(work_s), awaits)
        self._entries[one] = place, entry
        self._claim(place, entry)
        levels = self._turns.setdefault(place.model, {})
        if place.priority not in levels:
            levels[place.priority] = Turns()
        levels[place.priority].add(entry)
        if place.priority not in self._parts:
            self._parts[place.priority] = _Parts()
        self._parts[place.priority].add(one, place)

    def order(self, model: str) -> Iterator[T]:
        """All that wait for this model in the order of their turns, as though everyone before had had its own, found as they are
        asked for. Each may be taken, removed or reworked when it was given; one that comes meanwhile may be left out."""
        levels = self._turns.get(model, {})
        for priority in sorted(levels, reverse=True):
            if priority in levels:  # still
                yield from levels[priority].order()

    def first(self, model: str) -> T | None:
        """Whose turn it is; None where nobody waits."""
        levels = self._turns.get(model)
        return levels[max(levels)].first() if levels else None

    def take(self, one: T) -> None:
        """It waits no more, and its tenant is charged for its turn."""
        place, entry = self._entries.pop(one)
        self._unclaim(place, entry)
        self._turns[place.model][place.priority].take(entry)
        self._forget(one, place)

    def remove(self, one: T) -> None:
        """It waits no more and had no turn; nothing where it does not wait."""
        if one in self._entries:
            place, entry = self._entries.pop(one)
            self._unclaim(place, entry)
            self._turns[place.model][place.priority].remove(entry)
            self._forget(one, place)

    def rework(self, one: T, work_s: float | None, awaits: str | None = None) -> None:
        """Its work is now predicted to be this (None: as before), on the engine that it is held for. It has waited no less for
        that."""
        place, entry = self._entries[one]
        work_s = entry.work_s if work_s is None else _checked(work_s)
        self._unclaim(place, entry)
        self._turns[place.model][place.priority].rework(entry, work_s)
        entry.awaits = awaits
        self._claim(place, entry)

    def awaits(self, one: T) -> str | None:
        """The engine that it is held for, if it is."""
        return self._entries[one][1].awaits

    def claims_s(self, one: T) -> float:
        """When it begins to claim that engine."""
        entry = self._entries[one][1]
        return claims_s(entry.work_s, entry.since_s)

    def claimed(self, place: Place, now_s: float) -> set[str]:
        """The engines that others have a claim to before a newcomer of this place."""
        claims = self._claims.get(place.model)
        return claims.before(place.priority, now_s) if claims is not None else set()

    def ahead(self, model: str, place: Place) -> Ahead:
        """What has its turn before a newcomer of this place, of those that wait now: all of a higher priority, and of its own all
        that its tenant has. When these are done its tenant's tag is `until`; of each other tenant, by its own tag, comes
        min(all that it has, (until - tag) * weight + its mean request)."""
        levels = self._turns.get(model, {})
        higher = [turns for priority, turns in levels.items() if priority > place.priority]
        requests, work_s = float(sum(map(len, higher))), sum(turns.work_s for turns in higher)
        if place.priority in levels:
            same = levels[place.priority].ahead(place.tenant, place.weight)
            return Ahead(requests + same.requests, work_s + same.work_s)
        return Ahead(requests, work_s)

    def ahead_s(self, model: str, place: Place) -> float:
        """The work of `ahead`, in seconds of prefill."""
        return self.ahead(model, place).work_s

    def yields(self, place: Place) -> T | None:
        """Who gives up its place for one more of this kind; None where nobody does: the newest of the tenant that has the most
        for its weight of the lowest priority, where the newcomer has a higher one, or would still have less for its own."""
        if not self._parts or place.priority < (lowest := min(self._parts)):
            return None
        parts = self._parts[lowest]
        most, newest = parts.most()
        if place.priority == lowest and (parts.count(place.tenant) + 1) / place.weight >= most:
            return None
        return newest

    def _claim(self, place: Place, entry: Waiting[T]) -> None:
        if entry.awaits is not None:
            if place.model not in self._claims:
                self._claims[place.model] = Claims()
            self._claims[place.model].add(entry.awaits, place.priority, claims_s(entry.work_s, entry.since_s))

    def _unclaim(self, place: Place, entry: Waiting[T]) -> None:
        if entry.awaits is not None:
            claims = self._claims[place.model]
            claims.drop(entry.awaits, place.priority, claims_s(entry.work_s, entry.since_s))
            if not claims:
                del self._claims[place.model]

    def _forget(self, one: T, place: Place) -> None:
        levels = self._turns[place.model]
        if not len(levels[place.priority]):
            del levels[place.priority]
        if not levels:
            del self._turns[place.model]
        parts = self._parts[place.priority]
        parts.drop(one, place.tenant)
        if not parts:
            del self._parts[place.priority]


class _Parts(Generic[T]):
    """What each tenant has in the queue, by its weight."""

    def __init__(self) -> None:
        self._held: dict[str, dict[T, None]] = {}  # in the order of coming
        self._weights: dict[str, float] = {}  # of its newest
        self._sorted: list[tuple[float, str]] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def count(self, tenant: str) -> int:
        return len(self._held.get(tenant, ()))

    def most(self) -> tuple[float, T]:
        """The largest part, and its newest."""
        part, tenant = self._sorted[-1]
        return part, next(reversed(self._held[tenant]))

    def add(self, one: T, place: Place) -> None:
        self._unsort(place.tenant)
        self._held.setdefault(place.tenant, {})[one] = None
        self._weights[place.tenant] = place.weight
        self._sort(place.tenant)

    def drop(self, one: T, tenant: str) -> None:
        self._unsort(tenant)
        del self._held[tenant][one]
        if self._held[tenant]:
            self._sort(tenant)
        else:
            del self._held[tenant], self._weights[tenant]

    def _part(self, tenant: str) -> tuple[float, str]:
        return len(self._held[tenant]) / self._weights[tenant], tenant

    def _sort(self, tenant: str) -> None:
        insort(self._sorted, self._part(tenant))

    def _unsort(self, tenant: str) -> None:
        if tenant in self._held:
            del self._sorted[bisect_left(self._sorted, self._part(tenant))]


def _checked(work_s: float) -> float:
    """Work that is no number would spoil the order of all others."""
    if not work_s < inf:
        raise ValueError(f"the work of one that waits is a number of seconds, not {work_s}")
    return max(work_s, 0.0)
