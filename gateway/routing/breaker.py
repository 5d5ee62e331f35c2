"""Whether an engine's own failures take it out of service, and for how long: a fold over what became of its requests.

Closed, requests go there. Open, none do until its time is over; each time in a row is longer. Then it is half open: one request
tries it, and decides. Each request that goes there is a visit, and counts once, while what it was a visit to still stands: one
that began before the breaker opened says nothing of it later. One that was sent though none should be, where most of a fleet
fails, says only that the engine serves: that closes it at once. Times are seconds of any clock that only goes forward.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]

_FADES_S = 30.0


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """`failures` in a row open it, or `unreached` where no connection could be made, or a share of `failing` of the last `window`
    requests (of at least half of them). It is open for `open_s`, twice as long each time until it has served `window` requests
    well enough, at most `most_open_s`."""

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
        self._failed_s = 0.0  # when the last of those did
        self._in_a_row = 0
        self._unreached = 0
        self._openings = 0  # in a row
        self._until_s: float | None = None
        self._trying = False
        self._visit = 0  # the visits that count now
        self._opened = 0  # the first visit since it last opened

    def state(self, now_s: float) -> BreakerState:
        """What it is at this time."""
        if self._until_s is None:
            return "closed"
        return "open" if now_s < self._until_s else "half_open"

    def admits(self, now_s: float) -> bool:
        """Whether a request may go there."""
        return self.state(now_s) != "open" and not self._trying

    def failing(self, now_s: float) -> float:
        """The share of the last requests that failed. It halves every 30 s without another failure: an engine that is asked
        little would else be avoided for what it was long ago."""
        share = self._share()
        return share * 0.5 ** (max(now_s - self._failed_s, 0.0) / _FADES_S) if share else 0.0

    def started(self, now_s: float) -> int:
        """A request goes there, which is the trial of a breaker that is half open. Its visit, for what becomes of it; of one that
        none asked for, below 0."""
        if self._until_s is None:
            return self._visit
        if not self.admits(now_s):
            return -self._visit
        self._trying = True
        self._visit += 1
        return self._visit

    def excused(self, visit: int) -> None:
        """The request ended, and that says nothing of the engine."""
        if visit == self._visit:
            self._trying = False

    def heard(self, visit: int) -> None:
        """The engine answers: that of a trial closes it, however long the answer is going to be."""
        if visit == self._visit and self._trying:
            self._close()

    def succeeded(self, visit: int) -> None:
        """The request was served."""
        self.heard(visit)
        aside = visit < 0 and -visit >= self._opened and self._until_s is not None
        if aside:
            self._close()
        if aside or visit == self._visit:
            self._in_a_row = self._unreached = 0
            self._last.append(False)
            if len(self._last) == self._rules.window:
                self._openings = 0

    def failed(self, visit: int, now_s: float, *, unreached: bool = False) -> None:
        """The request failed; `unreached`: no connection could be made."""
        if visit != self._visit:
            return
        self._last.append(True)
        self._failed_s = now_s
        self._in_a_row += 1
        self._unreached = self._unreached + 1 if unreached else 0
        if self._trying or self._too_many():
            self._open(now_s)

    def back(self, now_s: float) -> None:
        """The engine was away and is there again: if it is open, its time is over."""
        if self._until_s is not None:
            self._until_s = min(self._until_s, now_s)

    def _share(self) -> float:
        return sum(self._last) / len(self._last) if self._last else 0.0

    def _too_many(self) -> bool:
        rules = self._rules
        enough = len(self._last) * 2 >= rules.window
        return (
            self._in_a_row >= rules.failures or self._unreached >= rules.unreached or (enough and self._share() >= rules.failing)
        )

    def _close(self) -> None:
        self._trying = False
        self._until_s = None
        self._last.clear()

    def _open(self, now_s: float) -> None:
        self._until_s = now_s + min(self._rules.open_s * 2.0**self._openings, self._rules.most_open_s)
        self._openings = min(self._openings + 1, 32)
        self._in_a_row = self._unreached = 0
        self._trying = False
        self._visit += 1
        self._opened = self._visit
