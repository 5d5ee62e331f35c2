"""How quickly a queue moves, and so how long one that comes now would wait."""

_NEWEST_SHARE = 0.2  # of the last gap in the mean of gaps
_ENOUGH = 8  # departures before a prediction is made
LEAST_WAIT_S, MOST_WAIT_S = 1.0, 30.0


class Pace:
    """The mean time between two that leave a queue for an engine, while anyone waits. Times are seconds."""

    def __init__(self) -> None:
        self._gap_s: float | None = None
        self._since_s: float | None = None  # when the last left, or the first came; None while nobody waits
        self._left = 0  # since anyone waited

    def waits(self, now_s: float) -> None:
        """Somebody waits."""
        if self._since_s is None:
            self._since_s = now_s
            self._left = 0

    def left(self, now_s: float, *, waiting: bool) -> None:
        """One left for an engine; `waiting`: others still wait."""
        self._gap_s = self._gap(now_s)
        self._left += 1
        self._since_s = now_s if waiting else None

    def empty(self) -> None:
        """Nobody waits any more."""
        self._since_s = None

    def wait_s(self, ahead: int, now_s: float) -> float:
        """When one with so many before it may have its turn, between 1 and 30 s: a time to come back at."""
        return min(max((ahead + 1) * self._now(now_s), LEAST_WAIT_S), MOST_WAIT_S)

    def predicted_s(self, ahead: float, now_s: float) -> float | None:
        """The same without bounds, to refuse by; None where nobody waits, or fewer than 8 have left since somebody does."""
        if self._since_s is None or self._left < _ENOUGH:
            return None
        return (ahead + 1) * self._now(now_s)

    def _now(self, now_s: float) -> float:
        gap_s = self._gap_s or 0.0
        if self._since_s is not None and now_s - self._since_s > gap_s:  # nobody left for longer than usual
            gap_s = self._gap(now_s)
        return gap_s

    def _gap(self, now_s: float) -> float:
        if self._since_s is None:
            return self._gap_s or 0.0
        gap_s = now_s - self._since_s
        return gap_s if self._gap_s is None else self._gap_s + (gap_s - self._gap_s) * _NEWEST_SHARE
