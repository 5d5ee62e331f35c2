"""How close the gateway is to its limits, as one number, and what it stops doing at which.

The cheap things are given up first: second tries, then kept connections, at last new requests, which are then refused before
anything of them is read. Requests that run are never ended for it. Those that wait for an engine are no such limit: their queue
refuses by itself, and one that is full says nothing of whether another engine can go on with an answer.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from gateway.errors import Rejected

Stage = Literal["normal", "no_retries", "closing", "refusing"]

STAGES: tuple[tuple[float, Stage], ...] = ((1.0, "refusing"), (0.9, "closing"), (0.8, "no_retries"), (0.0, "normal"))
"""From which pressure on, and what: no failed answer is tried again or gone on with; answers end their connection too; new
requests are refused."""

_RETRY_AFTER_S = 1.0
Source = Callable[[], float]


class Pressure:
    """The largest of what its sources say, where 1 is a limit that is met, and the requests that run, which are one of them."""

    def __init__(self, inflight_requests: int | None = None, sources: Mapping[str, Source] | None = None) -> None:
        self.requests = 0
        self._most_requests = inflight_requests
        self._sources: dict[str, Source] = {"requests": self._share, **(sources or {})}

    @property
    def level(self) -> float:
        """The number."""
        return max([source() for source in self._sources.values()])

    @property
    def stage(self) -> Stage:
        """What holds at it."""
        return stage_of(self.level)

    @property
    def saturated(self) -> bool:
        """Whether failed answers end instead of being tried elsewhere."""
        return self.stage != "normal"

    @contextmanager
    def request(self) -> Iterator[Stage]:
        """One request, which counts while inside; gives the stage that it met. Raises Rejected."""
        stage = self.stage
        if stage == "refusing":
            raise Rejected("The gateway is overloaded.", reason="overloaded", retry_after_s=_RETRY_AFTER_S)
        self.requests += 1
        try:
            yield stage
        finally:
            self.requests -= 1

    def _share(self) -> float:
        return self.requests / self._most_requests if self._most_requests else 0.0


def stage_of(level: float) -> Stage:
    """What holds at a pressure."""
    for least, stage in STAGES:
        if level >= least:
            return stage
    return "normal"
