"""What is wrong, of all that is shown: the worst first, and in words that say which model and engine. PURE."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from gateway.routing.retry import EXCUSED
from gateway.top.rows import OWED, EngineRow, EngineState, FailureRow, ModelRow, ParseFailureRow, Totals
from gateway.top.window import Window

_MOST = 100
_MANY_FAIL = 0.05  # of a model's requests: more is critical
_LATE_S = 0.25  # the loop's lateness that clients begin to feel
_NEAR = 0.8  # of a limit, 1 being the limit
_NO_TRAFFIC: Mapping[EngineState, str] = {
    "down": "down",
    "other tokenizer": "out of service: its tokenizer is not the model's",
    "breaker open": "gets no requests: its last ones failed",
}
_NAMING: Mapping[str, str] = {  # by where engines are named
    "settings": "the settings file is wrong or cannot be read",
    "engines_file": "a file of engines is wrong or cannot be read",
    "dns": "a name of engines cannot be resolved",
}

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is wrong, in words: `critical` where requests fail or may fail by it. `model` and `engine` are None where it
    is of all."""

    severity: Severity
    model: str | None
    engine: str | None
    what: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is to judge."""

    window: Window
    gateway: Totals
    models: tuple[ModelRow, ...]
    engines: tuple[EngineRow, ...]
    failures: tuple[FailureRow, ...]
    parse_failures: tuple[ParseFailureRow, ...]


def troubles(facts: Facts) -> tuple[Trouble, ...]:
    """At most a hundred."""
    found = [*_of_gateway(facts)]
    for model in facts.models:
        found += _of_model(model, facts)
    for engine in facts.engines:
        found += _of_engine(engine, facts)
    return tuple(islice(sorted(found, key=lambda each: each.severity), _MOST))  # `critical` comes before `warning`


def _of_gateway(facts: Facts) -> Iterator[Trouble]:
    gateway, window = facts.gateway, facts.window
    for value, what in (
        (gateway.fill, "the queue is {} full"),
        (gateway.pressure, "at {} of the limits of requests or lateness"),
    ):
        if value is not None and value >= _NEAR:
            yield Trouble("critical" if value >= 1 else "warning", None, None, what.format(f"{value:.0%}"))
    if gateway.loop_lag_s is not None and gateway.loop_lag_s >= _LATE_S:
        yield Trouble("warning", None, None, f"the event loop was {gateway.loop_lag_s:.2g} s late")
    for (origin,), failed in window.gauge("interlock_config_reload_failed", "origin").items():
        if failed:
            yield Trouble("warning", None, None, f"{_NAMING.get(origin, origin)}; what it said before stays")
    dropped = window.increases("interlock_capture_dropped_total") or {}
    if lost := dropped.get(()):
        yield Trouble("warning", None, None, f"{lost:.0f} records of the capture were dropped")


def _of_model(row: ModelRow, facts: Facts) -> Iterator[Trouble]:
    if row.checks_failed:
        yield Trouble("critical", row.model, None, f"not served: its check failed ({', '.join(row.checks_failed)})")
    if row.engines_up == 0:
        yield Trouble("critical", row.model, None, "no engine can serve it")
    if row.failed and row.failed_share is not None:
        reasons = [each for each in facts.failures if each.model == row.model and each.outcome in OWED]
        words = _counted((f"{each.outcome} {each.reason}", each.recent) for each in reasons)
        severity: Severity = "critical" if row.failed_share >= _MANY_FAIL else "warning"
        yield Trouble(severity, row.model, None, f"{_percent(row.failed_share)} of its requests fail{words}")
    if row.parse_failures:
        words = _counted((each.kind, each.recent) for each in facts.parse_failures if each.model == row.model)
        yield Trouble("warning", row.model, None, f"faults in its output{words}")


def _of_engine(row: EngineRow, facts: Facts) -> Iterator[Trouble]:
    where = row.model, row.engine
    if what := _NO_TRAFFIC.get(row.state):
        yield Trouble("critical", *where, what)
    elif row.state == "trying":
        yield Trouble("warning", *where, "failed of late: one request tries it")
    if row.failed:
        share = f"{_percent(row.failed_share)} of its attempts fail" if row.failed_share is not None else "attempts fail on it"
        reasons = facts.window.increases("interlock_attempt_failures_total", "model", "engine", "reason") or {}
        words = _counted(
            (reason, count) for (*pair, reason), count in reasons.items() if tuple(pair) == where and reason not in EXCUSED
        )
        yield Trouble("warning", *where, f"{share}{words}")
    began = facts.window.increases("interlock_engine_restarts_total", "model", "engine") or {}
    if began.get(where):
        yield Trouble("warning", *where, "was started again")
    if row.drifts:
        yield Trouble("warning", *where, "its cache is not as the router believes")


def _counted(pairs: Iterable[tuple[str, float | None]]) -> str:
    """The most frequent of these words, with how often each was of late."""
    counts: dict[str, float] = {}
    for word, count in pairs:
        counts[word] = counts.get(word, 0.0) + (count or 0.0)
    most = sorted((word for word in counts if counts[word]), key=lambda word: -counts[word])[:3]
    return f": {', '.join(f'{word} ×{counts[word]:.0f}' for word in most)}" if most else ""


def _percent(share: float) -> str:
    """Of something that happened: never `0 %`."""
    return f"{share:.0%}" if share >= 0.005 else "under 1%"
