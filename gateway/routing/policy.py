"""Which engine an attempt goes to.

Now the one with the fewest attempts of ours running for what it can take; of several, the first in the settings, which holds the
longest cache. An ejected engine is passed over while others can serve, but never more than half of a model's engines are: where
most of a fleet fails, what is left would only fall after it (panic).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from gateway.routing.view import EngineView, FleetView

Why = Literal["least_busy", "only", "elsewhere", "resume", "panic", "none", "cheapest", "turn", "session", "hold"]
_FAILS = 0.2  # the share of failures from which an engine is no place for a second try
_EJECTED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Decision:
    """The engine of an attempt, or None; why, and what it was chosen from. `wait_s`: when one may be free, where all rest."""

    engine: str | None
    why: Why
    considered: tuple[EngineView, ...] = ()
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """The engines that an attempt may go to, all of them as good but for their load. None: `wait_s` until one may be free."""

    engines: tuple[EngineView, ...]
    wait_s: float | None = None
    in_panic: bool = False
    again: bool = False
    resumed: bool = False
    alone: bool = False

    def why(self, best: EngineView, ordinary: Why) -> Why:
        """Why this one of them; `ordinary`: it was chosen by its load or its cache."""
        if self.resumed:
            return "resume"
        if self.in_panic or best.ejected:
            return "panic"
        if self.again:
            return "elsewhere"
        return "only" if self.alone else ordinary


def eligible(view: FleetView, *, avoid: Collection[str] = (), weights: str | None = None) -> Field:
    """`avoid` are the engines that failed this request already; `weights` those that the answer was begun with."""
    candidates = [engine for engine in view.engines if engine.usable and engine.id not in avoid]
    if weights is not None:
        candidates = [engine for engine in candidates if engine.weights == weights]
    awake = [engine for engine in candidates if not engine.rests_s]
    if not awake:
        return Field((), min((engine.rests_s for engine in candidates), default=None))
    again = bool(avoid)
    out = _ejected(view)
    fit = [engine for engine in awake if engine.id not in out] if out else awake
    places = fit or awake
    places = [engine for engine in places if not engine.full] or places
    if again:
        places = [engine for engine in places if engine.failing < _FAILS] or places
    return Field(tuple(places), None, not fit, again, weights is not None, len(view.engines) == 1)


def choose(view: FleetView, *, avoid: Collection[str] = (), weights: str | None = None) -> Decision:
    """The least busy of those that may have it."""
    field = eligible(view, avoid=avoid, weights=weights)
    if not field.engines:
        return Decision(None, "none", view.engines, field.wait_s)
    best = min(field.engines, key=lambda engine: (engine.running + 1) / engine.share)
    return Decision(best.id, field.why(best, "least_busy"), view.engines)


def open_to(view: FleetView) -> list[EngineView]:
    """The engines that a new answer may go to."""
    awake = [engine for engine in view.engines if engine.usable and not engine.rests_s]
    out = _ejected(view)
    return [engine for engine in awake if engine.id not in out] or awake


def _ejected(view: FleetView) -> set[str]:
    """The engines that are out: those that fail most, and no more than half."""
    ejected = sorted((engine for engine in view.engines if engine.ejected), key=lambda engine: -engine.failing)
    return {engine.id for engine in ejected[: int(len(view.engines) * _EJECTED_SHARE)]}
