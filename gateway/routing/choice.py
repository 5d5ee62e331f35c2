"""What is asked of a router, and what it answers: the engine, and what it believes of it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from gateway.routing.policy import Decision

PolicyName = Literal["cost", "round_robin", "least_outstanding", "session"]


class Chance(Protocol):
    """A source of chance, such as `random.Random(7)`."""

    def random(self) -> float:
        """At least 0 and less than 1."""
        ...


@dataclass(frozen=True, slots=True)
class Tuning:
    """The settings of routing. `hold_s`: prefill ahead of a request from which it waits in the gateway instead; None: it never
    does. `index_entries`: of all engines of the model together."""

    policy: PolicyName = "cost"
    chunk_tokens: int = 128
    hold_s: float | None = 1.0
    kappa_max: float = 12.0
    index_entries: int = 2_000_000


@dataclass(frozen=True, slots=True)
class Query:
    """One attempt that wants an engine.

    `request` is its own, never used twice. `keys` are those of gateway.routing.chain, root first; `tokens` the prompt's length;
    `unit_tokens` what a key stands for, where that is not `chunk_tokens` (text). `affinity` is a hint, and breaks ties alone.
    `avoid` and `weights`: see gateway.routing.policy. `patient`: it may be held back for a better place.
    """

    request: str
    keys: tuple[int, ...]
    tokens: int
    unit_tokens: float | None = None
    affinity: str | None = None
    avoid: Collection[str] = ()
    weights: str | None = None
    patient: bool = True


class Terms(NamedTuple):
    """What a request costs on one engine, in seconds: the sum decides. See gateway.routing.cost."""

    wait_s: float = 0.0
    memory_s: float = 0.0
    prefill_s: float = 0.0
    eviction_s: float = 0.0
    standing_s: float = 0.0
    kappa: float = 1.0

    @property
    def total_s(self) -> float:
        """The cost."""
        return self.wait_s + self.memory_s + self.kappa * self.prefill_s + self.eviction_s + self.standing_s


@dataclass(frozen=True, slots=True)
class Choice(Decision):
    """The decision, and what is predicted for it. `hold`: no engine yet, nothing is charged; ask again when a first token or an
    end was seen. `prefill_s` is the request's own work on the best engine, `ttft_s` with what it waits for."""

    hold: bool = False
    cached_tokens: int = 0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    terms: Terms | None = None
