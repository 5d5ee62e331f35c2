"""How one engine stands: what probes and traffic say of it, and what its operator wants of it."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import inf
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
_SHY_S = 1.0  # an engine that has no room and does not say until when; longer while that is again and again
RETURNS_S = 2.0  # an engine that lost a connection may be back at once; after that it is not counted on
LOAD_COUNTS_S = 5.0  # what an engine said of its load is not its load after that
_COLD_SHARE = 0.1
_SAME_START_S = 1.0  # a start is told to some hundredths, of a clock that may be set


@dataclass(frozen=True, slots=True)
class StandingRules:
    """When traffic takes an engine out, and over how many seconds one that was away gets its part again."""

    breaker: BreakerRules = field(default_factory=BreakerRules)
    slow_start_s: float = 30.0


class Signs:
    """By what an engine says of itself it is known again: other words for what it is, a later start, a count that fell. What it
    does not say is no sign, and what it said in an earlier life is not compared: that it has ended is known."""

    def __init__(self) -> None:
        self.life = 0  # in which it said what is compared
        self._said: dict[str, object] = {}
        self._started_s: float | None = None
        self._prompt_tokens: int | None = None

    def of_info(self, info: EngineInfo, life: int) -> bool:
        """Whether another says this."""
        self._meet(life)
        said = {name: value for name, value in asdict(info).items() if value is not None}
        another = any(self._said.get(name, value) != value for name, value in said.items())
        if another:
            self._said, self._started_s, self._prompt_tokens = said, None, None
        else:
            self._said |= said
        return another

    def of_load(self, load: EngineLoad, life: int) -> bool:
        """Whether another says this."""
        self._meet(life)
        started_s, tokens = self._started_s, self._prompt_tokens
        later = started_s is not None and load.started_s is not None and load.started_s > started_s + _SAME_START_S
        if load.started_s is not None:
            self._started_s = max(load.started_s, started_s or 0.0)
        if load.prompt_tokens is not None:
            self._prompt_tokens = load.prompt_tokens
        fell = tokens is not None and load.prompt_tokens is not None and load.prompt_tokens < tokens
        another = later or (fell and load.started_s is None)
        if another:
            self._said = {}
        return another

    def _meet(self, life: int) -> None:
        if life != self.life:
            self.life = life
            self._said, self._started_s, self._prompt_tokens = {}, None, None


class Standing:
    """What is known of one engine. Times are those of the registry's clock."""

    def __init__(self, rules: StandingRules) -> None:
        self.problem: Problem | None = "not_probed"
        self.asked = False  # whether that is a probe's word
        self.losses = 0
        self.life = 0  # another number: it may have been restarted
        self.restarts = 0  # lives that were noticed to have ended; it only grows, at another address too
        self.told_s = -inf  # when that was last logged
        self._lost_s = 0.0
        self.info = EngineInfo()
        self.draining = False  # its operator's wish
        self.leaving = False  # it is on its way out
        self.breaker = Breaker(rules.breaker)
        self.heard_s: float | None = None  # when it last generated for anyone
        self.visitors: set[Callable[[float], None]] = set()  # attempts, told how long it was silent once it was found gone
        self._slow_start_s = rules.slow_start_s
        self._away = False
        self._was_ready = False  # ever
        self._rests_until_s = 0.0
        self._shy_until_s = 0.0
        self._shy_s = _SHY_S
        self._warm_s = 0.0  # from when on it has its whole part
        self._load: tuple[float, EngineLoad] | None = None
        self._signs = Signs()

    @property
    def ready(self) -> bool:
        """Whether it can serve, as far as is known."""
        return self.problem is None

    @property
    def down(self) -> bool:
        """Whether it cannot be given a request, and that is known: nobody is about to ask what it is."""
        out = self.asked and self.problem not in (None, "tokenizer_unknown")
        return out or self.draining or self.leaving

    def awake(self, now_s: float) -> bool:
        """Whether it can be given a request, wants one, and its breaker admits one."""
        away = self.draining or self.leaving or self.rests_s(now_s) > 0 or self.shy(now_s)
        return self.ready and not away and self.breaker.admits(now_s)

    def returning(self, now_s: float) -> bool:
        """Whether traffic has just found it gone, and no probe has asked it since: it may only have lost a connection."""
        unasked = self.problem == "unreachable" and not self.asked and now_s - self._lost_s < RETURNS_S
        return unasked and not self.draining and not self.leaving

    def lost(self, now_s: float) -> None:
        """Traffic found it gone: it is out until a probe has asked it."""
        self.losses += 1
        self._lost_s = now_s
        self.problem = "unreachable"
        self.asked = False

    def probed(self, now_s: float, problem: Problem | None) -> None:
        """A probe found this wrong with it, or nothing. One that a probe had found away may have been restarted: its cache is
        cold, and what its breaker knows is of another, so that one request tries it."""
        self.problem = problem
        self.asked = True
        if problem in ("unreachable", "unhealthy"):
            self._away = True
        elif problem is None and self._away:
            self._away = False
            if self._was_ready:
                self.restarted()
            self._warm_s = now_s + self._slow_start_s
            self.breaker.back(now_s)
        self._was_ready = self._was_ready or problem is None

    def restarted(self) -> None:
        """It may be another process since."""
        self.life += 1
        self.restarts += 1

    def rest(self, now_s: float, for_s: float) -> None:
        """It wants no request for so long."""
        self._rests_until_s = max(self._rests_until_s, now_s + min(for_s, MOST_REST_S))

    def busy(self, now_s: float, wait_s: float | None) -> None:
        """It had no room for a request; `wait_s` is what it said of when it may have some."""
        if wait_s:
            self.rest(now_s, wait_s)
        elif not self.shy(now_s):
            self._shy_until_s = now_s + self._shy_s
            self._shy_s = min(self._shy_s * 2, MOST_REST_S)

    def shy(self, now_s: float) -> bool:
        """Whether it had no room a moment ago, and did not say until when."""
        return now_s < self._shy_until_s

    def served(self) -> None:
        """It had room."""
        self._shy_s = _SHY_S

    def rests_s(self, now_s: float) -> float:
        """How long that still is."""
        return max(self._rests_until_s - now_s, 0.0)

    def share(self, now_s: float) -> float:
        """How much of its part it gets while it warms up."""
        left_s = self._warm_s - now_s
        if left_s <= 0 or self._slow_start_s <= 0:
            return 1.0
        return max(1.0 - left_s / self._slow_start_s, _COLD_SHARE)

    def set_info(self, info: EngineInfo) -> bool:
        """What it said of itself: whether that tells that it was restarted unseen."""
        self.info = info
        return self._anew(self._signs.of_info(info, self.life))

    def set_load(self, now_s: float, load: EngineLoad) -> bool:
        """What it said of its load: whether that tells that it was restarted unseen."""
        self._load = (now_s, load)
        return self._anew(self._signs.of_load(load, self.life))

    def _anew(self, another: bool) -> bool:
        unseen = another and not self._away  # else that is counted when it is back
        if unseen:
            self.restarted()
            self._signs.life = self.life
        return unseen

    def load(self, now_s: float) -> tuple[float, EngineLoad] | None:
        """What it last said of its load, and how many seconds ago."""
        return None if self._load is None else (now_s - self._load[0], self._load[1])

    def view(self, engine_id: str, now_s: float, running: int, *, weights: str, most_running: int | None) -> EngineView:
        """How it is now, for a decision."""
        return EngineView(
            id=engine_id,
            ready=self.ready,
            returning=self.returning(now_s),
            running=running,
            context_tokens=self.info.context_tokens,
            draining=self.draining or self.leaving,
            ejected=not self.breaker.admits(now_s),
            rests_s=self.rests_s(now_s),
            shy=self.shy(now_s),
            most_running=most_running,
            share=self.share(now_s),
            failing=self.breaker.failing(now_s),
            weights=weights,
            life=self.life,
            slots=self.info.slots,
        )
