"""The five timeouts of an attempt on one timer.

Invariant: at most one timer handle exists for an attempt, and the hot path (`touch`, once a chunk) sets one float: the handle
looks at the deadline when it fires and sleeps on where the deadline has moved.
"""

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gateway.errors import EngineTimeout, TimeoutStage


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Seconds that each stage may take; `total_s` is for the whole request."""

    connect_s: float
    headers_s: float
    first_token_s: float
    between_tokens_s: float
    total_s: float

    def of(self, stage: TimeoutStage) -> float:
        """The limit of one stage."""
        limit: float = getattr(self, f"{stage}_s")
        return limit


class StageTimer:
    """Cancels the task that entered it when a stage takes too long, and turns that into `EngineTimeout`.

    `ends_at` is when the whole request must be over, on the loop's clock.
    """

    def __init__(self, limits: StageLimits, ends_at: float) -> None:
        self._limits = limits
        self._ends_at = ends_at
        self._loop = asyncio.get_running_loop()
        self._stage: TimeoutStage = "connect"
        self._limit_s = 0.0
        self._deadline = ends_at
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._expired: EngineTimeout | None = None
        self._paused = False

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        return self

    def enter(self, stage: TimeoutStage) -> None:
        """The attempt is now in this stage."""
        self._stage = stage
        self._limit_s = self._limits.of(stage)
        self.touch()
        self._arm()

    def touch(self) -> None:
        """The stage begins anew: there was progress."""
        self._deadline = self._loop.time() + self._limit_s

    def pause(self) -> None:
        """The client is slow, not the engine: only the total counts until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """The client has taken what was sent."""
        self._paused = False
        self.touch()

    def _due(self) -> float:
        return self._ends_at if self._paused else min(self._deadline, self._ends_at)

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._due(), self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        if now < self._due():
            self._handle = self._loop.call_at(self._due(), self._fire)
            return
        self._handle = None
        total = now >= self._ends_at
        self._expired = EngineTimeout("total", self._limits.total_s) if total else EngineTimeout(self._stage, self._limit_s)
        if self._task is not None:
            self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._expired is None or self._task is None:
            return
        # As asyncio.timeout does: only a cancellation of ours, and no other on top of it, becomes a timeout.
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._expired from None
