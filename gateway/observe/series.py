"""Counters, gauges and histograms as plain numbers under label values, read at a scrape.

prometheus_client's own instruments take a lock and a call for each observation and cannot add one value many times; these are a
dictionary each, which a worker can also hand to its supervisor. They belong to one thread; another is handed a copy.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

Labels = tuple[str, ...]
Kind = Literal["counter", "gauge", "histogram"]
PAIR: Labels = ("model", "engine")


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

    kind: Kind = "counter"

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

    def copied(self) -> Callable[[], Metric]:
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
    exemplars: dict[int, Exemplar] = field(default_factory=dict)


class Histogram:
    """How often values fell at or below each bound, for each combination of label values. The last value of each bucket that is
    of a recorded trace is kept with the trace's id: what a slow one was can be looked up."""

    kind: Kind = "histogram"

    def __init__(self, name: str, text: str, labels: Labels, bounds: Sequence[float]) -> None:
        self.name, self.text, self.labels = name, text, labels
        self.bounds = tuple(bounds)
        self._shown = (*(str(float(bound)) for bound in bounds), "+Inf")
        self._values: dict[Labels, _Buckets] = {}

    def add(self, labels: Labels, value: float, trace_id: str | None = None) -> None:
        """Observes one value. `trace_id`: of a trace that is recorded."""
        self.add_all(labels, ((value, 1),), trace_id)

    def add_all(self, labels: Labels, pairs: Sequence[tuple[float, int]], trace_id: str | None = None) -> None:
        """Observes each value as many times as it says. The trace is that of the largest."""
        buckets = self._values.get(labels)
        if buckets is None:
            buckets = self._values[labels] = _Buckets([0] * len(self._shown))
        counts, bounds, total = buckets.counts, self.bounds, 0.0
        for value, times in pairs:
            counts[bisect_left(bounds, value)] += times
            total += value * times
        buckets.total += total
        if trace_id is not None and pairs:
            largest, _ = max(pairs)
            buckets.exemplars[bisect_left(bounds, largest)] = Exemplar({"trace_id": trace_id}, largest, time.time())

    def drop(self, gone: Callable[[Labels], bool]) -> None:
        """As for counters."""
        self._values = {labels: buckets for labels, buckets in self._values.items() if not gone(labels)}

    def copied(self) -> Callable[[], Metric]:
        """As for counters."""
        values = [
            (labels, buckets.counts.copy(), buckets.total, buckets.exemplars.copy()) for labels, buckets in self._values.items()
        ]

        def family() -> HistogramMetricFamily:
            made = HistogramMetricFamily(self.name, self.text, labels=self.labels)
            for labels, counts, total, exemplars in values:
                shown = zip(self._shown, map(float, accumulate(counts)), strict=True)
                buckets = [(*each, exemplars[at]) if at in exemplars else each for at, each in enumerate(shown)]
                made.add_metric(labels, buckets, total)
            return made

        return family


class Gauge:
    """Values that are known elsewhere, as a scrape reads them: `read` gives those that there are, each with its label values."""

    kind: Kind = "gauge"
    _Family: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily

    def __init__(self, name: str, text: str, labels: Labels, read: Callable[[], Iterable[tuple[Labels, float]]]) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._read = read

    def drop(self, gone: Callable[[Labels], bool]) -> None:
        """Nothing is kept here."""

    def copied(self) -> Callable[[], Metric]:
        """As for counters."""
        values = list(self._read())

        def family() -> Metric:
            made = self._Family(self.name, self.text, labels=self.labels)
            for labels, value in values:
                made.add_metric(labels, value)
            return made

        return family


class Total(Gauge):
    """A counter that is kept elsewhere."""

    kind: Kind = "counter"
    _Family = CounterMetricFamily


Family = Counter | Histogram | Gauge
"""All series of one name."""
