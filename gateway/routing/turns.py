"""Fair turns of those that wait for one model at one priority: tenants get work by their weights, each its smallest first.

Start-time fair queueing. A tenant that waits has a tag, in seconds of work for a weight of one. The smallest has its turn, and
its tag grows by the charge of the one that is taken: its work, `LEAST_WORK_S` at the least, by its weight. A tenant that begins
to wait has as its tag the virtual time, which goes on by each charge shared among all that wait, or what its own had grown to
when it waited last, where that is more: a rest gives no credit. It is no further behind the last turn than its first charge.

Invariant: where each is taken in its turn, over any span in which tenants A and B both wait,
|work_A / weight_A - work_B / weight_B| is at most the largest charge of A plus the largest of B, each by its weight, whatever
comes, leaves or is reworked meanwhile: every tag is at least that of the last turn, and at most a largest charge of its own more.
One that is passed over, as it has no place now, stays next, and has no other claim for it. So one that is not passed over never
gets less than another by more than that bound, whoever else is.

Within a tenant the smallest work goes first, less `AGEING` seconds for each second that it waited. Of two the order is the same
at all times, so that each is sorted in once.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

AGEING = 0.3  # seconds of work that a second of waiting makes up for
LEAST_WORK_S = 0.02  # an engine's step: a request whose prompt is all cached takes its part too
MOST_ASKED = 64  # tenants whose work is looked at one by one for a prediction
MOST_GONE = 1024  # tenants that are remembered when they wait no more

_Key = tuple[float, int]


@dataclass(eq=False, slots=True)
class Waiting(Generic[T]):
    """One that waits: since when, for how many seconds of work, which one in the order of coming, and for which engine if it is
    held for one."""

    one: T
    tenant: str
    weight: float
    number: int
    since_s: float
    work_s: float
    awaits: str | None = None

    @property
    def charge_s(self) -> float:
        """What its turn costs its tenant, before its weight."""
        return max(self.work_s, LEAST_WORK_S)

    @property
    def key(self) -> _Key:
        """The smallest of a tenant is next."""
        return self.work_s + AGEING * self.since_s, self.number


class Ahead(NamedTuple):
    """What has its turn before a newcomer."""

    requests: float
    work_s: float


@dataclass(eq=False, slots=True)
class _Lane(Generic[T]):
    """What a tenant has waiting, in order. `weight`: of its newest."""

    tag: float
    tie: int
    weight: float
    work_s: float = 0.0
    sorted: list[tuple[float, int, Waiting[T]]] = field(default_factory=list)

    def add(self, entry: Waiting[T]) -> None:
        insort(self.sorted, (*entry.key, entry))
        self.work_s += entry.charge_s

    def drop(self, entry: Waiting[T]) -> None:
        first = self.sorted[0][2] is entry  # most are
        del self.sorted[0 if first else bisect_left(self.sorted, entry.key)]  # a tuple is before those that it begins
        self.work_s -= entry.charge_s

    def after(self, key: _Key, given: set[int]) -> Waiting[T] | None:
        """The next past this one that was not given yet."""
        at = bisect_left(self.sorted, (key[0], key[1] + 1))
        while at < len(self.sorted):
            if self.sorted[at][1] not in given:
                return self.sorted[at][2]
            at += 1
        return None


class _Gone:
    """The tags of tenants that wait no more; of too many, those that have most to answer for."""

    def __init__(self) -> None:
        self._tags: dict[str, float] = {}
        self._sorted: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._tags)

    def tag(self, tenant: str) -> float:
        return self._tags.get(tenant, 0.0)

    def add(self, tenant: str, tag: float) -> None:
        self._tags[tenant] = tag
        insort(self._sorted, (tag, tenant))
        if len(self._tags) > MOST_GONE:
            del self._tags[self._sorted.pop(0)[1]]

    def forget(self, tenant: str) -> None:
        tag = self._tags.pop(tenant, None)
        if tag is not None:
            del self._sorted[bisect_left(self._sorted, (tag, tenant))]

    def forget_until(self, tag: float) -> None:
        """Those whose tag says no more than that of one who was never here."""
        past = bisect_right(self._sorted, tag, key=itemgetter(0))
        for _, tenant in self._sorted[:past]:
            del self._tags[tenant]
        del self._sorted[:past]


class Turns(Generic[T]):
    """Those that wait at one priority for one model. `work_s`: all their charges."""

    def __init__(self) -> None:
        self.work_s = 0.0
        self._waiting = 0
        self._lanes: dict[str, _Lane[T]] = {}
        self._sorted: list[tuple[float, int, _Lane[T]]] = []  # by tag
        self._gone = _Gone()
        self._weights = 0.0  # of all lanes
        self._last = 0.0  # the tag at which the last turn began
        self._virtual = 0.0
        self._ties = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def remembered(self) -> int:
        """Tenants of which anything is kept."""
        return len(self._lanes) + len(self._gone)

    def add(self, entry: Waiting[T]) -> None:
        """It waits from now on."""
        lane = self._lanes.get(entry.tenant)
        if lane is None:
            joins = min(self._virtual, self._last + entry.charge_s / entry.weight)
            lane = _Lane(max(joins, self._gone.tag(entry.tenant)), self._ties, 0.0)
            self._gone.forget(entry.tenant)
            self._lanes[entry.tenant] = lane
            self._place(lane)
        self._weights += entry.weight - lane.weight
        lane.weight = entry.weight
        lane.add(entry)
        self.work_s += entry.charge_s
        self._waiting += 1

    def remove(self, entry: Waiting[T]) -> None:
        """It waits no more, and had no turn."""
        lane = self._drop(entry)
        if not lane.sorted:
            self._unplace(lane)
            self._leave(entry.tenant, lane)

    def take(self, entry: Waiting[T]) -> None:
        """It has its turn, for which its tenant is charged."""
        lane = self._lanes[entry.tenant]
        self._last = max(lane.tag, self._last)
        self._virtual = max(self._virtual + entry.charge_s / max(self._weights, entry.weight), self._last)
        self._unplace(lane)
        lane.tag = self._last + entry.charge_s / entry.weight
        self._drop(entry)
        if lane.sorted:
            self._place(lane)
        else:
            self._leave(entry.tenant, lane)
        self._gone.forget_until(self._last)

    def rework(self, entry: Waiting[T], work_s: float) -> None:
        """Its work is now predicted to be this."""
        lane = self._drop(entry)
        entry.work_s = work_s
        lane.add(entry)
        self.work_s += entry.charge_s
        self._waiting += 1

    def first(self) -> T:
        """Whose turn it is."""
        return self._sorted[0][2].sorted[0][2].one

    def all(self) -> Iterator[T]:
        """Everyone, in no order that means anything."""
        return (entry.one for lane in self._lanes.values() for _, _, entry in lane.sorted)

    def order(self) -> Iterator[T]:
        """Each once, as though everyone before it had had its turn. Each may be taken, removed or reworked when it was given; one
        that comes meanwhile may be left out."""
        had: list[tuple[float, int, _Lane[T], _Key]] = []  # lanes that had a turn here, and which one had it
        seen: set[_Lane[T]] = set()
        given: set[int] = set()
        ties, others = count(self._ties), self._unseen(seen)
        fresh = next(others, None)
        while fresh is not None or had:
            if fresh is not None and (not had or fresh[:2] < had[0][:2]):
                tag, _, lane = fresh
                key = (-inf, 0)
                seen.add(lane)
                fresh = next(others, None)
            else:
                tag, _, lane, key = heappop(had)
            entry = lane.after(key, given)
            if entry is not None:
                begins, key = max(tag, self._last), entry.key
                given.add(entry.number)
                yield entry.one
                heappush(had, (begins + entry.charge_s / entry.weight, next(ties), lane, key))

    def ahead(self, tenant: str, weight: float) -> Ahead:
        """Before one more of this tenant: all that it has, and of each other what it gets by its weight until then, and one
        request of its mean size, for turns are whole. Of more than `MOST_ASKED` tenants, some stand for all."""
        own = self._lanes.get(tenant)
        if own is None:
            until, requests, work_s = max(self._virtual, self._gone.tag(tenant)), 0.0, 0.0
        else:
            until, requests, work_s = max(own.tag, self._last) + own.work_s / weight, float(len(own.sorted)), own.work_s
        tenants = bisect_left(self._sorted, (until, self._ties))
        some = [each for each in self._sorted[: tenants : 1 + tenants // MOST_ASKED] if each[2] is not own]
        others = Ahead(0.0, 0.0)
        for tag, _, lane in some:
            mean_s = lane.work_s / len(lane.sorted)
            share_s = min((until - max(tag, self._last)) * lane.weight + mean_s, lane.work_s)
            others = Ahead(others.requests + share_s / mean_s, others.work_s + share_s)
        scale = (tenants - (own is not None)) / max(len(some), 1)
        return Ahead(requests + others.requests * scale, work_s + others.work_s * scale)

    def _unseen(self, seen: set[_Lane[T]]) -> Iterator[tuple[float, int, _Lane[T]]]:
        """By tag, while lanes that were seen go and get other tags."""
        at = 0
        while at < len(self._sorted):
            tag, tie, lane = self._sorted[at]
            if lane not in seen:
                yield tag, tie, lane
            at = bisect_left(self._sorted, (tag, tie + 1))

    def _place(self, lane: _Lane[T]) -> None:
        """Behind all of the same tag."""
        lane.tie = self._ties
        self._ties += 1
        insort(self._sorted, (lane.tag, lane.tie, lane))

    def _unplace(self, lane: _Lane[T]) -> None:
        first = self._sorted[0][2] is lane
        del self._sorted[0 if first else bisect_left(self._sorted, (lane.tag, lane.tie))]

    def _drop(self, entry: Waiting[T]) -> _Lane[T]:
        lane = self._lanes[entry.tenant]
        lane.drop(entry)
        self.work_s -= entry.charge_s
        self._waiting -= 1
        return lane

    def _leave(self, tenant: str, lane: _Lane[T]) -> None:
        del self._lanes[tenant]
        self._weights -= lane.weight
        if lane.tag > self._last:
            self._gone.add(tenant, lane.tag)
