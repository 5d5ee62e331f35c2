"""Which engine an attempt goes to.

Now the one with the fewest attempts of ours running for what it can take; of several, the first in the settings, which holds the
longest cache. An ejected engine is passed over while others can serve, but never more than half of a model's engines are: where
most of a fleet fails, what is left would only fall after it (panic).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from gateway.routing.view import EngineView, FleetView

Why = Literal["least_busy", "only", "elsewhere", "resume", "panic", "none"]
_FAILS = 0.2  # the share of failures from which an engine is no place for a second try
_EJECTED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Decision:
    """The engine of an attempt, or None; why, and what it was chosen from. `wait_s`: when one may be free, where all rest.
    `returns`: there is none now, and one that is out may be back at once."""

    engine: str | None
    why: Why
    considered: tuple[EngineView, ...] = ()
    wait_s: float | None = None
    returns: bool = False


def choose(view: FleetView, *, avoid: Collection[str] = (), weights: str | None = None) -> Decision:
    """`avoid` are the engines that failed this request already; `weights` those that the answer was begun with."""
    allowed = [engine for engine in view.engines if engine.id not in avoid and weights in (None, engine.weights)]
    candidates = [engine for engine in allowed if engine.usable]
    awake = [engine for engine in candidates if not engine.rests_s]
    if not awake:
        waits = [engine.rests_s for engine in candidates]
        returns = any(engine.returning for engine in allowed)
        return Decision(None, "none", view.engines, min(waits, default=None), returns)
    out = _ejected(view)
    fit = [engine for engine in awake if engine.id not in out]
    best = min(fit or awake, key=lambda engine: _cost(engine, again=bool(avoid)))
    return Decision(best.id, _why(view, bool(fit), best, again=bool(avoid), resumed=weights is not None), view.engines)


def open_to(view: FleetView) -> list[EngineView]:
    """The engines that a new answer may go to."""
    awake = [engine for engine in view.engines if engine.usable and not engine.rests_s]
    out = _ejected(view)
    return [engine for engine in awake if engine.id not in out] or awake


def _why(view: FleetView, fit: bool, best: EngineView, *, again: bool, resumed: bool) -> Why:
    if resumed:
        return "resume"
    if not fit or best.ejected:
        return "panic"
    if again:
        return "elsewhere"
    return "only" if len(view.engines) == 1 else "least_busy"


def _ejected(view: FleetView) -> set[str]:
    """The engines that are out: those that fail most, and no more than half."""
    ejected = sorted((engine for engine in view.engines if engine.ejected), key=lambda engine: -engine.failing)
    return {engine.id for engine in ejected[: int(len(view.engines) * _EJECTED_SHARE)]}


def _cost(engine: EngineView, *, again: bool) -> tuple[bool, bool, float]:
    return engine.full, again and engine.failing >= _FAILS, (engine.running + 1) / engine.share
