"""One scrape of `/metrics`, read into numbers. PURE.

Invariant: whatever the bytes, a `Scrape` of bounded size or `NotMetrics`, never another exception. Only what is shown is read; a
value that is no finite number counts as not told.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order of the names."""

MAX_BYTES = 1 << 24
_MAX_READ_BYTES = 1 << 22  # of the lines that are shown: reading one costs microseconds a character
_MAX_LINE_BYTES = 4096
_MAX_LABEL_CHARS = 256
_MAX_LABELS = 16  # of a line: reading them costs their number times the line

COUNTERS = (
    "interlock_requests_total",
    "interlock_request_failures_total",
    "interlock_attempts_total",
    "interlock_attempt_failures_total",
    "interlock_prompt_tokens_total",
    "interlock_completion_tokens_total",
    "interlock_cached_prompt_tokens_total",
    "interlock_parse_failures_total",
    "interlock_engine_restarts_total",
    "interlock_capture_dropped_total",
)
HISTOGRAMS = (
    "interlock_time_to_first_token_seconds",
    "interlock_inter_token_latency_seconds",
    "interlock_queue_wait_seconds",
)
GAUGES = (
    "interlock_build_info",
    "interlock_inflight_requests",
    "interlock_queue_depth",
    "interlock_queue_fill",
    "interlock_pressure",
    "interlock_event_loop_lag_max_seconds",
    "interlock_engine_info",
    "interlock_engine_up",
    "interlock_engine_breaker_state",
    "interlock_engine_tokenizer_mismatch",
    "interlock_engine_requests_running",
    "interlock_engine_requests_waiting",
    "interlock_engine_kv_cache_usage_ratio",
    "interlock_cache_prediction_drift",
    "interlock_model_check",
    "interlock_config_reload_failed",
)
FAMILIES = frozenset((*COUNTERS, *HISTOGRAMS, *GAUGES))
"""The names of the metrics that are read."""

_GROWING = frozenset((*COUNTERS, *(f"{name}{end}" for name in HISTOGRAMS for end in ("_bucket", "_count", "_sum"))))
_READ = _GROWING | frozenset(GAUGES)


class NotMetrics(Exception):
    """What came is not what a gateway's `/metrics` says."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one moment, by name and labels. `at_s` is of a clock that never goes back."""

    at_s: float
    samples: Mapping[str, Mapping[Labels, float]]

    def of(self, name: str) -> Mapping[Labels, float]:
        """All samples of one name; none where it was not told."""
        return self.samples.get(name, {})

    def grows(self) -> Iterator[tuple[str, Labels, float]]:
        """The samples that only go back where the gateway was started again."""
        for name in _GROWING & self.samples.keys():
            yield from ((name, labels, value) for labels, value in self.samples[name].items())


def read(text: bytes, at_s: float) -> Scrape:
    """The text format. Raises NotMetrics where it is none, is too long, or tells nothing of a gateway."""
    if len(text) > MAX_BYTES:
        raise NotMetrics(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        scrape = taken(text_string_to_metric_families(_shown_lines(text)), at_s)
    except (ValueError, LookupError, TypeError) as error:  # the parser checks little, and fails in these ways
        raise NotMetrics(f"it is not Prometheus' text format ({str(error)[:80]})") from None
    if not scrape.samples:
        raise NotMetrics("nothing in it is of an Interlock gateway")
    return scrape


def taken(families: Iterable[Metric], at_s: float) -> Scrape:
    """What is shown of metrics."""
    samples: dict[str, dict[Labels, float]] = {}
    for family in families:
        for sample in family.samples:
            if sample.name in _READ and math.isfinite(value := float(sample.value)) and value >= 0:
                labels = tuple(sorted((name, text[:_MAX_LABEL_CHARS]) for name, text in sample.labels.items()))
                samples.setdefault(sample.name, {})[labels] = value
    return Scrape(at_s, samples)


def _shown_lines(text: bytes) -> str:
    """The lines of what is shown. Only `\\n` ends a line."""
    kept, size = [], 0
    for line in text.split(b"\n"):
        if line.startswith(b"interlock_") and line.partition(b"{")[0].partition(b" ")[0].decode("ascii", "replace") in _READ:
            kept.append(line)
            size += len(line)
            if len(line) > _MAX_LINE_BYTES or size > _MAX_READ_BYTES or line.count(b'="') > _MAX_LABELS:
                raise NotMetrics("it is too long")
    return b"\n".join(kept).decode("utf-8", "replace") + "\n"
