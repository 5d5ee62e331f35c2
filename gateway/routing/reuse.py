"""How likely something is asked for again, by how long ago it was used: learned from the gaps between two uses of a prefix."""

from itertools import accumulate
from math import frexp, isinf

_BINS = 24  # doubling, from 1/16 s on
_DECAY = 0.9995


class ReuseGaps:
    """A histogram of gaps that forgets. It begins with one of each: nothing is known."""

    def __init__(self) -> None:
        self._bins = [1.0] * _BINS
        self._later = self._shares()

    def seen(self, gap_s: float) -> None:
        """A prefix was used again after so long."""
        bins = self._bins = [each * _DECAY for each in self._bins]
        bins[_bin(gap_s)] += 1.0
        self._later = self._shares()

    def chance_after(self, age_s: float) -> float:
        """Of what was used again at all, the share that was after so long or longer; 0 where none was used."""
        return 0.0 if isinf(age_s) else self._later[_bin(age_s)]

    def _shares(self) -> list[float]:
        """Of each bin, the share of what is in it and in later ones."""
        later = list(accumulate(reversed(self._bins)))
        return [each / later[-1] for each in reversed(later)]


def _bin(gap_s: float) -> int:
    return min(_BINS - 1, max(0, frexp(gap_s + 1e-3)[1] + 3))
