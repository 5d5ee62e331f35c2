"""What a request is told that cannot be served now, and when it may come back."""

from collections.abc import Callable

from gateway.errors import Rejected, shown
from gateway.routing.pace import LEAST_WAIT_S, MOST_WAIT_S

_NO_ENGINE_RETRY_S = 1.0  # engines that are down are asked four times a second


class Refusals:
    """Of a queue of so many `requests`; `wait_s` gives how long one more of a model would wait."""

    def __init__(self, requests: int, wait_s: Callable[[str], float]) -> None:
        self._requests = requests
        self._wait_s = wait_s

    def full(self, model: str) -> Rejected:
        """Too many wait already."""
        message = f"No engine of {shown(model)} has room, and {self._requests} requests wait already."
        return Rejected(message, reason="queue_full", retry_after_s=self._wait_s(model))

    def no_room(self, model: str) -> Rejected:
        """It has waited as long as it may."""
        message = f"No engine of {shown(model)} had room in time."
        return Rejected(message, reason="queue_timeout", retry_after_s=self._wait_s(model))

    def too_long(self, model: str, wait_s: float) -> Rejected:
        """It would, as things go."""
        message = f"A request for {shown(model)} would wait some {wait_s:.0f} s for an engine now, longer than it may."
        retry_s = min(max(wait_s, LEAST_WAIT_S), MOST_WAIT_S)
        return Rejected(message, reason="wait_too_long", retry_after_s=retry_s)

    def no_engine(self, model: str) -> Rejected:
        """None can serve at all."""
        message = f"No engine of {shown(model)} can serve now; `/ready` says why."
        return Rejected(message, reason="no_engine", retry_after_s=_NO_ENGINE_RETRY_S)

    def busy(self, model: str, rests: list[float]) -> Rejected:
        """All want no request for so long."""
        return Rejected(f"Every engine of {shown(model)} is busy, as it says.", reason="engines_busy", retry_after_s=min(rests))
