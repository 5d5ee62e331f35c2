"""Time limits of many tasks on one timer of the loop.

A timer handle of its own costs a request more than parsing it does, and each request needs several limits. So one `Watchdog`
looks at all of them twenty times a second while there are any, and the hot path (`touch`, once a chunk) sets one float.

Where the process itself stood still (it was stopped, or its machine was), nothing it waits for had a chance: every limit is moved
by that time, once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gateway.errors import ClientStalled, EngineSilent, EngineTimeout, GatewayError, TimeoutStage

TICK_S = 0.05
STALL_S = 1.0  # a tick that comes this late tells that the process stood still


class Watchdog:
    """The alarms of one loop."""

    def __init__(self) -> None:
        self._alarms: set[Alarm] = set()
        self._ticking = False
        self._due_s = 0.0

    def add(self, alarm: "Alarm") -> None:
        """From now on it is looked at."""
        self._alarms.add(alarm)
        if not self._ticking:
            self._ticking = True
            self._next()

    def remove(self, alarm: "Alarm") -> None:
        """It is looked at no more."""
        self._alarms.discard(alarm)

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + TICK_S
        loop.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        if not self._alarms:
            self._ticking = False
            return
        now = asyncio.get_running_loop().time()
        if (late_s := now - self._due_s) > STALL_S:
            for alarm in self._alarms:
                alarm.forgive(late_s)
        for alarm in [alarm for alarm in self._alarms if alarm.at_s <= now]:
            self._alarms.remove(alarm)
            alarm.ring()
        self._next()


class Alarm:
    """Cancels the task that entered it once `at_s`, on the loop's clock, has passed, and turns that into `error()`.

    `at_s` may be moved at any time. Only a cancellation of its own, and no other on top of it, becomes the error. `forgiven_s` is
    how long the process stood still since it was made.
    """

    __slots__ = ("_error", "_rung", "_task", "_watchdog", "at_s", "forgiven_s")

    def __init__(self, watchdog: Watchdog, at_s: float, error: Callable[[], GatewayError]) -> None:
        self.at_s = at_s
        self.forgiven_s = 0.0
        self._watchdog = watchdog
        self._error = error
        self._rung: GatewayError | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._watchdog.add(self)
        return self

    def forgive(self, stall_s: float) -> None:
        """It is not rung for this time."""
        self.at_s += stall_s
        self.forgiven_s += stall_s

    def ring(self) -> None:
        """The time is over."""
        self._rung = self._error()
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watchdog.remove(self)
        if self._rung is None or self._task is None:
            return
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._rung from None


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Seconds that each stage may take; `client_s` is for a client that takes nothing, `total_s` for the whole request."""

    connect_s: float
    headers_s: float
    first_token_s: float
    between_tokens_s: float
    client_s: float
    total_s: float

    def of(self, stage: TimeoutStage) -> float:
        """The limit of one stage."""
        limit: float = getattr(self, f"{stage}_s")
        return limit


class StageTimer:
    """The limits of one attempt: an alarm that moves with the stages. `ends_at` is when the whole request must be over."""

    def __init__(self, watchdog: Watchdog, limits: StageLimits, ends_at: float) -> None:
        self._limits = limits
        self._ends_at = ends_at
        self._time = asyncio.get_running_loop().time
        self._stage: TimeoutStage = "connect"
        self._limit_s = 0.0
        self._began_s = self._time()
        self._paused = self._given_up = False
        self._alarm = Alarm(watchdog, ends_at, self._error)

    def __enter__(self) -> Self:
        self._alarm.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._alarm.__exit__(kind, error, trace)

    def enter(self, stage: TimeoutStage) -> None:
        """The attempt is now in this stage."""
        self._stage = stage
        self._limit_s = self._limits.of(stage)
        self.touch()

    def touch(self) -> None:
        """The stage begins anew: there was progress."""
        self._paused = self._given_up = False
        self._began_s = self._time()
        self._alarm.at_s = min(self._began_s + self._limit_s, self._ends_at + self._alarm.forgiven_s)

    def pause(self) -> None:
        """The client is slow, not the engine: its own limit and the total count until `touch`."""
        self._paused = True
        self._alarm.at_s = min(self._time() + self._limits.client_s, self._ends_at + self._alarm.forgiven_s)

    @property
    def waits_s(self) -> float:
        """How long the engine has been silent before its first token; 0 after it."""
        return 0.0 if self._stage == "between_tokens" else self._time() - self._began_s

    def give_up(self) -> None:
        """The engine was found gone: its time is over, but for progress that comes at once."""
        self._given_up = True
        self._alarm.at_s = min(self._alarm.at_s, self._time())

    def _error(self) -> GatewayError:
        if self._paused:
            return stalled(self._limits)
        if self._given_up:
            return EngineSilent(self._stage, self._time() - self._began_s)
        if self._time() >= self._ends_at + self._alarm.forgiven_s:
            return EngineTimeout("total", self._limits.total_s)
        return EngineTimeout(self._stage, self._limit_s)


def stalled(limits: StageLimits) -> ClientStalled:
    """The client took nothing for too long, or the time of the whole request ended meanwhile."""
    return ClientStalled(f"Nothing of the answer was taken for {limits.client_s:g} s, or not all within {limits.total_s:g} s.")
