"""The gateway's own router and queue in the simulation: the very modules that serve, driven by simulated moments."""

import random
from collections.abc import Sequence
from dataclasses import replace

from gateway.routing.choice import Choice, Query, Tuning
from gateway.routing.queue import FairQueue, Place
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView
from lab.simulate.model import EngineModel
from lab.simulate.policies import Make, Truth, Usage
from lab.traces import Prompt

_PLACE = Place("model")
_MISSES = 16  # that had better wait on, in one go over the queue; of more than eight engines the gateway looks at fewer


class GatewayPolicy:
    """A Router, which knows an engine's capacity and nothing else of it, and the queue of what it holds back, of one tenant."""

    def __init__(self, tuning: Tuning, truth: Truth, model: EngineModel, rng: random.Random) -> None:
        self._router = Router(replace(tuning, chunk_tokens=model.block_tokens), rng)
        self._view = FleetView(tuple(EngineView(str(engine), ready=True) for engine in range(truth.engines)))
        for engine in self._view.engines:
            self._router.capacity(engine.id, model.blocks * model.block_tokens)
        self._names = f"{rng.random():.6f}/"  # of the sessions, by which equal engines are told apart
        self._queue: FairQueue[int] = FairQueue()
        self._held: dict[int, Prompt] = {}

    def choose(self, prompt: Prompt, now_s: float) -> int | None:
        """The router's choice, charged; None where it would rather wait."""
        choice = self._ask(prompt, now_s)
        if choice.engine is None:
            self._held[prompt.id] = prompt
            self._queue.push(prompt.id, _PLACE, work_s=choice.prefill_s, now_s=now_s)
            return None
        return int(choice.engine)

    def first_token(self, prompt: Prompt, engine: int, now_s: float) -> None:
        """Tells the router."""
        self._router.first_token(str(prompt.id), now_s)

    def finished(self, prompt: Prompt, engine: int, usage: Usage, now_s: float) -> None:
        """Tells the router, with what the engine reports."""
        self._router.finished(str(prompt.id), now_s, usage.output_tokens, usage.cached_tokens)

    def released(self, now_s: float) -> Sequence[tuple[Prompt, int]]:
        """Those held that the router has a place for now, in the order of their turns."""
        if not self._held:
            return ()
        gone, misses = list[tuple[Prompt, int]](), 0
        for number in self._queue.order(_PLACE.model):
            choice = self._ask(self._held[number], now_s)
            if choice.engine is not None:
                self._queue.take(number)
                gone.append((self._held.pop(number), int(choice.engine)))
                continue
            self._queue.rework(number, choice.prefill_s)
            misses += 1
            if misses == _MISSES:
                break
        return gone

    def _ask(self, prompt: Prompt, now_s: float) -> Choice:
        query = Query(str(prompt.id), prompt.path, prompt.tokens, affinity=self._names + str(prompt.session))
        return self._router.choose(query, self._view, now_s)


def gateway_policy(tuning: Tuning) -> Make:
    """What makes a policy of these settings."""

    def make(truth: Truth, model: EngineModel, rng: random.Random) -> GatewayPolicy:
        return GatewayPolicy(tuning, truth, model, rng)

    return make
