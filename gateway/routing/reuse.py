"""How likely something is asked for again, by how long ago it was used: learned from the gaps between two uses of a prefix."""

from itertools import accumulate
from math import frexp, isinf

_BINS = 24  # doubling, from 1/16 s on
_DECAY = 0.9995
_MOST_WEIGHT = 1e100


class ReuseGaps:
    """A histogram of gaps that forgets. It begins with one of each: nothing is known.

    Nothing fades: what comes counts more than what came before. The shares are made when one is asked for, which is seldom.
    """

    def __init__(self) -> None:
        self._bins = [1.0] * _BINS
        self._weight = 1.0
        self._later: list[float] | None = None

    def seen(self, gap_s: float) -> None:
        """A prefix was used again after so long."""
        self._weight /= _DECAY
        self._bins[_bin(gap_s)] += self._weight
        self._later = None
        if self._weight > _MOST_WEIGHT:
            self._bins = [each / self._weight for each in self._bins]
            self._weight = 1.0

    def chance_after(self, age_s: float) -> float:
        """Of what was used again at all, the share that was after so long or longer; 0 where none was used."""
        if isinf(age_s):
            return 0.0
        if self._later is None:
            self._later = self._shares()
        return self._later[_bin(age_s)]

    def _shares(self) -> list[float]:
        """Of each bin, the share of what is in it and in later ones."""
        later = list(accumulate(reversed(self._bins)))
        return [each / later[-1] for each in reversed(later)]


def _bin(gap_s: float) -> int:
    return min(_BINS - 1, max(0, frexp(gap_s + 1e-3)[1] + 3))
