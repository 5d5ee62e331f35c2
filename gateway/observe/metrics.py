"""Prometheus metrics as one observer of the events.

Invariant: label values come from the settings, the engines that serve, their versions or closed sets of our own words; everything
else is `other`. So the number of series depends on the settings and the fleet alone, whatever clients and models send; of engines
that have left only a few are shown, for some minutes. In-flight counts are the fold that the fleet uses too.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from gateway.events import (
    NO_ENGINE,
    NO_MODEL,
    AttemptFailed,
    AttemptStarted,
    CacheTold,
    Event,
    Finished,
    NotRetried,
    Outcome,
    Prefilled,
)
from gateway.observe.series import Counter, Histogram, Labels, Names, gauge
from gateway.observe.truth import RoutingTruth
from gateway.prompt.profile import CheckName
from gateway.request import FailureKind
from gateway.routing.inflight import InFlight
from gateway.routing.retry import Stopped

NO_FORMAT = "none"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# vLLM's bounds, so that our panels and the engines' overlay; ITL has 1, 2 and 5 ms besides.
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_ITL_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_DURATION_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STARTED_SERIES = 1000  # a metric with more combinations than this makes its series when they are first used
_VERSION_CHARS = 64
_MOST_GONE = 16  # engines that have left whose series are kept, for the scrapes of their last counts
_GONE_S = 300.0  # for how long
_GONE_AT_ONCE = 64  # so many are forgotten together, since that looks at every series
_ENGINE_FAILURES = ("unreachable", "refused", "broke", "headers", "first_token", "between_tokens")

Written = tuple[str, bytes]
"""The content type and body of a scrape."""

_PAIR = ("model", "engine")
_FORMAT = (*_PAIR, "format")


@dataclass(frozen=True, slots=True)
class Served:
    """One model of the settings: its name, the ids of the engines that it has from the start, whose counts are shown from then
    on, the names of its formats (with tools it may be another), and whether its prompts are rendered here."""

    model: str
    engines: tuple[str, ...]
    formats: tuple[str, ...]
    rendered: bool = True


class Metrics:
    """An observer, and the collector of what it counted. `inflight` is another observer, whose counts are shown too. `mismatched`
    says of an engine whether it is out of service for another tokenizer than its model's; `checks` which of a model's tests
    passed, where they were run; `more` gives what is known elsewhere; `clock_s` are monotonic seconds. `truth`: how right the
    router was of each engine."""

    def __init__(
        self,
        served: Sequence[Served],
        dialects: Sequence[str],
        inflight: InFlight,
        mismatched: Callable[[str], bool],
        checks: Mapping[str, Mapping[CheckName, bool]],
        *,
        more: Callable[[], Iterable[Metric]] = tuple,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = Names([NO_MODEL, *(model.model for model in served)])
        self._engine = Names([NO_ENGINE])
        self._format = Names([NO_FORMAT, *(name for model in served for name in model.formats)])
        self._dialect = Names(["none", *dialects])
        self._reason = Names([], room=64)
        self._attempt_reason = Names(_ENGINE_FAILURES, room=64)
        self._stopped = Names(get_args(Stopped))
        self._clock_s = clock_s
        self._inflight = inflight
        self._mismatched = mismatched
        self._more = more
        self._checks = {(model, test): float(passed) for model, tests in checks.items() for test, passed in tests.items()}
        self._dialects = tuple(dialects)
        self._served = {model.model: model for model in served}
        self._pairs: dict[tuple[str, str], None] = {}
        self._unstarted: set[tuple[str, str]] = set()
        self._gone: dict[tuple[str, str], float] = {}  # since when, in this order
        self._info: dict[tuple[str, str], tuple[str, str]] = {}
        self.truth = RoutingTruth()
        self._series: list[Counter | Histogram] = []
        self._make()
        self._series += self.truth.series
        for model in served:
            self._start_model(model.model)
            for engine in model.engines:
                self.joined(model.model, engine)
                self._start(model.model, engine)

    def __call__(self, event: Event) -> None:
        """Counts one event."""
        match event:
            case Finished():
                self._finished(event)
            case AttemptStarted():
                self._attempted(event)
            case AttemptFailed():
                reason = self._attempt_reason(event.reason)
                self._attempt_failures.add((self._model(event.model), self._engine(event.engine), reason))
            case Prefilled():
                self.truth.prefilled((self._model(event.model), self._engine(event.engine)), event)
            case CacheTold():
                self.truth.told((self._model(event.model), self._engine(event.engine)), event)
            case NotRetried():
                self._refused.add((self._model(event.model), self._stopped(event.why)))
            case _:
                pass

    def joined(self, model: str, engine: str) -> None:
        """This engine serves this model from now on. Its counts are shown once it can be given requests."""
        self._engine.learn(engine)
        self._gone.pop((model, engine), None)
        if (model, engine) not in self._pairs:
            self._unstarted.add((model, engine))
        self._pairs[model, engine] = None

    def left(self, model: str, engine: str) -> None:
        """It does no longer. Its counts are shown for some minutes, and while few have left since."""
        pair = (model, engine)
        self._pairs.pop(pair, None)
        self._info.pop((engine, model), None)
        self._unstarted.discard(pair)
        self._gone.pop(pair, None)
        self._gone[pair] = self._clock_s()
        if len(self._gone) >= _MOST_GONE + _GONE_AT_ONCE:
            self._forget()

    def _forget(self) -> None:
        """Those that left too long ago, or before too many others."""
        old = [pair for pair, since_s in self._gone.items() if since_s <= self._clock_s() - _GONE_S]
        pairs = {*old, *list(self._gone)[: max(0, len(self._gone) - _MOST_GONE)]}
        if not pairs:
            return
        for pair in pairs:
            del self._gone[pair]
        engines = {engine for _, engine in pairs} - {engine for _, engine in (*self._pairs, *self._gone)}
        for engine in engines:
            self._engine.forget(engine)

        def gone(labels: Labels) -> bool:
            return (labels[0], labels[1]) in pairs or labels[1] in engines

        for series in self._series:
            if series.labels[:2] == _PAIR:
                series.drop(gone)
        self.truth.drop(gone)

    def engine_info(self, engine: str, kind: str, version: str | None, model: str) -> None:
        """What the probe learned of an engine that is there. A later word on the same engine and model replaces the earlier."""
        if (model, engine) not in self._pairs:
            return
        self._start(model, engine)
        text = "".join(c for c in (version or "unknown")[:_VERSION_CHARS] if c.isprintable())
        self._info[engine, model] = (kind, text)

    def expose(self, accept: str = "") -> Written:
        """A scrape: OpenMetrics where the scraper takes it, else the text format."""
        return self.copied()(accept)

    def copied(self) -> Callable[[str], Written]:
        """The numbers of now, to be written for what a scraper accepts. That takes 10 us a series, in any thread."""
        self._forget()
        families = [series.copied() for series in self._series]
        return partial(_written, families, list(self._gauges()))

    def _gauges(self) -> Iterator[Metric]:
        running: dict[Labels, float] = dict.fromkeys(self._pairs, 0)
        for (model, engine), count in self._inflight.counts.copy().items():
            pair = (self._model(model), self._engine(engine))
            running[pair] = running.get(pair, 0) + count
        yield gauge("interlock_inflight_requests", "Attempts that run on the engine now.", _PAIR, running.items())
        info = [((engine, kind, version, model), 1.0) for (engine, model), (kind, version) in self._info.items()]
        yield gauge("interlock_engine_info", "What serves the model.", ("engine", "kind", "version", "model"), info)
        passed = self._checks.items()
        yield gauge("interlock_model_check", "1: the model passed this test of `interlock check`.", ("model", "test"), passed)
        compared = [pair for pair in self._pairs if self._served[pair[0]].rendered]
        wrong = [((model, engine), float(self._mismatched(engine))) for model, engine in compared]
        yield gauge("interlock_engine_tokenizer_mismatch", "1: out of service, its tokenizer is not the model's.", _PAIR, wrong)
        yield self.truth.alarms()
        yield from self._more()

    def _make(self) -> None:
        counter, histogram = self._counter, self._histogram
        self._requests = counter("requests_total", "Requests that ended, by outcome.", (*_PAIR, "dialect", "outcome"))
        self._failures = counter(
            "request_failures_total", "Requests that did not end ok, by reason.", ("model", "outcome", "reason")
        )
        self._prompt = counter("prompt_tokens_total", "Prompt tokens, cached ones included.", _PAIR)
        self._completion = counter("completion_tokens_total", "Tokens of the answers given, reasoning included.", _PAIR)
        self._cached = counter("cached_prompt_tokens_total", "Prompt tokens that the engine had in its cache.", _PAIR)
        self._calls = counter("tool_calls_total", "Whole tool calls in the models' answers.", _FORMAT)
        self._with_tools = counter("requests_with_tools_total", "Requests that ended and offered tools.", _FORMAT)
        self._parse = counter("parse_failures_total", "Faults in the models' output, by kind.", (*_FORMAT, "kind"))
        self._ended_thoughts = counter(
            "reasoning_budget_reached_total", "Thoughts that the gateway ended, as they had all the tokens allowed.", _PAIR
        )
        self._attempts = counter("attempts_total", "Times that an engine was asked for an answer.", _PAIR)
        self._attempt_failures = counter(
            "attempt_failures_total",
            "Attempts that ended without an answer, by reason, also where another served.",
            (*_PAIR, "reason"),
        )
        self._retries = counter("retries_total", "Attempts that followed a failure.", ("model",))
        self._resumes = counter("resumes_total", "Retries that went on with a broken answer.", ("model",))
        self._refused = counter(
            "retries_refused_total", "Failures that no attempt followed, by what forbade it.", ("model", "reason")
        )
        self._queue = histogram("queue_seconds", "Time of one request waiting for a ready engine.", _TTFT_S)
        self._ttft = histogram("time_to_first_token_seconds", "From the body's last byte to the first delta sent.", _TTFT_S)
        self._itl = histogram("inter_token_latency_seconds", "Between the engine's chunks, for each token.", _ITL_S)
        self._duration = histogram("request_duration_seconds", "From the body's last byte to the end of the answer.", _DURATION_S)
        self._stall = histogram("client_stall_seconds", "Time of one request blocked on a client that did not read.", _TTFT_S)

    def _counter(self, name: str, text: str, labels: Labels) -> Counter:
        made = Counter(f"interlock_{name}", text, labels)
        self._series.append(made)
        return made

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> Histogram:
        made = Histogram(f"interlock_{name}", text, _PAIR, bounds)
        self._series.append(made)
        return made

    def _start_model(self, model: str) -> None:
        self._retries.start([(model,)])
        self._resumes.start([(model,)])
        self._refused.start((model, why) for why in get_args(Stopped))

    def _start(self, model: str, engine: str) -> None:
        """Makes the counters of an engine that has none yet. A histogram begins with what is first observed, as it is many
        series: an engine that was never asked has none."""
        pair = (model, engine)
        if pair not in self._unstarted:
            return
        self._unstarted.discard(pair)
        places = [(*pair, name) for name in self._served[model].formats]
        for counter in (self._prompt, self._completion, self._cached, self._ended_thoughts, self._attempts):
            counter.start([pair])
        self._calls.start(places)
        self._with_tools.start(places)
        more: list[tuple[Counter, list[Labels]]] = [
            (self._requests, [(*pair, *end) for end in product(self._dialects, get_args(Outcome))]),
            (self._attempt_failures, [(*pair, reason) for reason in _ENGINE_FAILURES]),
            (self._parse, [(*place, kind) for place in places for kind in get_args(FailureKind)]),
            *self.truth.starts(pair),
        ]
        for counter, starts in more:
            if len(counter) + len(starts) <= _STARTED_SERIES:
                counter.start(starts)

    def _attempted(self, event: AttemptStarted) -> None:
        self._start(event.model, event.engine)
        pair = model, _ = self._model(event.model), self._engine(event.engine)
        self._attempts.add(pair)
        self.truth.decided(pair, event.why)
        if event.retry:
            self._retries.add((model,))
            self._resumes.add((model,), event.why == "resume")

    def _finished(self, event: Finished) -> None:
        pair = model, engine = self._model(event.model), self._engine(event.engine)
        place = (*pair, self._format(event.format))
        self._requests.add((*pair, self._dialect(event.dialect), event.outcome))
        if event.outcome != "ok":
            self._failures.add((model, event.outcome, self._reason(event.reason or "unknown")))
        self._duration.add(pair, event.duration_s)
        self._queue.add(pair, event.queue_s)
        if event.with_tools:
            self._with_tools.add(place)
        for kind, count in event.failures:
            self._parse.add((*place, kind), count)
        if engine == NO_ENGINE:
            return
        if event.ttft_s is not None:
            self._ttft.add(pair, event.ttft_s)
        self._itl.add_all(pair, event.inter_token_s)
        self._stall.add(pair, event.client_stall_s)
        self._prompt.add(pair, event.usage.prompt_tokens)
        self._completion.add(pair, event.usage.completion_tokens)
        self._cached.add(pair, event.usage.cached_tokens)
        self._calls.add(place, event.tool_calls)
        self._ended_thoughts.add(pair, event.ended_thoughts)


class _Copy:
    """What one scrape reads, as prometheus_client wants it."""

    def __init__(self, families: Iterable[Callable[[], Metric]], gauges: Iterable[Metric]) -> None:
        self._families = families
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        yield from (made() for made in self._families)
        yield from self._gauges


def _written(families: Iterable[Callable[[], Metric]], gauges: Iterable[Metric], accept: str) -> Written:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Copy(families, gauges))
    if "application/openmetrics-text" in accept:
        return OPENMETRICS_TYPE, openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]  # not typed
    return TEXT_TYPE, generate_latest(registry)
