"""The gateway's own router and queue in the simulation: the very modules that serve, driven by simulated moments.

What `gateway.admission` does with them besides is here again in few words: who is held goes on after `wait_s`, and one that finds
the queue full at once. Engines have no bound here, so that nobody is refused.
"""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gateway.routing.choice import Choice, Query, Tuning
from gateway.routing.look import Look
from gateway.routing.queue import FairQueue, Place, QueueRules
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView
from lab.simulate.model import EngineModel
from lab.simulate.policies import Make, Truth, Usage
from lab.traces import Prompt

_PLACE = Place("model")


class GatewayPolicy:
    """A Router, which knows an engine's capacity and nothing else of it, and the queue of what it holds back, of one tenant."""

    def __init__(
        self, tuning: Tuning, truth: Truth, model: EngineModel, rng: random.Random, rules: QueueRules | None = None
    ) -> None:
        self._rules = rules or QueueRules()
        self.wait_s = self._rules.wait_s
        self._router = Router(replace(tuning, chunk_tokens=model.block_tokens), rng)
        self._view = FleetView(tuple(EngineView(str(engine), ready=True) for engine in range(truth.engines)))
        for engine in self._view.engines:
            self._router.capacity(engine.id, model.blocks * model.block_tokens)
        self._names = f"{rng.random():.6f}/"  # of the sessions, by which equal engines are told apart
        self._queue: FairQueue[int] = FairQueue()
        self._look = Look(self._queue, _PLACE.model)
        self._held: dict[int, tuple[Prompt, float]] = {}  # with the moment at which it goes whatever comes, in this order

    def choose(self, prompt: Prompt, now_s: float) -> int | None:
        """The router's choice, charged; None where it would rather wait."""
        choice = self._ask(prompt, now_s, self._queue.claimed(_PLACE, now_s))
        if choice.engine is not None:
            return int(choice.engine)
        if len(self._queue) >= self._rules.requests:
            return self._send(prompt, now_s)
        self._held[prompt.id] = prompt, now_s + self.wait_s
        self._queue.push(prompt.id, _PLACE, work_s=choice.prefill_s, now_s=now_s, awaits=choice.awaits)
        return None

    def first_token(self, prompt: Prompt, engine: int, now_s: float) -> None:
        """Tells the router."""
        self._router.first_token(str(prompt.id), now_s)

    def finished(self, prompt: Prompt, engine: int, usage: Usage, now_s: float) -> None:
        """Tells the router, with what the engine reports."""
        self._router.finished(str(prompt.id), now_s, usage.output_tokens, usage.cached_tokens)

    def released(self, now_s: float) -> Sequence[tuple[Prompt, int]]:
        """Those held that have waited long enough, and those that the router has a place for now, in the order of their turns."""
        return [*self._late(now_s), *self._let_in(now_s)] if self._held else ()

    def _late(self, now_s: float) -> Iterator[tuple[Prompt, int]]:
        while self._held:
            number, (prompt, until_s) = next(iter(self._held.items()))
            if until_s > now_s:
                return
            del self._held[number]
            self._queue.remove(number)
            yield prompt, self._send(prompt, now_s)

    def _let_in(self, now_s: float) -> Iterator[tuple[Prompt, int]]:
        for number in self._look.over(len(self._view.engines), now_s):
            prompt, _ = self._held[number]
            choice = self._ask(prompt, now_s, self._look.claimed)
            if choice.engine is not None:
                self._queue.take(number)
                del self._held[number]
                yield prompt, int(choice.engine)
            else:
                self._queue.rework(number, choice.prefill_s, choice.awaits)
                self._look.missed(number, now_s)

    def _send(self, prompt: Prompt, now_s: float) -> int:
        choice = self._ask(prompt, now_s, (), patient=False)
        return int(choice.engine or 0)  # every engine is ready and none has a bound

    def _ask(self, prompt: Prompt, now_s: float, claimed: Collection[str], *, patient: bool = True) -> Choice:
        affinity = self._names + str(prompt.session)
        query = Query(str(prompt.id), prompt.path, prompt.tokens, affinity=affinity, patient=patient)
        return self._router.choose(query, self._view.without(claimed), now_s)


def gateway_policy(tuning: Tuning) -> Make:
    """What makes a policy of these settings."""

    def make(truth: Truth, model: EngineModel, rng: random.Random) -> GatewayPolicy:
        return GatewayPolicy(tuning, truth, model, rng)

    return make
