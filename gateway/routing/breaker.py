"""Whether an engine's own failures take it out of service, and for how long: a fold over what became of its attempts.

Closed, requests go there. Open, none do until its time is over; each time in a row is longer. Then it is half open: one request
tries it, and its end decides. Times are seconds of any clock that only goes forward.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """`failures` in a row open it, or `unreached` where no connection could be made, or a share of `failing` of the last `window`
    requests (of at least half of them). It is open for `open_s`, twice as long each time in a row, at most `most_open_s`."""

    failures: int = 5
    unreached: int = 2
    failing: float = 0.4
    window: int = 20
    open_s: float = 10.0
    most_open_s: float = 300.0


class Breaker:
    """The breaker of one engine."""

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self._last: deque[bool] = deque(maxlen=rules.window)  # whether each failed
        self._in_a_row = 0
        self._unreached = 0
        self._openings = 0  # in a row
        self._until_s: float | None = None
        self._trying = False

    def state(self, now_s: float) -> BreakerState:
        """What it is at this time."""
        if self._until_s is None:
            return "closed"
        return "open" if now_s < self._until_s else "half_open"

    def admits(self, now_s: float) -> bool:
        """Whether a request may go there."""
        state = self.state(now_s)
        return state == "closed" or (state == "half_open" and not self._trying)

    @property
    def failing(self) -> float:
        """The share of the last requests that failed."""
        return sum(self._last) / len(self._last) if self._last else 0.0

    def started(self, now_s: float) -> None:
        """A request goes there, which is the trial of a breaker that is half open."""
        if self.state(now_s) == "half_open":
            self._trying = True

    def excused(self) -> None:
        """A request ended that says nothing of the engine."""
        self._trying = False

    def succeeded(self, now_s: float) -> None:
        """A request was served. One that began before it opened does not close it."""
        self._in_a_row = self._unreached = 0
        self._last.append(False)
        if self.state(now_s) == "half_open" and self._trying:
            self._until_s = None
            self._openings = 0
            self._last.clear()
        self._trying = False

    def failed(self, now_s: float, *, unreached: bool = False) -> None:
        """A request failed."""
        self._last.append(True)
        self._in_a_row += 1
        self._unreached = self._unreached + 1 if unreached else 0
        state = self.state(now_s)
        if (state == "half_open" and self._trying) or (state == "closed" and self._too_many()):
            self._open(now_s)
        self._trying = False

    def _too_many(self) -> bool:
        rules = self._rules
        enough = len(self._last) * 2 >= rules.window
        return (
            self._in_a_row >= rules.failures or self._unreached >= rules.unreached or (enough and self.failing >= rules.failing)
        )

    def _open(self, now_s: float) -> None:
        open_s = min(self._rules.open_s * 2**self._openings, self._rules.most_open_s)
        self._openings = min(self._openings + 1, 32)
        self._until_s = now_s + open_s
        self._in_a_row = self._unreached = 0
