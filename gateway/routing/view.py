"""What is known of the engines at one moment, frozen, so that a decision can be made, tested and repeated on it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine. `running` counts the attempts of ours on it now; `context_tokens` is None until it has said it."""

    id: str
    ready: bool
    running: int = 0
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FleetView:
    """The engines of one model, in the order of the settings."""

    engines: tuple[EngineView, ...]

    @property
    def ready(self) -> bool:
        """Whether any engine can serve."""
        return any(engine.ready for engine in self.engines)
