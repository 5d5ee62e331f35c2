"""Whether a request may start now, must wait, or is sent away.

A request passes at once while an engine of its model can take it and nobody waits before it. Else it waits in a bounded queue
(`routing.queue` has its order) until an attempt ends or an engine comes back, within `wait_s` and its own deadline. Where probes
have found that no engine can serve, it is refused; so is one that would wait longer than it may, as things go.

One for which there is room may be held too, as its engine has so much to do that another may be the better place by the time that
it gets to it. That is a matter of speed alone, and nobody waits behind it for another engine, nor for its own before its wait has
made up for its work (`routing.claims`). It is refused only where others have the room by then.

What a request that was let in does next waits for room too, and goes before those in the queue: an attempt that follows another,
first come first served; its further answers, in turn with the queue, one each.

Invariant: room that was given to one that waits is kept on its engine until it begins, in the step in which it is told, so that
no number of them at once is more than an engine may have. One whose client leaves holds nothing.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from msgspec.structs import replace

from gateway.errors import Rejected
from gateway.events import AttemptFailed, AttemptServed, CacheTold, Event, Finished, Prefilled
from gateway.fleet.registry import Member, Registry
from gateway.fleet.standing import RETURNS_S
from gateway.refusals import Refusals
from gateway.routing.policy import Decision, choose
from gateway.routing.queue import Place, QueueRules
from gateway.routing.view import FleetView
from gateway.timer import Alarm, Watchdog
from gateway.waiting import Entrant, Line, Next, Turn, Waiter, Waiting, Where

_AFTER_REST_S = 0.001


class Admission:
    """The gate in front of one registry, and an observer of what its requests do, behind `registry.running`."""

    hears = (Prefilled, CacheTold, AttemptFailed, AttemptServed, Finished)

    def __init__(self, registry: Registry, rules: QueueRules, watchdog: Watchdog) -> None:
        self._registry = registry
        self._rules = rules
        self._watchdog = watchdog
        self._queue = Waiting()
        self._refusals = Refusals(rules.requests, lambda model: self._queue.wait_s(model, _now_s()))
        self._lines: dict[str, Line] = {}
        self._kept: Counter[str] = Counter()  # by engine
        self._due: set[str] = set()  # models that are looked at before the loop's next turn
        self._following: asyncio.Task[None] | None = None
        self._down: set[str] = set()  # models whose waiting requests know that their engines are down
        self._rests: dict[str, asyncio.TimerHandle] = {}

    def depth(self, model: str) -> int:
        """How many requests wait for an engine of this model."""
        return self._queue.count(model)

    def depths(self, model: str) -> Mapping[int, int]:
        """How many of them wait at each priority: at 0, and at any other at which one does."""
        return {0: 0} | self._queue.counts(model)

    @property
    def idle(self) -> bool:
        """Whether nobody waits, and room is kept for nobody."""
        return not (len(self._queue) or any(self._lines.values()) or self._kept)

    @property
    def fill(self) -> float:
        """How full the queue is, from 0 to 1."""
        return len(self._queue) / self._rules.requests if self._rules.requests else 0.0

    def check(self, place: Place) -> None:
        """Raises Rejected where `admit` would at once: asked before a request costs anything."""
        waits = self._queue.in_want(place.model) or len(self._queue) >= self._rules.requests
        if waits or not any(self._awake(place.model)):
            self._check(place)

    async def admit(self, entrant: Entrant, on_wait: Callable[[float], None]) -> Decision | None:
        """Returns when an engine has room for the request, which begins in that step: on the engine that was chosen, or, None, on
        one that it chooses now. Raises Rejected. `on_wait` is told the seconds of any wait."""
        model = entrant.place.model
        self._settle(model)
        decision = None
        if not self._queue.in_want(model):
            decision = entrant.where(self.view(model).without(self._queue.claimed(entrant.place, _now_s())))
            if decision.engine is not None:
                return decision
        if decision is None or not decision.hold:
            self._check(entrant.place)
        elif len(self._queue) >= self._rules.requests:  # it pushes nobody out, as it could go
            return None
        return await self._wait(entrant, decision, on_wait)

    async def room(self, model: str, where: Where, within_s: float, *, first: bool) -> Decision:
        """Where an attempt of a request that was let in goes, and begins in that step: at once, or when an engine has room, or
        one that lost a connection is back. `first`: before all others. Without an engine where there is none, or none in time."""
        line = self._lines.setdefault(model, Line())
        lane = line.first if first else line.answers
        ends_at = _now_s() + within_s
        if not first:
            self._settle(model)
        waits = not first and bool(line.answers or self._queue.in_want(model))
        decision = Decision(None, "none", full=True) if waits else where(self.view(model))
        while (waits or (decision.engine is None and _comes(decision, first))) and (left_s := ends_at - _now_s()) > 0:
            only_returns = first and not decision.full
            await self._stand(model, lane, where, min(left_s, RETURNS_S) if only_returns else left_s)
            waits, decision = False, where(self.view(model))
        return decision

    @contextmanager
    def kept(self, model: str, engine: str) -> Iterator[None]:
        """Room on this engine is nobody else's while inside."""
        self._kept[engine] += 1
        try:
            yield
        finally:
            self._give_back(model, engine)

    def view(self, model: str) -> FleetView:
        """The engines of a model, with what is kept on them."""
        view = self._registry.view(model)
        if not self._kept:
            return view
        return FleetView(tuple(replace(each, running=each.running + self._kept[each.id]) for each in view.engines))

    def refusal(self, model: str) -> Rejected:
        """Why an attempt of a request that was let in goes nowhere."""
        view = self._registry.view(model)
        if rests := _rests(view):
            return self._refusals.busy(model, rests)
        return self._refusals.no_room(model) if view.ready else self._refusals.no_engine(model)

    def __call__(self, event: Event) -> None:
        """Whenever an engine may have room, the next in line has it, but for one that goes on in the same step."""
        if isinstance(event, self.hears):
            self._soon(event.model)

    # Who may pass

    def _check(self, place: Place) -> None:
        """Raises Rejected for one that may neither pass nor wait."""
        model = place.model
        view = self.view(model)
        if not view.ready and self._registry.down(model) and not self._rules.down_wait_s:
            raise self._refusals.no_engine(model)
        if rests := _rests(view):
            raise self._refusals.busy(model, rests)
        if not self._queue.in_want(model) and choose(view).engine is not None:
            return
        if self._is_full(place):
            raise self._refusals.full(model)
        wait_s = self._queue.predicted_s(place, _now_s())
        if wait_s is not None and wait_s > self._rules.wait_s:
            raise self._refusals.too_long(model, wait_s)

    def _is_full(self, place: Place) -> bool:
        return len(self._queue) >= self._rules.requests and self._queue.yields(place) is None

    def _awake(self, model: str) -> Iterator[Member]:
        """The engines that a request may go to, whatever the others are. Quicker than a view of all of them."""
        now_s = self._registry.now_s()
        for member in self._registry.members.values():
            if member.model == model and self._registry.standing(member.id).awake(now_s):
                yield member

    # Who waits

    async def _wait(self, entrant: Entrant, decision: Decision | None, on_wait: Callable[[float], None]) -> Decision | None:
        loop = asyncio.get_running_loop()
        began_s, model = loop.time(), entrant.place.model
        held = decision is not None and decision.hold
        waiter = Waiter(loop.create_future(), entrant, min(began_s + self._rules.wait_s, entrant.ends_at), held)
        self._enter(waiter, decision)
        try:
            with Alarm(self._watchdog, waiter.ends_at, lambda: self._late(waiter)) as waiter.alarm:
                if not held:  # one that is held was asked just now
                    self._pump(model)
                await waiter.told
        except Rejected:
            if not waiter.held or loop.time() >= entrant.ends_at:
                raise
        finally:
            self._leave(waiter)
            on_wait(loop.time() - began_s)
        return waiter.given if any(member.id == waiter.engine for member in self._awake(model)) else None

    def _enter(self, waiter: Waiter, decision: Decision | None) -> None:
        place = waiter.entrant.place
        if len(self._queue) >= self._rules.requests:
            out = self._queue.yields(place)
            if out is None:
                raise self._refusals.full(place.model)
            self._refuse(out, self._refusals.full(out.entrant.place.model))
        self._queue.enter(waiter, decision, _now_s())
        self._watch()

    def _leave(self, waiter: Waiter) -> None:
        """It waits no more, for whatever reason; what it was given and does not use is another's."""
        model = waiter.entrant.place.model
        self._queue.leave(waiter)
        if waiter.told.done() and not waiter.told.cancelled():
            waiter.told.exception()  # it is told, or its client has left meanwhile
        self._give_back(model, waiter.engine)
        self._watch()

    async def _stand(self, model: str, lane: deque[Next], where: Where, within_s: float) -> None:
        """Waits in the line until it is this one's turn, or its time is over."""
        one = Next(asyncio.get_running_loop().create_future(), where)
        lane.append(one)
        self._watch()
        self._soon(model)
        try:
            async with asyncio.timeout(within_s):
                await one.told
        except TimeoutError:
            pass
        finally:
            if one in lane:
                lane.remove(one)
            self._give_back(model, one.engine)
            self._watch()

    def _waits(self, model: str) -> bool:
        return bool(self._queue.count(model) or self._lines.get(model))

    def _watch(self) -> None:
        """Looks again whenever an engine's health changes, while anyone waits."""
        waits = bool(len(self._queue) or any(self._lines.values()))
        if waits and self._following is None:
            self._following = asyncio.create_task(self._follow())
        elif not waits and self._following is not None:
            self._following.cancel()
            self._following = None

    async def _follow(self) -> None:
        while True:
            for model in {*self._queue.models, *self._lines}:
                self._pump(model)
            await self._registry.changed()

    # Whose turn it is

    def _pump(self, model: str) -> None:
        """Lets in who may pass now, and refuses who waits for nothing."""
        self._due.discard(model)
        if (timer := self._rests.pop(model, None)) is not None:
            timer.cancel()
        if not self._waits(model):
            return
        line = self._lines.setdefault(model, Line())
        for lane, first in ((line.first, True), (line.answers, False)):
            for one in list(lane):
                self._go_on(model, lane, one, first)
        view = self._registry.view(model)
        if self._queue.count(model) and (not view.ready or model in self._down):
            self._bound_all(model, down=not view.ready and self._registry.down(model))
        self._let_in(model, line)
        rests = [engine.rests_s for engine in view.engines if engine.usable and engine.rests_s]
        if rests and self._waits(model):
            loop = asyncio.get_running_loop()
            self._rests[model] = loop.call_later(min(rests) + _AFTER_REST_S, self._pump, model)

    def _go_on(self, model: str, lane: deque[Next], one: Next, first: bool) -> None:
        """Its turn has come where it has room, or there is nothing to wait for; further answers have room by turns."""
        decision = one.where(self.view(model))
        if (first and decision.engine is not None) or (decision.engine is None and not _comes(decision, first)):
            lane.remove(one)
            self._give(one, decision)

    def _let_in(self, model: str, line: Line) -> None:
        """Gives room to those of the queue and the further answers, in turn, while there is any."""
        view, look = self.view(model), self._queue.look(model)
        waiters = look.over(len(view.engines), _now_s())
        while True:
            if line.answers and (line.others is False or not self._queue.count(model)):
                if (decision := line.answers[0].where(view)).engine is None:
                    return
                line.others = True
                self._give(line.answers.popleft(), decision)
                view = self.view(model)
                continue
            if (waiter := next(waiters, None)) is None:
                if not line.answers:
                    return
                line.others = False
                continue
            if waiter.told.done():  # its client has left, and it does not know yet
                self._queue.leave(waiter)
                continue
            decision = waiter.entrant.where(view.without(look.claimed))
            if decision.engine is None:
                self._queue.hold(waiter, decision, _now_s())
                if not decision.hold:
                    return
                look.missed(waiter, _now_s())
                continue
            line.others = False
            self._queue.let_in(waiter, _now_s())
            self._give(waiter, decision)
            view = self.view(model)

    def _give(self, one: Turn, decision: Decision) -> None:
        if one.told.done():
            return
        if decision.engine is not None:
            self._kept[decision.engine] += 1
            one.given = decision
        one.told.set_result(None)

    def _give_back(self, model: str, engine: str | None) -> None:
        """What was kept is used in this step, or another's."""
        if engine is None:
            return
        self._kept[engine] -= 1
        if not self._kept[engine]:
            del self._kept[engine]
        self._soon(model)

    def _soon(self, model: str) -> None:
        """Looks at those that wait, after this step: who goes on in it is before them."""
        if model not in self._due and self._waits(model):
            self._due.add(model)
            asyncio.get_running_loop().call_soon(self._settle, model)

    def _settle(self, model: str) -> None:
        if model in self._due:
            self._pump(model)

    def _bound_all(self, model: str, *, down: bool) -> None:
        """Bounds their waits anew where engines went down or came back."""
        (self._down.add if down else self._down.discard)(model)
        for waiter in self._queue.all(model):
            if down is not (waiter.down_until is not None):
                self._bound(waiter, down)

    def _bound(self, waiter: Waiter, down: bool) -> None:
        now_s = _now_s()
        waiter.down_until = now_s + self._rules.down_wait_s if down else None
        if down and not self._rules.down_wait_s:
            self._refuse(waiter, self._refusals.no_engine(waiter.entrant.place.model))
        elif waiter.alarm is not None:
            waiter.alarm.at_s = waiter.ends_at if waiter.down_until is None else min(waiter.ends_at, waiter.down_until)

    def _refuse(self, waiter: Waiter, error: Rejected) -> None:
        self._queue.leave(waiter)
        if not waiter.told.done():
            waiter.told.set_exception(error)

    def _late(self, waiter: Waiter) -> Rejected:
        model = waiter.entrant.place.model
        return self._refusals.no_room(model) if self._registry.view(model).ready else self._refusals.no_engine(model)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _comes(decision: Decision, first: bool) -> bool:
    """Whether an engine may come that is not there now. A further answer waits for one that rests too."""
    return decision.full or decision.returns or (not first and decision.wait_s is not None)


def _rests(view: FleetView) -> list[float]:
    """How long the engines want no request, where that is so of all; else nothing."""
    rests = [engine.rests_s for engine in view.engines if engine.usable]
    return rests if all(rests) else []
