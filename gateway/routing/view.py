"""What is known of the engines at one moment, frozen, so that a decision can be made, tested and repeated on it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine.

    `ready` is what probes say; `draining`: it takes no new requests; `ejected`: its breaker is open; `rests_s` are the seconds
    until it wants to be asked again; `shy`: it just had no room, and did not say until when. `running` counts the attempts of
    ours on it now, of at most `most_running` (None: it queues itself). `share` (0 to 1] is how much of an engine's part it gets
    while it warms up; `failing` the share of its last requests that failed. Engines with the same `weights` answer alike.
    `context_tokens` is None until it has said it. `returning`: it has just lost a connection, and may be back as soon as it is
    asked.
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

    @property
    def usable(self) -> bool:
        """Whether it can be given a request at all."""
        return self.ready and not self.draining

    @property
    def full(self) -> bool:
        """Whether it has as many of ours as it may have."""
        return self.most_running is not None and self.running >= self.most_running


@dataclass(frozen=True, slots=True)
class FleetView:
    """The engines of one model, in the order of the settings."""

    engines: tuple[EngineView, ...]

    @property
    def ready(self) -> bool:
        """Whether any engine can serve."""
        return any(engine.usable for engine in self.engines)
