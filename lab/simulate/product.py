"""The gateway's own router in the simulation: the very module that serves, driven by simulated moments."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.routing.choice import Query, Tuning
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView
from lab.simulate.model import EngineModel
from lab.simulate.policies import Make, Truth, Usage
from lab.traces import Prompt

_AGEING = 0.5  # seconds of credit for each second in the queue
_MISSES = 16  # tries of one release that lead nowhere


@dataclass(slots=True)
class _Held:
    prompt: Prompt
    since_s: float
    prefill_s: float


class GatewayPolicy:
    """A Router, which knows an engine's capacity and nothing else of it, with a queue for what it holds back."""

    def __init__(self, tuning: Tuning, truth: Truth, model: EngineModel, rng: random.Random) -> None:
        self._router = Router(replace(tuning, chunk_tokens=model.block_tokens), rng)
        self._view = FleetView(tuple(EngineView(str(engine), ready=True) for engine in range(truth.engines)))
        for engine in self._view.engines:
            self._router.capacity(engine.id, model.blocks * model.block_tokens)
        self._held: list[_Held] = []

    def choose(self, prompt: Prompt, now_s: float) -> int | None:
        """The router's choice, charged; None where it would rather wait."""
        held = _Held(prompt, now_s, 0.0)
        engine = self._ask(held, now_s)
        if engine is None:
            self._held.append(held)
        return engine

    def first_token(self, prompt: Prompt, engine: int, now_s: float) -> None:
        """Tells the router."""
        self._router.first_token(str(prompt.id), now_s)

    def finished(self, prompt: Prompt, engine: int, usage: Usage, now_s: float) -> None:
        """Tells the router, with what the engine reports."""
        self._router.finished(str(prompt.id), now_s, usage.output_tokens, usage.cached_tokens)

    def released(self, now_s: float) -> Sequence[tuple[Prompt, int]]:
        """Those held that the router has a place for now: least prefill first, with credit for the time they waited."""
        if not self._held:
            return ()
        self._held.sort(key=lambda held: held.prefill_s - _AGEING * (now_s - held.since_s))
        gone, kept, misses = list[tuple[Prompt, int]](), list[_Held](), 0
        for held in self._held:
            engine = self._ask(held, now_s) if misses < _MISSES else None
            if engine is None:
                misses += 1
                kept.append(held)
            else:
                gone.append((held.prompt, engine))
        self._held = kept
        return gone

    def _ask(self, held: _Held, now_s: float) -> int | None:
        prompt = held.prompt
        query = Query(str(prompt.id), prompt.path, prompt.tokens, affinity=str(prompt.session))
        choice = self._router.choose(query, self._view, now_s)
        held.prefill_s = choice.prefill_s
        return None if choice.hold or choice.engine is None else int(choice.engine)


def gateway_policy(tuning: Tuning) -> Make:
    """What makes a policy of these settings."""

    def make(truth: Truth, model: EngineModel, rng: random.Random) -> GatewayPolicy:
        return GatewayPolicy(tuning, truth, model, rng)

    return make
