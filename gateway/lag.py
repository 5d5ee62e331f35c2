"""How late the event loop is: what blocks it, or takes its processor away, holds every stream up.

A tick twenty times a second costs nothing that can be measured. One late tick is a pause, which may be no fault of ours (the
machine stood still); several in a row are load.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

TICK_S = 0.05
RECENT_S = 5.0
STILL_S = 0.1
_IN_A_ROW = 3


class LoopLag:
    """How late the last ticks were, in seconds. `told` gets the lateness of each."""

    def __init__(self, told: Callable[[float], None] | None = None, *, tick_s: float = TICK_S) -> None:
        self._told = told
        self._tick_s = tick_s
        self._last: deque[float] = deque([0.0] * _IN_A_ROW, _IN_A_ROW)
        self._recent: deque[tuple[float, float]] = deque()  # when, and how late; each later than all that follow
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf
        self._stood_s = 0.0

    @asynccontextmanager
    async def ticking(self) -> AsyncIterator["LoopLag"]:
        """Watches the running loop while inside."""
        self._next(asyncio.get_running_loop())
        try:
            yield self
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer, self._due_s = None, math.inf

    def stood_s(self) -> float:
        """How long the loop has stood still until now, all pauses of over 0.1 s together. What a timer that rings after one tells
        is nobody else's fault: take the difference between its begin and its end."""
        late_s = time.monotonic() - self._due_s
        return self._stood_s + (late_s if late_s > STILL_S else 0.0)

    @property
    def most_s(self) -> float:
        """The largest lateness of the last 5 s."""
        return self._recent[0][1] if self._recent else 0.0

    @property
    def lasting_s(self) -> float:
        """What the last three ticks were late at the least."""
        return min(self._last)

    def ticked(self, now_s: float, late_s: float) -> None:
        """One tick came this late."""
        self._last.append(late_s)
        self._stood_s += late_s if late_s > STILL_S else 0.0
        while self._recent and self._recent[-1][1] <= late_s:
            self._recent.pop()
        self._recent.append((now_s, late_s))
        while self._recent[0][0] < now_s - RECENT_S:
            self._recent.popleft()
        if self._told is not None:
            self._told(late_s)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not the loop's time, which some loops read once a turn.
        self._due_s = time.monotonic() + self._tick_s
        self._timer = loop.call_later(self._tick_s, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = time.monotonic()
        self.ticked(now_s, max(now_s - self._due_s, 0.0))
        self._next(loop)
