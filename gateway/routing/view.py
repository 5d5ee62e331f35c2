"""What is known of the engines at one moment, frozen, so that a decision can be made, tested and repeated on it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec.structs import replace


class EngineView(msgspec.Struct, frozen=True):
    """One engine.

    `ready` is what probes say; `draining`: it takes no new requests; `ejected`: its breaker is open; `rests_s` are the seconds
    until it wants to be asked again; `shy`: it just had no room, and did not say until when. `running` counts the attempts of
    ours on it now, of at most `most_running` (None: it queues itself). `share` (0 to 1] is how much of an engine's part it gets
    while it warms up; `failing` the share of its last requests that failed, which fades. Engines with the same `weights` answer
    alike. `context_tokens`: None until it said it. `returning`: it has just lost a connection, and may be back as soon as it is
    asked. `life` is another number when it may be another process, whose cache is empty. It answers `slots` requests at a time,
    each out of a cache of its own (gateway.routing.slots), and others wait in it; None: it says of no bound, and they share one.
    `claimed`: one that waits in the gateway goes there first (gateway.routing.claims).
    """

    id: str
    ready: bool
    running: int = 0
    context_tokens: int | None = None
    draining: bool = False
    ejected: bool = False
    rests_s: float = 0.0
    most_running: int | None = None
    share: float = 1.0
    failing: float = 0.0
    weights: str = ""
    returning: bool = False
    shy: bool = False
    life: int = 0
    slots: int | None = None
    claimed: bool = False

    @property
    def usable(self) -> bool:
        """Whether it can be given a request at all."""
        return self.ready and not self.draining

    @property
    def full(self) -> bool:
        """Whether it has as many of ours as it may have."""
        return self.most_running is not None and self.running >= self.most_running


class FleetView(msgspec.Struct, frozen=True):
    """The engines of one model, in the order of the settings."""

    engines: tuple[EngineView, ...]

    @property
    def ready(self) -> bool:
        """Whether any engine can serve."""
        return any(engine.usable for engine in self.engines)

    def without(self, claimed: Collection[str]) -> "FleetView":
        """The same for one that others go before on these engines."""
        if not claimed:
            return self
        return FleetView(tuple(replace(each, claimed=True) if each.id in claimed else each for each in self.engines))


class Terms(NamedTuple):
    """What a request costs on one engine, in seconds: the sum decides. See gateway.routing.cost."""

    wait_s: float = 0.0
    memory_s: float = 0.0
    prefill_s: float = 0.0
    eviction_s: float = 0.0
    standing_s: float = 0.0
    kappa: float = 1.0
    shared_s: float = 0.0  # taken away

    @property
    def total_s(self) -> float:
        """The cost."""
        made_s = self.kappa * (self.prefill_s + self.eviction_s)
        return self.wait_s + self.memory_s + made_s - self.shared_s + self.standing_s


class Forecast(msgspec.Struct, frozen=True):
    """What was believed of an attempt when its engine was chosen: the prompt's tokens, those of them that the engine has, how
    long its first token takes, and what that is made of. `unit_tokens`: the prompt is known by units of so many tokens. `costs`
    are what engines would have cost that were compared, in seconds, as they were compared: of many the cheapest."""

    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    terms: Terms
    unit_tokens: float = 128.0
    costs: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Belief:
    """What a router believes of one engine: the keys of its index that it holds and those that running requests do, the tokens
    that it has room for, the prefill sent and not yet answered by a first token, how many new tokens it makes in a second, and
    how much slower it is than the model's others."""

    index_entries: int
    pinned_entries: int
    capacity_tokens: int
    pending_prefill_s: float
    prefill_tokens_per_s: float
    slowness: float
