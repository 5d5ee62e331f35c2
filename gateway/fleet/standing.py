"""How one engine stands: what probes and traffic say of it, and what its operator wants of it."""

from dataclasses import dataclass, field
from typing import Literal

from engines.base import EngineInfo, EngineLoad
from gateway.routing.breaker import Breaker, BreakerRules
from gateway.routing.view import EngineView

Problem = Literal[
    "not_probed",
    "unreachable",
    "unhealthy",
    "tokenizer_mismatch",
    "tokenizer_unknown",
    "probe_failed",
]
"""Why an engine is out of service. `unhealthy`: it answers, but does not say that it can serve. `tokenizer_mismatch`: its ids are
not the model's. `tokenizer_unknown`: it did not give its ids."""

MOST_REST_S = 30.0
LOAD_COUNTS_S = 5.0  # what an engine said of its load is not its load after that
_COLD_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class StandingRules:
    """When traffic takes an engine out, and over how many seconds one that was away gets its part again."""

    breaker: BreakerRules = field(default_factory=BreakerRules)
    slow_start_s: float = 30.0


class Standing:
    """What is known of one engine. Times are those of the registry's clock."""

    def __init__(self, rules: StandingRules) -> None:
        self.problem: Problem | None = "not_probed"
        self.losses = 0
        self.info = EngineInfo()
        self.draining = False  # its operator's wish
        self.leaving = False  # it is on its way out
        self.breaker = Breaker(rules.breaker)
        self.served_s: float | None = None  # when traffic last heard of it
        self._slow_start_s = rules.slow_start_s
        self._gone = False
        self._rests_until_s = 0.0
        self._warm_s = 0.0  # from when on it has its whole part
        self._load: tuple[float, EngineLoad] | None = None

    @property
    def ready(self) -> bool:
        """Whether it can serve, as far as is known."""
        return self.problem is None

    def lost(self) -> None:
        """Traffic found it gone."""
        self.losses += 1
        self._gone = True

    def back(self, now_s: float) -> None:
        """It can serve again. One that was gone may have a cold cache."""
        if self._gone:
            self._gone = False
            self._warm_s = now_s + self._slow_start_s

    def rest(self, now_s: float, for_s: float) -> None:
        """It wants no request for so long."""
        self._rests_until_s = max(self._rests_until_s, now_s + min(for_s, MOST_REST_S))

    def rests_s(self, now_s: float) -> float:
        """How long that still is."""
        return max(self._rests_until_s - now_s, 0.0)

    def share(self, now_s: float) -> float:
        """How much of its part it gets while it warms up."""
        left_s = self._warm_s - now_s
        if left_s <= 0 or self._slow_start_s <= 0:
            return 1.0
        return max(1.0 - left_s / self._slow_start_s, _COLD_SHARE)

    def set_load(self, now_s: float, load: EngineLoad) -> None:
        """What it said of its load."""
        self._load = (now_s, load)

    def load(self, now_s: float) -> tuple[float, EngineLoad] | None:
        """What it last said of its load, and how many seconds ago."""
        return None if self._load is None else (now_s - self._load[0], self._load[1])

    def view(self, engine_id: str, now_s: float, running: int, *, weights: str, most_running: int | None) -> EngineView:
        """How it is now, for a decision."""
        return EngineView(
            id=engine_id,
            ready=self.ready,
            running=running,
            context_tokens=self.info.context_tokens,
            draining=self.draining or self.leaving,
            ejected=not self.breaker.admits(now_s),
            rests_s=self.rests_s(now_s),
            most_running=most_running,
            share=self.share(now_s),
            failing=self.breaker.failing,
            weights=weights,
        )
