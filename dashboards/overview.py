"""Overview: is what was promised kept, and if not, where to look."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.parts import (
    EVERY,
    FAILED,
    FILLING,
    MODEL,
    OURS,
    PAIR,
    RANGE,
    TOKENS,
    Panel,
    Query,
    Steps,
    assembled,
    lines,
    number,
    ratio,
)
from dashboards.questions import add_engine, cache_saving, failing_format, sick_engine, slow_model, waiting

_REQUESTS = "interlock_requests_total"
_FIRST = "interlock_time_to_first_token_seconds"
_OK = f'{_REQUESTS}{{{PAIR},outcome="ok"}}'
_TO_ANSWER = f"{_REQUESTS}{{{PAIR},{OURS}}}"
_IN_TIME = f'{_FIRST}_bucket{{{PAIR},le="$objective"}}'
_BEGUN = f"{_FIRST}_count{{{PAIR}}}"
_AVAILABLE: Steps = ((None, "red"), (0.99, "orange"), (0.995, "green"))
_EARLY: Steps = ((None, "red"), (0.9, "orange"), (0.95, "green"))
"""Green is what is promised (deploy/prometheus/rules/objectives.yml); red begins where twice as much is amiss as may be."""


def dashboard() -> Dashboard:
    """The dashboard."""
    text = "Is what was promised kept? If not: which model, which engine, which format."
    return assembled(
        "overview",
        "Overview",
        text,
        [("What was promised", _promised()), ("Questions", _questions()), ("Load and errors", [*_kept(), *_ends(), *_load()])],
    )


def _promised() -> list[Panel]:
    return [
        number(
            "Availability",
            "Share of the requests that ended well, over the time shown. A client's own mistakes, and clients that left, "
            "count on neither side.",
            "percentunit",
            ratio(f"increase({_OK}{RANGE})", f"increase({_TO_ANSWER}{RANGE})"),
            steps=_AVAILABLE,
        ),
        number(
            "First token within the objective",
            "Share of the answers that began within the objective chosen above, the time in the queue included.",
            "percentunit",
            ratio(f"increase({_IN_TIME}{RANGE})", f"increase({_BEGUN}{RANGE})"),
            steps=_EARLY,
        ),
        number(
            "Requests",
            "Requests that ended, in a second, as they do now.",
            "reqps",
            f"sum(rate({_REQUESTS}{{{PAIR}}}{EVERY}))",
            over=True,
        ),
        number(
            "Tokens written",
            "Tokens that engines wrote in a second, thoughts and what was thrown away included: the throughput. Compare it with "
            "what one engine of yours writes at most.",
            TOKENS,
            f"sum(rate(interlock_completion_tokens_total{{{PAIR}}}{EVERY}))",
            over=True,
        ),
        waiting(),
        number(
            "Pressure",
            "How close the gateway itself is to its limits, of the gateways the worst; 1: one is met. From 0.8 on it no "
            "longer repeats failed attempts, at 1 it refuses requests.",
            "percentunit",
            "max(interlock_pressure)",
            steps=FILLING,
            over=True,
        ),
    ]


def _questions() -> list[Panel]:
    return [slow_model(), failing_format(), sick_engine(), cache_saving(), add_engine()]


def _kept() -> list[Panel]:
    return [
        lines(
            "Availability by model",
            "The same as the number above, as it went. A dip of one model is its engines', a dip of all the gateway's or the "
            "network's.",
            "percentunit",
            [Query(ratio(f"rate({_OK}{EVERY})", f"rate({_TO_ANSWER}{EVERY})", "model"), "{{model}}")],
            most=1,
        ),
        lines(
            "First token within the objective, by model",
            "Share of the answers that began in time, as it went. Where it falls, the panel on slow models says in which stage.",
            "percentunit",
            [Query(ratio(f"rate({_IN_TIME}{EVERY})", f"rate({_BEGUN}{EVERY})", "model"), "{{model}} within $objective s")],
            most=1,
        ),
    ]


def _ends() -> list[Panel]:
    return [
        lines(
            "Requests by outcome",
            "How requests ended. rejected: no room, or a limit was met. upstream_error: every engine that could be tried "
            "failed. timeout: a time limit. drained: the gateway was stopping. client_error: the request was wrong. "
            "client_gone: who asked left.",
            "reqps",
            [Query(f"sum by (outcome) (rate({_REQUESTS}{{{PAIR}}}{EVERY}))", "{{outcome}}")],
            stacked=True,
        ),
        lines(
            "Failures by reason",
            "Requests that did not end well, by model and reason. The access log has the same words, with the request's id.",
            "reqps",
            [
                Query(
                    f"sum by (model, outcome, reason) (rate(interlock_request_failures_total{{{MODEL}}}{EVERY}))",
                    "{{model}} {{outcome}}: {{reason}}",
                )
            ],
        ),
    ]


def _load() -> list[Panel]:
    cached = f"sum(rate(interlock_cached_prompt_tokens_total{{{PAIR}}}{EVERY}))"
    return [
        lines(
            "Tokens",
            "Prompt tokens that engines read and that they had in their cache, and tokens that they wrote, in a second. "
            "Agents read far more than they write: most of the prompt should be cached.",
            TOKENS,
            [
                Query(f"sum(rate(interlock_prompt_tokens_total{{{PAIR}}}{EVERY})) - ({cached} or vector(0))", "read"),
                Query(cached, "read from the cache"),
                Query(f"sum(rate(interlock_completion_tokens_total{{{PAIR}}}{EVERY}))", "written"),
            ],
            stacked=True,
        ),
        lines(
            "Saturation",
            "How full what can be full is: each gateway's own limits, its queue, and the fullest cache of an engine.",
            "percentunit",
            [
                Query("max by (instance) (interlock_pressure)", "{{instance}}: pressure"),
                Query("max by (instance) (interlock_queue_fill)", "{{instance}}: queue"),
                Query(f"max(interlock_engine_kv_cache_usage_ratio{{{PAIR}}})", "fullest cache"),
            ],
            most=1,
        ),
        lines(
            "Errors that are ours, by model",
            "Requests in a second that failed and that no client is to blame for.",
            "reqps",
            [Query(f"sum by (model) (rate({_REQUESTS}{{{PAIR},{FAILED}}}{EVERY}))", "{{model}}")],
        ),
        lines(
            "Running and waiting",
            "Attempts that run on engines, and requests that wait for one in the gateway.",
            "short",
            [
                Query(f"sum by (model) (interlock_inflight_requests{{{PAIR}}})", "{{model}}: running"),
                Query(f"sum by (model) (interlock_queue_depth{{{MODEL}}})", "{{model}}: waiting"),
            ],
        ),
    ]
