"""A rate that was measured on few tries, with what it may truly be."""

from dataclasses import dataclass
from math import sqrt

_Z = 1.959963984540054  # of a normal distribution, 95 % lie within so many standard deviations


@dataclass(frozen=True, slots=True)
class Rate:
    """`hits` of `tries`. `low` and `high` are the interval of E. B. Wilson (1927): of such 95 % hold the true rate."""

    hits: int
    tries: int

    @property
    def value(self) -> float | None:
        """The rate itself; None without a try."""
        return self.hits / self.tries if self.tries else None

    @property
    def low(self) -> float:
        """The least that it may be."""
        return self._bound(-1)

    @property
    def high(self) -> float:
        """The most that it may be."""
        return self._bound(+1)

    def _bound(self, side: int) -> float:
        if not self.tries:
            return 0.0 if side < 0 else 1.0
        n, p = self.tries, self.hits / self.tries
        middle = p + _Z * _Z / (2 * n)
        spread = _Z * sqrt(p * (1 - p) / n + _Z * _Z / (4 * n * n))
        return min(max((middle + side * spread) / (1 + _Z * _Z / n), 0.0), 1.0)
