"""Counters, gauges and histograms as plain numbers under label values, read at a scrape.

prometheus_client's own instruments take a lock and a call for each observation and cannot add one value many times; these are a
dictionary each, which a worker can also hand to its supervisor. They belong to one thread; another is handed a copy.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Labels = tuple[str, ...]


class Names:
    """The values that one label may take: those known from the settings, and at most `room` words of our own code.

    Anything else is `other`, so that no client and no model can make series.
    """

    def __init__(self, known: Iterable[str], room: int = 0) -> None:
        self._known = set(known)
        self._room = room

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        if not self._room:
            return "other"
        self._room -= 1
        self._known.add(value)
        return value

    def learn(self, value: str) -> None:
        """This value is known from now on."""
        self._known.add(value)

    def forget(self, value: str) -> None:
        """It is not any more."""
        self._known.discard(value)


class Counter:
    """A number for each combination of label values that only grows."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._values: dict[Labels, float] = {}

    def start(self, places: Iterable[Labels]) -> None:
        """Makes these series, at zero, so that `rate` sees their first increase."""
        for labels in places:
            self._values.setdefault(labels, 0)

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Adds. An engine may report a negative count: that adds nothing."""
        self._values[labels] = self._values.get(labels, 0) + max(amount, 0)

    def __len__(self) -> int:
        return len(self._values)

    def drop(self, gone: Callable[[Labels], bool]) -> None:
        """Forgets the series of these label values."""
        self._values = {labels: value for labels, value in self._values.items() if not gone(labels)}

    def copied(self) -> Callable[[], CounterMetricFamily]:
        """What a scrape reads: the numbers of now, of which any thread may make the metric."""
        values = list(self._values.items())

        def family() -> CounterMetricFamily:
            made = CounterMetricFamily(self.name, self.text, labels=self.labels)
            for labels, value in values:
                made.add_metric(labels, value)
            return made

        return family


@dataclass(slots=True)
class _Buckets:
    counts: list[int]
    total: float = 0.0


class Histogram:
    """How often values fell at or below each bound, for each combination of label values."""

    def __init__(self, name: str, text: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._bounds = tuple(bounds)
        self._shown = (*(str(float(bound)) for bound in bounds), "+Inf")
        self._values: dict[Labels, _Buckets] = {}

    def add(self, labels: Labels, value: float) -> None:
        """Observes one value."""
        self.add_all(labels, ((value, 1),))

    def add_all(self, labels: Labels, pairs: Iterable[tuple[float, int]]) -> None:
        """Observes each value as many times as it says."""
        buckets = self._buckets(labels)
        counts, bounds, total = buckets.counts, self._bounds, 0.0
        for value, times in pairs:
            counts[bisect_left(bounds, value)] += times
            total += value * times
        buckets.total += total

    def drop(self, gone: Callable[[Labels], bool]) -> None:
        """As for counters."""
        self._values = {labels: buckets for labels, buckets in self._values.items() if not gone(labels)}

    def copied(self) -> Callable[[], HistogramMetricFamily]:
        """As for counters."""
        values = [(labels, buckets.counts.copy(), buckets.total) for labels, buckets in self._values.items()]

        def family() -> HistogramMetricFamily:
            made = HistogramMetricFamily(self.name, self.text, labels=self.labels)
            for labels, counts, total in values:
                made.add_metric(labels, list(zip(self._shown, map(float, accumulate(counts)), strict=True)), total)
            return made

        return family

    def _buckets(self, labels: Labels) -> _Buckets:
        buckets = self._values.get(labels)
        if buckets is None:
            buckets = self._values[labels] = _Buckets([0] * len(self._shown))
        return buckets


def gauge(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
    """Values that are known elsewhere, as a scrape reads them."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for place, value in values:
        family.add_metric(place, value)
    return family
