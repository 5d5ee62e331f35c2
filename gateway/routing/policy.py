"""Which engines an attempt may go to, and the least busy of them.

Which of them is best is the router's to say (gateway.routing.router). `choose` is for those that only want to know whether there
is one: it takes that with the fewest attempts of ours running for what it can take; of several, the first in the settings. One
that fails is not as idle as it looks: its requests are over at once. It counts as if those that failed ran as long as the
others'. An ejected engine is passed over while any other can serve; so is one that just had no room. Where all are ejected, the
half that fails least is asked (panic).
"""

from collections.abc import Collection
from typing import Literal

import msgspec

from gateway.routing.view import EngineView, FleetView

Why = Literal["least_busy", "only", "elsewhere", "resume", "panic", "none", "cheapest", "turn", "session", "hold"]
_FAILS = 0.2  # the share of failures from which an engine is no place for a second try
_EJECTED_SHARE = 0.5
_MOST_FAILING = 0.9  # one that always failed is given some requests too, or it would never be seen to serve


class Decision(msgspec.Struct, frozen=True):
    """The engine of an attempt, or None; why, and what it was chosen from. `wait_s`: when one may be free, where all rest.
    `full`: there is none now, as those it could be have all that they may. `returns`: one that is out may be back at once.
    `awaits`: there are some, but the attempt had better wait for this one."""

    engine: str | None
    why: Why
    considered: tuple[EngineView, ...] = ()
    wait_s: float | None = None
    returns: bool = False
    full: bool = False
    awaits: str | None = None

    @property
    def hold(self) -> bool:
        """Whether it had better wait, though there is room."""
        return self.awaits is not None


class Field(msgspec.Struct, frozen=True):
    """The engines that an attempt may go to, all of them as good but for their load and their cache. None: as for `Decision`."""

    engines: tuple[EngineView, ...]
    wait_s: float | None = None
    returns: bool = False
    full: bool = False
    again: bool = False
    resumed: bool = False
    alone: bool = False

    def why(self, best: EngineView, ordinary: Why) -> Why:
        """Why this one of them; `ordinary`: it was chosen by its load or its cache."""
        if self.resumed:
            return "resume"
        if best.ejected:
            return "panic"
        if self.again:
            return "elsewhere"
        return "only" if self.alone else ordinary


def eligible(view: FleetView, *, avoid: Collection[str] = (), weights: str | None = None) -> Field:
    """`avoid` are the engines that failed this request already; `weights` those that the answer was begun with."""
    allowed = [engine for engine in view.engines if engine.id not in avoid and weights in (None, engine.weights)]
    candidates = [engine for engine in allowed if engine.usable]
    awake = [engine for engine in candidates if not engine.rests_s]
    if not awake:
        waits = [engine.rests_s for engine in candidates]
        return Field((), min(waits, default=None), any(engine.returning for engine in allowed))
    free = [engine for engine in _preferred(view, awake) if not engine.full]
    if avoid:
        free = [engine for engine in free if engine.failing < _FAILS] or free
    return Field(tuple(free), full=not free, again=bool(avoid), resumed=weights is not None, alone=len(view.engines) == 1)


def choose(view: FleetView, *, avoid: Collection[str] = (), weights: str | None = None) -> Decision:
    """The least busy of those that may have it."""
    field = eligible(view, avoid=avoid, weights=weights)
    if not field.engines:
        return Decision(None, "none", view.engines, field.wait_s, field.returns, field.full)
    busiest = max(engine.running for engine in field.engines)
    best = min(field.engines, key=lambda engine: _cost(engine, busiest))
    return Decision(best.id, field.why(best, "least_busy"), view.engines)


def _preferred(view: FleetView, awake: list[EngineView]) -> list[EngineView]:
    """Of those that can be asked, the ones to ask. One that serves and has much to do is better than one that fails at once."""
    if sound := [engine for engine in awake if not engine.ejected]:
        return [engine for engine in sound if not engine.shy] or sound
    out = _ejected(view)
    return [engine for engine in awake if engine.id not in out] or awake


def _ejected(view: FleetView) -> set[str]:
    """The engines that are out where all are ejected: those that fail most, and no more than half."""
    ejected = sorted((engine for engine in view.engines if engine.ejected), key=lambda engine: -engine.failing)
    return {engine.id for engine in ejected[: int(len(view.engines) * _EJECTED_SHARE)]}


def _cost(engine: EngineView, busiest: int) -> float:
    looks = engine.running + min(engine.failing, _MOST_FAILING) * busiest
    return (looks + 1) / engine.share
