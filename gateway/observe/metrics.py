"""Prometheus metrics as one observer of the events.

Invariant: label values come from the settings, the engines that serve, their versions or closed sets of our own words; everything
else is `other`. So the number of series depends on the settings and the fleet alone, whatever clients and models send; of engines
that have left only a few are shown, for some minutes.
"""

import importlib
import pkgutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from gateway.events import NO_ENGINE, NO_MODEL, Event
from gateway.observe import groups
from gateway.observe.group import Group, Known, Pair, Take
from gateway.observe.series import PAIR, Gauge, Labels

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_STARTED_SERIES = 1000  # a metric with more combinations than this makes its series when they are first used
_FEW = 4  # but an engine has so many from the start
_VERSION_CHARS = 64
_MOST_GONE = 16  # engines that have left whose series are kept, for the scrapes of their last counts
_GONE_S = 300.0  # for how long
_GONE_AT_ONCE = 64  # so many are forgotten together, since that looks at every series

Written = tuple[str, bytes]
"""The content type and body of a scrape."""


def groups_of(known: Known) -> list[Group]:
    """Those that are folds over the events: what each module of `gateway.observe.groups` makes."""
    found = sorted(module.name for module in pkgutil.iter_modules(groups.__path__, f"{groups.__name__}."))
    return [importlib.import_module(name).GROUP(known) for name in found]


class Metrics:
    """An observer, and the collector of what it counted. `more` are the groups of what is known elsewhere; `clock_s` are
    monotonic seconds."""

    def __init__(self, known: Known, more: Iterable[Group] = (), *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._known = known
        self._clock_s = clock_s
        self._unstarted: set[Pair] = set()
        self._gone: dict[Pair, float] = {}  # since when, in this order
        self._info: dict[Pair, tuple[str, str]] = {}
        self.groups: Sequence[Group] = (*groups_of(known), self._engines(), *more)
        self._families = [family for group in self.groups for family in group.families]
        self._takes: dict[type[Event], list[Take]] = {}
        for group in self.groups:
            for kind, take in group.takes.items():
                self._takes.setdefault(kind, []).append(take)
        self.hears = tuple(self._takes)
        for model in known.served.values():
            for group in self.groups:
                for counter, places in group.starts_with(model):
                    counter.start(places)
            for engine in model.engines:
                self.joined(model.model, engine)
                self._start((model.model, engine))

    def __call__(self, event: Event) -> None:
        """Counts one event."""
        takes = self._takes.get(type(event))
        if takes is None:
            return
        model, engine = getattr(event, "model", NO_MODEL), getattr(event, "engine", NO_ENGINE)
        if (model, engine) in self._unstarted:
            self._start((model, engine))
        pair = self._known.pair(model, engine)
        for take in takes:
            take(pair, event)

    def joined(self, model: str, engine: str) -> None:
        """This engine serves this model from now on. Its counts are shown once it can be given requests."""
        self._known.engine.learn(engine)
        self._gone.pop((model, engine), None)
        if (model, engine) not in self._known.pairs:
            self._unstarted.add((model, engine))
        self._known.pairs[model, engine] = None

    def left(self, model: str, engine: str) -> None:
        """It does no longer. Its counts are shown for some minutes, and while few have left since."""
        pair = (model, engine)
        self._known.pairs.pop(pair, None)
        self._info.pop(pair, None)
        self._unstarted.discard(pair)
        self._gone.pop(pair, None)
        self._gone[pair] = self._clock_s()
        if len(self._gone) >= _MOST_GONE + _GONE_AT_ONCE:
            self._forget()

    def engine_info(self, engine: str, kind: str, version: str | None, model: str) -> None:
        """What the probe learned of an engine that is there. A later word on the same engine and model replaces the earlier."""
        if (model, engine) not in self._known.pairs:
            return
        self._start((model, engine))
        text = "".join(c for c in (version or "unknown")[:_VERSION_CHARS] if c.isprintable())
        self._info[model, engine] = (kind, text)

    def copied(self) -> Callable[[str], Written]:
        """The numbers of now, to be written for what a scraper accepts: OpenMetrics where it takes that, else the text format.
        That takes 10 us a series, in any thread."""
        self._forget()
        return partial(_written, [family.copied() for family in self._families])

    def moment(self, names: Collection[str]) -> Callable[[], Iterator[Metric]]:
        """The numbers of now under these names, of which any thread may make the metrics."""
        self._forget()
        return _Copy([family.copied() for family in self._families if family.name in names]).collect

    def _engines(self) -> Group:
        info = Gauge(
            "interlock_engine_info",
            "1. What serves the model, and its version.",
            ("engine", "kind", "version", "model"),
            lambda: [((engine, kind, version, model), 1.0) for (model, engine), (kind, version) in self._info.items()],
        )
        return Group("What the engines are", [info])

    def _start(self, pair: Pair) -> None:
        """Makes the counters of an engine that has none yet."""
        if pair not in self._unstarted:
            return
        self._unstarted.discard(pair)
        model, engine = pair
        for group in self.groups:
            for counter, places in group.starts(self._known.served[model], engine):
                if len(places) <= _FEW or len(counter) + len(places) <= _STARTED_SERIES:
                    counter.start(places)

    def _forget(self) -> None:
        """Those that left too long ago, or before too many others."""
        old = [pair for pair, since_s in self._gone.items() if since_s <= self._clock_s() - _GONE_S]
        pairs = {*old, *list(self._gone)[: max(0, len(self._gone) - _MOST_GONE)]}
        if not pairs:
            return
        for pair in pairs:
            del self._gone[pair]
        engines = {engine for _, engine in pairs} - {engine for _, engine in (*self._known.pairs, *self._gone)}
        for engine in engines:
            self._known.engine.forget(engine)

        def gone(labels: Labels) -> bool:
            return (labels[0], labels[1]) in pairs or labels[1] in engines

        for family in self._families:
            if family.labels[:2] == PAIR:
                family.drop(gone)
        for group in self.groups:
            group.forget(gone)


class _Copy:
    """What one scrape reads, as prometheus_client wants it."""

    def __init__(self, families: Iterable[Callable[[], Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        return (made() for made in self._families)


def _written(families: Iterable[Callable[[], Metric]], accept: str) -> Written:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Copy(families))
    if "application/openmetrics-text" in accept:
        return OPENMETRICS_TYPE, openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # not typed
    return TEXT_TYPE, generate_latest(registry)
