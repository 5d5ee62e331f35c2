"""The rows of what is shown, made of a window: the gateway, its models and engines, and what fails. PURE.

None: not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.routing.retry import EXCUSED
from gateway.top.window import Key, Window

OWED = ("upstream_error", "timeout", "rejected", "drained")
"""Outcomes that are no client's doing: requests that were owed an answer and got none."""

EngineState = Literal["up", "down", "breaker open", "trying", "other tokenizer", "unknown"]
SERVING: tuple[EngineState, ...] = ("up", "trying")
"""The states in which an engine gets requests."""

_TTFT = "interlock_time_to_first_token_seconds"
_PAIR = ("model", "engine")


@dataclass(frozen=True, slots=True)
class Totals:
    """The gateway as a whole. `fill` is that of its queue and `pressure` how close it is to its limits, 1 being full;
    `loop_lag_s` the largest lateness of its loop in the last seconds. The rest as in `ModelRow`."""

    version: str | None
    requests_per_s: float | None
    failed: float | None
    failed_share: float | None
    running: float | None
    waiting: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    output_tokens_per_s: float | None
    fill: float | None
    pressure: float | None
    loop_lag_s: float | None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model. `engines_up` counts its engines that get requests, `running` attempts, `waiting` requests in our queue.
    `failed` counts requests of the window that were owed an answer and got none, `failed_share` is that of all its requests.
    `cached_share` is of the prompt tokens, as the engines say; `parse_failures` are faults in the model's output."""

    model: str
    engines: int
    engines_up: int
    requests_per_s: float | None
    failed: float | None
    failed_share: float | None
    running: float | None
    waiting: float | None
    queue_wait_p95_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    inter_token_p50_s: float | None
    output_tokens_per_s: float | None
    cached_share: float | None
    parse_failures: float | None
    checks_failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine of a model. `running` counts this gateway's attempts on it; `engine_running` and `engine_waiting` are what it
    says itself, `kv_usage` how full its cache is (1: full). `failed` counts attempts of the window that speak against it, of
    `failed_share`.
    `restarts`: how often it was seen to have started again since the gateway did; `drifts`: its cache is not as believed."""

    model: str
    engine: str
    kind: str | None
    version: str | None
    state: EngineState
    running: float | None
    engine_running: float | None
    engine_waiting: float | None
    kv_usage: float | None
    requests_per_s: float | None
    failed: float | None
    failed_share: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    output_tokens_per_s: float | None
    cached_share: float | None
    restarts: float | None
    drifts: bool | None


@dataclass(frozen=True, slots=True)
class FailureRow:
    """Requests that did not end ok, by their reason: in the window, and since the gateway started."""

    model: str
    outcome: str
    reason: str
    recent: float | None
    total: float


@dataclass(frozen=True, slots=True)
class ParseFailureRow:
    """Faults in a model's output, by kind: in the window, and since the gateway started."""

    model: str
    engine: str
    format: str
    kind: str
    recent: float | None
    total: float


class _Rates:
    """What is common to the gateway, a model and an engine: `keys` tell them apart."""

    def __init__(self, window: Window, *keys: str) -> None:
        self.requests = window.rates("interlock_requests_total", *keys)
        self.output = window.rates("interlock_completion_tokens_total", *keys)
        self.p50 = window.quantiles(_TTFT, 0.5, *keys)
        self.p95 = window.quantiles(_TTFT, 0.95, *keys)
        self.running = window.gauge("interlock_inflight_requests", *keys)
        self._cached = window.increases("interlock_cached_prompt_tokens_total", *_PAIR) or {}
        self._prompt = window.increases("interlock_prompt_tokens_total", *_PAIR) or {}

    def cached_share(self, key: Key) -> float | None:
        """Of the prompt tokens of the engines that say what was cached; None where there were none."""
        telling = [pair for pair in self._cached if pair[: len(key)] == key]
        return _share(sum(self._cached[pair] for pair in telling), sum(self._prompt.get(pair, 0.0) for pair in telling))


def totals(window: Window) -> Totals:
    """The gateway."""
    rates = _Rates(window)
    failed = _at(window.increases("interlock_requests_total", outcome=OWED), ())
    versions = [version for (version,) in window.gauge("interlock_build_info", "version")]
    return Totals(
        version=versions[0] if versions else None,
        requests_per_s=_at(rates.requests, ()),
        failed=failed,
        failed_share=_share(failed, _at(window.increases("interlock_requests_total"), ())),
        running=rates.running.get(()),
        waiting=window.gauge("interlock_queue_depth").get(()),
        ttft_p50_s=_at(rates.p50, ()),
        ttft_p95_s=_at(rates.p95, ()),
        output_tokens_per_s=_at(rates.output, ()),
        fill=window.gauge("interlock_queue_fill").get(()),
        pressure=window.gauge("interlock_pressure").get(()),
        loop_lag_s=window.gauge("interlock_event_loop_lag_max_seconds").get(()),
    )


def models(window: Window, of_engines: Sequence[EngineRow]) -> list[ModelRow]:
    """Its models, by name."""
    rates = _Rates(window, "model")
    waiting = window.gauge("interlock_queue_depth", "model")
    counts = window.increases("interlock_requests_total", "model")
    owed = window.increases("interlock_requests_total", "model", outcome=OWED)
    waits = window.quantiles("interlock_queue_wait_seconds", 0.95, "model")
    gaps = window.quantiles("interlock_inter_token_latency_seconds", 0.5, "model")
    parse = window.increases("interlock_parse_failures_total", "model")
    checks = window.gauge("interlock_model_check", "model", "test")
    names = {row.model for row in of_engines} | {model for (model,) in waiting}
    rows = []
    for name in sorted(names):
        key = (name,)
        states = [row.state for row in of_engines if row.model == name]
        rows.append(
            ModelRow(
                model=name,
                engines=len(states),
                engines_up=sum(state in SERVING for state in states),
                requests_per_s=_at(rates.requests, key),
                failed=_at(owed, key),
                failed_share=_share(_at(owed, key), _at(counts, key)),
                running=rates.running.get(key),
                waiting=waiting.get(key),
                queue_wait_p95_s=_at(waits, key),
                ttft_p50_s=_at(rates.p50, key),
                ttft_p95_s=_at(rates.p95, key),
                inter_token_p50_s=_at(gaps, key),
                output_tokens_per_s=_at(rates.output, key),
                cached_share=rates.cached_share(key),
                parse_failures=_at(parse, key),
                checks_failed=tuple(sorted(test for (model, test), passed in checks.items() if model == name and not passed)),
            )
        )
    return rows


def engines(window: Window) -> list[EngineRow]:
    """Its engines, by model and id."""
    rates = _Rates(window, *_PAIR)
    gauges = {name: window.gauge(f"interlock_{name}", *_PAIR) for name in _OF_ENGINE}
    attempts = window.increases("interlock_attempts_total", *_PAIR)
    failed = _less(
        window.increases("interlock_attempt_failures_total", *_PAIR),
        window.increases("interlock_attempt_failures_total", *_PAIR, reason=EXCUSED),
    )
    restarts = dict(window.gauge("interlock_engine_restarts_total", *_PAIR))
    info: dict[Key, tuple[str, str]] = {
        (model, engine): (kind, version) for model, engine, kind, version in window.gauge("interlock_engine_info", *_PAIR, *_INFO)
    }
    rows = []
    for key in sorted(gauges["engine_up"]):
        kind, version = info.get(key) or (None, None)
        drifts = gauges["cache_prediction_drift"].get(key)
        rows.append(
            EngineRow(
                model=key[0],
                engine=key[1],
                kind=kind,
                version=version,
                state=_state(gauges, key),
                running=rates.running.get(key),
                engine_running=gauges["engine_requests_running"].get(key),
                engine_waiting=gauges["engine_requests_waiting"].get(key),
                kv_usage=gauges["engine_kv_cache_usage_ratio"].get(key),
                requests_per_s=_at(rates.requests, key),
                failed=_at(failed, key),
                failed_share=_share(_at(failed, key), _at(attempts, key)),
                ttft_p50_s=_at(rates.p50, key),
                ttft_p95_s=_at(rates.p95, key),
                output_tokens_per_s=_at(rates.output, key),
                cached_share=rates.cached_share(key),
                restarts=restarts.get(key),
                drifts=drifts > 0 if drifts is not None else None,
            )
        )
    return rows


_INFO = ("kind", "version")
_OF_ENGINE = (
    "engine_up",
    "engine_breaker_state",
    "engine_tokenizer_mismatch",
    "engine_requests_running",
    "engine_requests_waiting",
    "engine_kv_cache_usage_ratio",
    "cache_prediction_drift",
)
_BREAKERS: Mapping[float, EngineState] = {0.0: "up", 1.0: "breaker open", 2.0: "trying"}


def _state(gauges: Mapping[str, Mapping[Key, float]], key: Key) -> EngineState:
    if gauges["engine_tokenizer_mismatch"].get(key):
        return "other tokenizer"
    if not gauges["engine_up"][key]:
        return "down"
    return _BREAKERS.get(gauges["engine_breaker_state"].get(key, 0.0), "unknown")


def failures(window: Window) -> list[FailureRow]:
    """Those of late first, then those that are many."""
    labels = ("model", "outcome", "reason")
    recent = window.increases("interlock_request_failures_total", *labels)
    totals = window.gauge("interlock_request_failures_total", *labels)
    rows = [
        FailureRow(model, outcome, reason, _at(recent, (model, outcome, reason)), total)
        for (model, outcome, reason), total in totals.items()
        if total
    ]
    return sorted(rows, key=lambda row: (-(row.recent or 0), -row.total, row.model, row.outcome, row.reason))


def parse_failures(window: Window) -> list[ParseFailureRow]:
    """In the same order."""
    labels = (*_PAIR, "format", "kind")
    recent = window.increases("interlock_parse_failures_total", *labels)
    totals = window.gauge("interlock_parse_failures_total", *labels)
    rows = [
        ParseFailureRow(model, engine, form, kind, _at(recent, (model, engine, form, kind)), total)
        for (model, engine, form, kind), total in totals.items()
        if total
    ]
    return sorted(rows, key=lambda row: (-(row.recent or 0), -row.total, row.model, row.engine, row.format, row.kind))


def _at(values: Mapping[Key, float | None] | Mapping[Key, float] | None, key: Key) -> float | None:
    return values.get(key) if values is not None else None


def _less(all_: Mapping[Key, float] | None, some: Mapping[Key, float] | None) -> dict[Key, float] | None:
    return {key: value - (some or {}).get(key, 0.0) for key, value in all_.items()} if all_ is not None else None


def _share(part: float | None, whole: float | None) -> float | None:
    """None also where there was nothing that it could be a share of."""
    return min(part / whole, 1.0) if part is not None and whole else None
