"""Those that wait for an engine: their order, how many of them have no room at all, and how quickly they leave."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from gateway.routing.choice import Choice
from gateway.routing.look import Look
from gateway.routing.pace import Pace
from gateway.routing.policy import Decision, choose
from gateway.routing.queue import FairQueue, Place
from gateway.routing.view import FleetView
from gateway.timer import Alarm

Where = Callable[[FleetView], Decision]
"""What chooses an engine, and has it charged for that. Whoever asks it uses the engine, or has it choose again, or ends."""


class Entrant(msgspec.Struct, frozen=True):
    """A request that wants in. `ends_at` is its own deadline, on the loop's clock."""

    place: Place
    ends_at: float
    where: Where = choose


@dataclass(eq=False, slots=True)
class Turn:
    """It is told when its turn has come. `given` is what was decided then: room is kept for it on that engine."""

    told: "asyncio.Future[None]"
    given: Decision | None = field(default=None, init=False)

    @property
    def engine(self) -> str | None:
        """Where room is kept."""
        return self.given.engine if self.given is not None else None


@dataclass(eq=False, slots=True)
class Next(Turn):
    """An attempt of a request that was let in."""

    where: Where


@dataclass(slots=True)
class Line:
    """Those of one model. `others`: whose turn it is of the queue and the further answers."""

    first: deque[Next] = field(default_factory=deque)
    answers: deque[Next] = field(default_factory=deque)
    others: bool = False

    def __bool__(self) -> bool:
        return bool(self.first or self.answers)


@dataclass(eq=False, slots=True)
class Waiter(Turn):
    """A request in the queue. `held`: there is room, but not where it should go. `down_until`: where all engines are down, until
    when it waits for one."""

    entrant: Entrant
    ends_at: float
    held: bool
    queued: bool = False
    alarm: Alarm | None = None
    down_until: float | None = None


class Waiting:
    """All that wait, of every model. Times are the loop's."""

    def __init__(self) -> None:
        self._queue: FairQueue[Waiter] = FairQueue()
        self._in_want: Counter[str] = Counter()
        self._paces: dict[str, Pace] = {}
        self._looks: dict[str, Look[Waiter]] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def models(self) -> tuple[str, ...]:
        """The models for which anyone waits."""
        return self._queue.models

    def count(self, model: str) -> int:
        """How many wait for this model."""
        return self._queue.count(model)

    def counts(self, model: str) -> dict[int, int]:
        """How many of them wait at each priority at which any does."""
        return self._queue.counts(model)

    def in_want(self, model: str) -> int:
        """How many of them have no room: the others are held."""
        return self._in_want[model]

    def all(self, model: str) -> Iterator[Waiter]:
        """They, in no order that means anything."""
        return self._queue.waiting(model)

    def look(self, model: str) -> Look[Waiter]:
        """What finds who of them may go."""
        if model not in self._looks:
            self._looks[model] = Look(self._queue, model)
        return self._looks[model]

    def claimed(self, place: Place, now_s: float) -> set[str]:
        """The engines on which others go before a newcomer of this place."""
        return self._queue.claimed(place, now_s)

    def yields(self, place: Place) -> Waiter | None:
        """Who gives up its place for one more of this kind."""
        return self._queue.yields(place)

    def enter(self, waiter: Waiter, decision: Decision | None, now_s: float) -> None:
        """It waits from now on, as this was decided."""
        place = waiter.entrant.place
        awaits = decision.awaits if decision is not None else None
        self._queue.push(waiter, place, work_s=_work_s(decision), now_s=now_s, awaits=awaits)
        waiter.queued = True
        if not waiter.held:
            self._in_want[place.model] += 1
            self._pace(place.model).waits(now_s)

    def hold(self, waiter: Waiter, decision: Decision, now_s: float) -> None:
        """It had no place just now, for want of room or of a good one."""
        model = waiter.entrant.place.model
        self._in_want[model] += waiter.held - decision.hold
        if self._in_want[model]:
            self._pace(model).waits(now_s)
        else:
            self._pace(model).empty()
        waiter.held = decision.hold
        self._queue.rework(waiter, _work_s(decision) if decision.hold else None, decision.awaits)

    def let_in(self, waiter: Waiter, now_s: float) -> None:
        """Its turn has come."""
        model, was_queued = waiter.entrant.place.model, waiter.queued
        self._out(waiter, self._queue.take)
        if was_queued and not waiter.held:
            self._pace(model).left(now_s, waiting=bool(self._in_want[model]))

    def leave(self, waiter: Waiter) -> None:
        """It waits no more, if it did."""
        self._out(waiter, self._queue.remove)
        if not self._in_want[waiter.entrant.place.model]:
            self._pace(waiter.entrant.place.model).empty()

    def wait_s(self, model: str, now_s: float) -> float:
        """When one that came now may have its turn, to come back then."""
        return self._pace(model).wait_s(self.count(model), now_s)

    def predicted_s(self, place: Place, now_s: float) -> float | None:
        """How long one that came now would wait for room; None where that cannot be told."""
        return self._pace(place.model).predicted_s(self._queue.ahead(place.model, place).requests, now_s)

    def _out(self, waiter: Waiter, leave: Callable[[Waiter], None]) -> None:
        if waiter.queued:
            waiter.queued = False
            leave(waiter)
            self._in_want[waiter.entrant.place.model] -= not waiter.held

    def _pace(self, model: str) -> Pace:
        return self._paces.setdefault(model, Pace())


def _work_s(decision: Decision | None) -> float:
    """What there is to do before a request's first token, as far as is known."""
    return decision.prefill_s if isinstance(decision, Choice) else 0.0
