"""What happened between two scrapes: increases, rates and quantiles. PURE.

Invariant: a number that is not known is None, never 0. A counter that went back says that the gateway was started again: what was
known before is dropped, so that no number is of two lives.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.top.scrape import Labels, Scrape

Key = tuple[str, ...]
_LEAST_S = 0.5  # between two scrapes: in less than that little happens
_KEPT = 256  # scrapes


@dataclass(frozen=True, slots=True)
class Window:
    """From `before` (None: there is none yet) to `now`. `restarted`: the gateway was started again a moment ago."""

    before: Scrape | None
    now: Scrape
    restarted: bool = False

    @property
    def seconds(self) -> float | None:
        """How long it is."""
        return self.now.at_s - self.before.at_s if self.before is not None else None

    def gauge(self, name: str, *keys: str) -> dict[Key, float]:
        """The values of now, added up where `keys` do not tell series apart."""
        return _added(self.now.of(name), keys)

    def increases(self, name: str, *keys: str, **only: Sequence[str]) -> dict[Key, float] | None:
        """How much a counter grew, added up by `keys`; `only` names the label values that count. A series that is new began at
        zero. None without a scrape before."""
        if self.before is None:
            return None
        before = self.before.of(name)
        grown = {
            labels: value - before.get(labels, 0.0)
            for labels, value in self.now.of(name).items()
            if all(dict(labels).get(label) in wanted for label, wanted in only.items())
        }
        return _added(grown, keys)

    def rates(self, name: str, *keys: str) -> dict[Key, float] | None:
        """The increases in a second."""
        grown, seconds = self.increases(name, *keys), self.seconds
        return {key: value / seconds for key, value in grown.items()} if grown is not None and seconds else None

    def quantiles(self, name: str, share: float, *keys: str) -> dict[Key, float | None] | None:
        """A quantile of a histogram of what was observed in the window, of all series that `keys` do not tell apart."""
        grown = self.increases(f"{name}_bucket", *keys, "le")
        if grown is None:
            return None
        buckets: dict[Key, list[tuple[float, float]]] = {}
        for (*key, text), count in grown.items():
            if not math.isnan(bound := _bound(text)):
                buckets.setdefault(tuple(key), []).append((bound, count))
        return {key: quantile(share, pairs) for key, pairs in buckets.items()}


class History:
    """The last scrapes, of at least `window_s` seconds where there are as many."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._kept: deque[Scrape] = deque()
        self._restarted_s = -math.inf

    def add(self, scrape: Scrape) -> Window:
        """The window that ends with this scrape. It begins `window_s` before it, or where what is known begins; not with a scrape
        that is older than twice that, as of one who looks again after an hour."""
        kept = self._kept
        if kept and _went_back(kept[-1], scrape):
            kept.clear()
            self._restarted_s = scrape.at_s
        begins_s = scrape.at_s - self._window_s
        while kept and (kept[0].at_s < begins_s - self._window_s or (len(kept) > 1 and kept[1].at_s <= begins_s)):
            kept.popleft()
        before = kept[0] if kept and scrape.at_s - kept[0].at_s >= _LEAST_S else None
        if not kept or scrape.at_s - kept[-1].at_s >= max(_LEAST_S, 2 * self._window_s / _KEPT):
            kept.append(scrape)
        return Window(before, scrape, self._restarted_s >= begins_s)


def quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float | None:
    """As Prometheus' `histogram_quantile`: `buckets` are upper bounds with how many fell at or below each. Within a bucket values
    are taken to lie evenly, and the lowest begins at 0; one in the last, which has no bound, counts as the highest bound. None
    where nothing was observed, or the bucket without a bound is missing."""
    ordered = sorted(buckets)
    if len(ordered) < 2 or not math.isinf(ordered[-1][0]):
        return None
    counts: list[float] = []
    for _, count in ordered:  # a scrape amid an observation may have a bucket that lacks what the one below has
        counts.append(max(count, counts[-1]) if counts else count)
    if not counts[-1] > 0:
        return None
    rank = share * counts[-1]
    at = next(index for index, count in enumerate(counts) if count >= rank)
    if at == len(ordered) - 1:
        return ordered[-2][0]
    upper, count = ordered[at][0], counts[at]
    if at == 0 and upper <= 0:
        return upper
    lower, below = (ordered[at - 1][0], counts[at - 1]) if at else (0.0, 0.0)
    return lower + (upper - lower) * (rank - below) / (count - below) if count > below else upper


def _added(samples: Mapping[Labels, float], keys: Sequence[str]) -> dict[Key, float]:
    sums: dict[Key, float] = {}
    for labels, value in samples.items():
        told = dict(labels)
        key = tuple(told.get(each, "") for each in keys)
        sums[key] = sums.get(key, 0.0) + value
    return sums


def _went_back(before: Scrape, now: Scrape) -> bool:
    return any(value < before.of(name).get(labels, 0.0) for name, labels, value in now.grows())


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
