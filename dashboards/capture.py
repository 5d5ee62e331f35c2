"""Capture and lab: is what is recorded whole, is what is measured true, and what does a plan begin with."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.parts import (
    ANY_IS_BAD,
    EVERY,
    PAIR,
    RANGE,
    SERVED,
    Panel,
    Query,
    assembled,
    heat,
    labels,
    lines,
    mean,
    number,
    quantile,
)

_ENDED = f'interlock_requests_total{{{PAIR},model!="unknown"}}'


def dashboard() -> Dashboard:
    """The dashboard."""
    return assembled(
        "capture",
        "Capture and lab",
        "Whether records and measurements are whole, and the figures of the load with which a replay or a capacity plan begins.",
        [("Records", _records()), ("Can the measurements be trusted?", _trust()), ("The load, for a plan", _plan())],
    )


def _records() -> list[Panel]:
    dropped = "interlock_capture_dropped_total"
    return [
        number(
            "Records kept",
            "Requests captured over the time shown. 0 while no capture runs.",
            "short",
            f"sum(increase(interlock_capture_records_total{RANGE}))",
            width=6,
        ),
        number(
            "Records dropped",
            "Requests that should have been captured and were not. Any hole makes a replay differ from what was.",
            "short",
            f"sum(increase({dropped}{RANGE}))",
            width=6,
            steps=ANY_IS_BAD,
        ),
        number(
            "Spans dropped",
            "Spans of traces that were not sent: the collector is down, or slower than the gateway.",
            "short",
            f"sum(increase(interlock_spans_dropped_total{RANGE}))",
            width=6,
            steps=ANY_IS_BAD,
        ),
        number(
            "Settings that could not be read",
            "Sources of engines whose last version is missing or wrong: what they said before still holds.",
            "short",
            "sum(interlock_config_reload_failed)",
            width=6,
            steps=ANY_IS_BAD,
            over=True,
        ),
        lines(
            "Records kept and dropped",
            "Requests captured in a second, and those dropped by why. queue_full: the disk is slower than the traffic. "
            "too_large: one record was over the limit. write_failed: the disk refused.",
            "reqps",
            [
                Query(f"sum(rate(interlock_capture_records_total{EVERY}))", "kept"),
                Query(f"sum by (reason) (rate({dropped}{EVERY}))", "dropped: {{reason}}"),
            ],
        ),
        lines(
            "Spans",
            "Spans sent, dropped and waiting. Waiting that grows: the collector does not keep up.",
            "short",
            [
                Query(f"sum(rate(interlock_spans_sent_total{EVERY}))", "sent in a second"),
                Query(f"sum by (reason) (rate(interlock_spans_dropped_total{EVERY}))", "dropped in a second: {{reason}}"),
                Query("sum(interlock_spans_waiting)", "waiting"),
            ],
        ),
    ]


def _trust() -> list[Panel]:
    late = f"sum by (le, instance) (rate(interlock_event_loop_lag_seconds_bucket{EVERY}))"
    return [
        lines(
            "Lateness of the event loop",
            "How late the gateway's loop was. Every time measured here may be wrong by as much, and every stream stutters by "
            "it. Above 100 ms: give it a core of its own, or start another gateway.",
            "s",
            [
                Query(f"histogram_quantile(0.99, {late})", "{{instance}} p99"),
                Query("max by (instance) (interlock_event_loop_lag_max_seconds)", "{{instance}} largest of 5 s"),
            ],
        ),
        heat("Lateness of the event loop, all", "How often the loop was how late.", "event_loop_lag_seconds", where=""),
        labels(
            "Gateways",
            "Which version runs where. Compare measurements only between the same.",
            "max by (instance, version, python) (interlock_build_info)",
            width=24,
        ),
    ]


def _plan() -> list[Panel]:
    return [
        lines(
            "Tokens by request",
            "Mean prompt, cached and answer tokens of a request that an engine was asked for: with the rate of requests, the "
            "load that a plan is made for.",
            "short",
            [
                Query(_tokens("prompt"), "{{model}}: prompt"),
                Query(_tokens("cached_prompt"), "{{model}}: of it cached"),
                Query(_tokens("completion"), "{{model}}: answer"),
                Query(_tokens("reasoning"), "{{model}}: of it thoughts"),
            ],
        ),
        lines(
            "Requests in the gateway",
            "Mean number at once, by Little's law: their rate times their mean duration. What engines must hold in their "
            "batches.",
            "short",
            [Query(f"sum by (model) (rate(interlock_request_duration_seconds_sum{{{PAIR}}}{EVERY}))", "{{model}}")],
        ),
        lines(
            "Arrivals",
            "Requests that ended in a second. What matters to a plan is the busiest hour, not the mean of a day.",
            "reqps",
            [Query(f"sum by (model) (rate({_ENDED}{EVERY}))", "{{model}}")],
        ),
        lines(
            "Length of requests: p95 by p50",
            "How uneven requests are, of those that an engine was asked for. By Kingman's formula waiting grows with the square "
            "of their variation: a cap on the answer's tokens lowers it where the mean is fine.",
            "short",
            [
                Query(
                    f"{quantile(0.95, 'request_duration_seconds', 'model', SERVED)}"
                    f" / ({quantile(0.5, 'request_duration_seconds', 'model', SERVED)} > 0)",
                    "{{model}}",
                )
            ],
        ),
    ]


def _tokens(which: str) -> str:
    return mean(f"interlock_{which}_tokens_total", EVERY, "model")
