"""A request that is ready to be served, what it needs of the process, and what becomes known of it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.answer import Tally, used
from gateway.budget import RetryBudget
from gateway.dialects.base import Encoder
from gateway.events import NO_ENGINE
from gateway.fleet.registry import Registry
from gateway.model import Model
from gateway.observe.bus import Bus
from gateway.pressure import Pressure
from gateway.request import FailureKind, GenerateRequest, Prompt, Usage
from gateway.route import Asked, Guides, Route
from gateway.routing.queue import DEFAULT_TENANT
from gateway.timer import StageLimits, Watchdog
from gateway.trace import UNTRACED, Trace
from gateway.upstream import Upstream


class Sink(Protocol):
    """Where the answer goes: the client, behind its socket's backpressure."""

    @property
    def streamed(self) -> bool:
        """Whether the client wants the answer as it comes."""

    @property
    def gone(self) -> bool:
        """Whether the client has left."""

    async def write(self, data: bytes) -> float:
        """Sends a piece of a streamed answer; gives the seconds that the client made us wait."""

    async def finish(self, data: bytes) -> None:
        """Sends the last piece, or the whole body."""


@dataclass(frozen=True, slots=True)
class Services:
    """What a request needs of the process. `resume`: answers that an engine broke off are gone on with elsewhere."""

    registry: Registry
    upstream: Upstream
    bus: Bus
    limits: StageLimits
    watchdog: Watchdog
    new_call_id: Callable[[], str]
    retries: RetryBudget
    guides: Guides
    resume: bool = True
    pressure: Pressure = field(default_factory=Pressure)


class Ledger(msgspec.Struct):
    """What is known of a request when it is over. Attempts write to it as they go."""

    request_id: str
    received_s: float
    engine: str = NO_ENGINE
    attempts: int = 0
    queue_s: float = 0.0
    ttft_s: float | None = None
    first_output_s: float | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0
    retries: int = 0
    resumes: int = 0
    deaths: set[str] = msgspec.field(default_factory=set)  # engines that it may have taken down
    tallies: dict[int, Tally] = msgspec.field(default_factory=dict)
    engine_usage: Usage | None = None
    trace: Trace = UNTRACED
    entered_s: float | None = None
    _earlier: Counter[FailureKind] = msgspec.field(default_factory=Counter)
    _earlier_thoughts: int = 0

    def waited(self, queue_s: float) -> None:
        """The request waited for an engine, or was sent away after the wait."""
        self.queue_s = queue_s

    def worked(self, engine: str, prefill_s: float, decode_s: float) -> None:
        """An attempt is over, in which this engine took so long for its first token and for the rest."""
        self.engine, self.prefill_s, self.decode_s = engine, prefill_s, decode_s

    def begin(self, choice: int, tally: Tally) -> None:
        """An answer for this choice begins; the failures of one that was thrown away stay counted."""
        if choice in self.tallies:
            self._earlier += self.tallies[choice].failures
            self._earlier_thoughts += self.tallies[choice].ended_thoughts
            self.engine_usage = None
        self.tallies[choice] = tally

    def failures(self) -> Counter[FailureKind]:
        """All failures of the request's answers."""
        return sum((tally.failures for tally in self.tallies.values()), self._earlier)

    def ended_thoughts(self) -> int:
        """All thoughts that the gateway ended."""
        return sum((tally.ended_thoughts for tally in self.tallies.values()), self._earlier_thoughts)

    def usage(self) -> Usage:
        """The request's tokens: the engine's own count where it made all choices, else its prompt once and all choices."""
        return used(self.tallies.values(), self.engine_usage)


class Job(msgspec.Struct, frozen=True):
    """A request that is ready to be served. `prompt` is None where the engine templates itself; `check` is for JSON answers.
    `asked` is what decides where it goes. `may_retry`: its sender does not do so itself. `tenant` and `priority` say when it has
    its turn where requests wait."""

    services: Services
    model: Model
    request: GenerateRequest
    prompt: Prompt | None
    encoder: Encoder
    sink: Sink
    ledger: Ledger
    asked: Asked
    check: Callable[[str], Sequence[FailureKind]] | None = None
    may_retry: bool = True
    tenant: str = DEFAULT_TENANT
    priority: int = 0

    def route(self, choice: int) -> Route:
        """The way of one of its answers."""
        return Route(self.services.guides.of(self.model.name), self.asked, f"{self.ledger.request_id}/{choice}")
