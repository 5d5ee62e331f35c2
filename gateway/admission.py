"""Whether a request may start now, must wait, or is sent away.

A request passes at once while an engine of its model can take it and nobody waits before it. Else it waits in a bounded queue
(`routing.queue` has its order) until an attempt ends or an engine comes back, within `wait_s` and its own deadline. Where probes
have found that no engine can serve, it is refused.

Invariant: a request that was let in holds its room from that very step until its attempt counts as running, and again between two
attempts, so that no number of them at once is more than the engines may have. One whose client leaves holds nothing.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.errors import Rejected, RejectReason, shown
from gateway.events import AttemptFailed, AttemptStarted, Event, Finished
from gateway.fleet.registry import Member, Registry
from gateway.routing.policy import open_to
from gateway.routing.queue import FairQueue, Pace, Place
from gateway.routing.view import FleetView
from gateway.timer import Alarm, Watchdog

_NO_ENGINE_RETRY_S = 1.0  # engines that are down are asked four times a second
_AFTER_REST_S = 0.001


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How many requests may wait and how long, in seconds; how long for an engine where all are known to be down."""

    requests: int
    wait_s: float
    down_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Entrant:
    """A request that wants in. It will run `attempts` at a time. `ends_at` is its own deadline, on the loop's clock."""

    request_id: str
    place: Place
    ends_at: float
    attempts: int = 1


@dataclass(eq=False, slots=True)
class _Waiter:
    entrant: Entrant
    turn: "asyncio.Future[None]"
    ends_at: float
    alarm: Alarm | None = None
    down_until: float | None = None  # where all engines are down: how long it waits for one


class Admission:
    """The gate in front of one registry, and an observer of what its requests do, behind `registry.running`."""

    def __init__(self, registry: Registry, rules: QueueRules, watchdog: Watchdog) -> None:
        self._registry = registry
        self._rules = rules
        self._watchdog = watchdog
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._paces: dict[str, Pace] = {}
        self._charged: dict[str, tuple[str, int]] = {}  # by request: its model, and attempts that do not run yet
        self._charges: Counter[str] = Counter()  # the sums, by model
        self._following: asyncio.Task[None] | None = None
        self._down: set[str] = set()  # models whose waiting requests know that their engines are down
        self._rests: dict[str, asyncio.TimerHandle] = {}

    def depth(self, model: str) -> int:
        """How many requests wait for an engine of this model."""
        return self._queue.count(model)

    def charged(self, model: str) -> int:
        """Attempts of requests that were let in and do not run yet."""
        return self._charges[model]

    @property
    def fill(self) -> float:
        """How full the queue is, from 0 to 1."""
        return len(self._queue) / self._rules.requests if self._rules.requests else 0.0

    def check(self, place: Place) -> None:
        """Raises Rejected where `admit` would at once: asked before a request costs anything."""
        if len(self._queue) >= self._rules.requests or not any(self._awake(place.model)):
            self._check(place)

    @asynccontextmanager
    async def admit(self, entrant: Entrant, on_wait: Callable[[float], None]) -> AsyncIterator[None]:
        """Enters when an engine has room for the request. Raises Rejected. `on_wait` is told the seconds of any wait."""
        if self._check(entrant.place, entrant.attempts):
            self._charge(entrant)
        else:
            await self._wait(entrant, on_wait)
        try:
            yield
        finally:
            self._discharge(entrant.request_id)
            self._pump(entrant.place.model)

    def __call__(self, event: Event) -> None:
        """Follows the attempts of the requests that were let in."""
        match event:
            case AttemptStarted():
                self._recharge(event.request_id, -1)
            case AttemptFailed():  # another may follow
                self._recharge(event.request_id, +1)
            case Finished():
                self._pump(event.model)
            case _:
                pass

    # Who may pass

    def _check(self, place: Place, attempts: int = 1) -> bool:
        """Whether it may pass now; False where it must wait. Raises Rejected."""
        model = place.model
        if not self._queue.count(model) and any(engine.most_running is None for engine in self._awake(model)):
            return True
        view = self._registry.view(model)
        if not view.ready and self._registry.down(model) and not self._rules.down_wait_s:
            raise self._no_engine(model)
        rests = [engine.rests_s for engine in view.engines if engine.usable]
        if rests and all(rests):
            message = f"Every engine of {shown(model)} is busy, as it says."
            raise Rejected(message, reason="engines_busy", retry_after_s=min(rests))
        if not self._queue.count(model) and self._fits(model, attempts, view):
            return True
        if len(self._queue) >= self._rules.requests and self._queue.yields(place) is None:
            raise self._full(model)
        return False

    def _awake(self, model: str) -> Iterator[Member]:
        """The engines that a request may go to, whatever the others are. Quicker than a view of all of them."""
        now_s = self._registry.now_s()
        for member in self._registry.members.values():
            if member.model == model and self._registry.standing(member.id).awake(now_s):
                yield member

    def _fits(self, model: str, attempts: int, view: FleetView) -> bool:
        """Whether the engines that a new request may go to would take so many attempts more."""
        engines = open_to(view)
        if any(engine.most_running is None for engine in engines):
            return True
        most = [(engine.most_running or 0, engine.running) for engine in engines]
        room = sum(max(limit - running, 0) for limit, running in most) - self._charges[model]
        return bool(most) and room >= min(attempts, sum(limit for limit, _ in most))

    # Who waits

    async def _wait(self, entrant: Entrant, on_wait: Callable[[float], None]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        waiter = _Waiter(entrant, loop.create_future(), min(began_s + self._rules.wait_s, entrant.ends_at))
        self._enter(waiter)
        waiting = True
        try:
            with Alarm(self._watchdog, waiter.ends_at, lambda: self._late(waiter)) as waiter.alarm:
                self._pump(entrant.place.model)
                await waiter.turn
            waiting = False
        finally:
            self._leave(waiter, failed=waiting)
            on_wait(loop.time() - began_s)

    def _enter(self, waiter: _Waiter) -> None:
        place = waiter.entrant.place
        if len(self._queue) >= self._rules.requests:
            out = self._queue.yields(place)
            if out is None:
                raise self._full(place.model)
            self._refuse(out, self._full(out.entrant.place.model))
        self._queue.push(waiter, place)
        self._pace(place.model).waits(_now_s())
        if self._following is None:
            self._following = asyncio.create_task(self._follow())

    def _leave(self, waiter: _Waiter, *, failed: bool) -> None:
        """It waits no more, for whatever reason; what it was given and cannot use is another's."""
        model = waiter.entrant.place.model
        self._queue.remove(waiter)
        if waiter.turn.done() and not waiter.turn.cancelled():
            waiter.turn.exception()  # it is told, or its client has left meanwhile
        if failed:
            self._discharge(waiter.entrant.request_id)
            self._pump(model)
        if not self._queue.count(model):
            self._pace(model).empty()
        if not len(self._queue) and self._following is not None:
            self._following.cancel()
            self._following = None

    async def _follow(self) -> None:
        """Looks again whenever an engine's health changes, while anyone waits."""
        while True:
            for model in self._queue.models:
                self._pump(model)
            await self._registry.changed()

    # Whose turn it is

    def _pump(self, model: str) -> None:
        """Lets in who may pass now, and refuses who waits for nothing."""
        if (timer := self._rests.pop(model, None)) is not None:
            timer.cancel()
        if not self._queue.count(model):
            return
        view = self._registry.view(model)
        if not view.ready or model in self._down:
            self._bound_all(model, down=not view.ready and self._registry.down(model))
        while (first := self._queue.first(model)) is not None and self._fits(model, first.entrant.attempts, view):
            self._queue.take(model)
            if not first.turn.done():  # else its client has left, and it does not know yet
                self._pace(model).left(_now_s(), waiting=bool(self._queue.count(model)))
                self._charge(first.entrant)
                first.turn.set_result(None)
        rests = [engine.rests_s for engine in view.engines if engine.usable and engine.rests_s]
        if rests and self._queue.count(model):
            loop = asyncio.get_running_loop()
            self._rests[model] = loop.call_later(min(rests) + _AFTER_REST_S, self._pump, model)

    def _bound_all(self, model: str, *, down: bool) -> None:
        """Bounds their waits anew where engines went down or came back."""
        (self._down.add if down else self._down.discard)(model)
        for waiter in self._queue.waiting(model):
            if down is not (waiter.down_until is not None):
                self._bound(waiter, down)

    def _bound(self, waiter: _Waiter, down: bool) -> None:
        now_s = _now_s()
        waiter.down_until = now_s + self._rules.down_wait_s if down else None
        if down and not self._rules.down_wait_s:
            self._refuse(waiter, self._no_engine(waiter.entrant.place.model))
        elif waiter.alarm is not None:
            waiter.alarm.at_s = waiter.ends_at if waiter.down_until is None else min(waiter.ends_at, waiter.down_until)

    def _refuse(self, waiter: _Waiter, error: Rejected) -> None:
        self._queue.remove(waiter)
        if not waiter.turn.done():
            waiter.turn.set_exception(error)

    # What is held

    def _charge(self, entrant: Entrant) -> None:
        self._charged[entrant.request_id] = (entrant.place.model, 0)
        self._recharge(entrant.request_id, entrant.attempts)

    def _recharge(self, request_id: str, change: int) -> None:
        if (held := self._charged.get(request_id)) is None:
            return
        model, attempts = held
        left = max(attempts + change, 0)
        self._charged[request_id] = (model, left)
        self._charges[model] += left - attempts

    def _discharge(self, request_id: str) -> None:
        if (held := self._charged.pop(request_id, None)) is not None:
            self._charges[held[0]] -= held[1]

    # What is said

    def _pace(self, model: str) -> Pace:
        return self._paces.setdefault(model, Pace())

    def _rejected(self, model: str, message: str, reason: RejectReason) -> Rejected:
        return Rejected(message, reason=reason, retry_after_s=self._pace(model).wait_s(self._queue.count(model), _now_s()))

    def _full(self, model: str) -> Rejected:
        message = f"No engine of {shown(model)} has room, and {self._rules.requests} requests wait already; `/ready` says more."
        return self._rejected(model, message, "queue_full")

    def _no_engine(self, model: str) -> Rejected:
        message = f"No engine of {shown(model)} can serve now; `/ready` says why."
        return Rejected(message, reason="no_engine", retry_after_s=_NO_ENGINE_RETRY_S)

    def _late(self, waiter: _Waiter) -> Rejected:
        model = waiter.entrant.place.model
        if not self._registry.view(model).ready:
            return self._no_engine(model)
        return self._rejected(model, f"No engine of {shown(model)} had room in time.", "queue_timeout")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
