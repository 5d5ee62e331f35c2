"""What is asked of a router, and what it answers: the engine, and what it believes of it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from gateway.routing.policy import Decision
from gateway.routing.view import Forecast, Terms

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
    hold_s: float | None = 0.7
    kappa_max: float = 12.0
    index_entries: int = 2_000_000


class Query(msgspec.Struct, frozen=True):
    """One attempt that wants an engine.

    `request` is its own: with one that is charged already it is chosen for anew. `keys` are those of gateway.routing.chain, root
    first; `tokens` the prompt's length. Where keys are not of `chunk_tokens` each (text), `ends` are the tokens up to the end of
    each, and `unit_tokens` the most that one stands for. `affinity` is a hint, and breaks ties alone. `avoid` and `weights`: see
    gateway.routing.policy. `patient`: it may be held back for a better place.
    """

    request: str
    keys: tuple[int, ...]
    tokens: int
    ends: tuple[int, ...] = ()
    unit_tokens: float | None = None
    affinity: str | None = None
    avoid: Collection[str] = ()
    weights: str | None = None
    patient: bool = True


class Choice(Decision, frozen=True):
    """The decision, and what is predicted for it; None where no engine can serve. With `awaits` nothing is charged: it is to be
    asked for again when a first token or an end was seen. `prefill_s` is the request's own work on the best engine, `ttft_s` with
    what it waits for."""

    forecast: Forecast | None = None

    @property
    def terms(self) -> Terms | None:
        """What the cost is made of."""
        return self.forecast.terms if self.forecast else None

    @property
    def cached_tokens(self) -> int:
        """The prompt's tokens that the engine has."""
        return self.forecast.cached_tokens if self.forecast else 0

    @property
    def prefill_s(self) -> float:
        """Its own work."""
        return self.forecast.terms.prefill_s if self.forecast else 0.0

    @property
    def ttft_s(self) -> float:
        """How long until its first token."""
        return self.forecast.ttft_s if self.forecast else 0.0
