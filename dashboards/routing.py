"""Routing and cache: does the router know what it believes to know, and what is it worth."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.parts import (
    ANY_IS_BAD,
    EVERY,
    MODEL,
    PAIR,
    RANGE,
    Panel,
    Query,
    assembled,
    heat,
    lines,
    number,
    quantile,
    ratio,
    states,
)
from dashboards.questions import cache_saving

_PROMPT = f"interlock_prompt_tokens_total{{{PAIR}}}"
_CACHED = f"interlock_cached_prompt_tokens_total{{{PAIR}}}"
_PREDICTED = f"interlock_predicted_cached_prompt_tokens_total{{{PAIR}}}"
_COMPARED = f"interlock_compared_cached_prompt_tokens_total{{{PAIR}}}"
_WORK = f'sum by (model, engine) (rate(interlock_request_stage_seconds_total{{{PAIR},stage=~"prefill|decode"}}{EVERY}))'


def dashboard() -> Dashboard:
    """The dashboard."""
    return assembled(
        "routing",
        "Routing and cache",
        "How much of the prompts engines have in their caches, whether the router knows it, and whether the engines are used "
        "alike.",
        [("The cache", _cache()), ("Is the router right?", [*_right(), *_timely(), *_known()]), ("Where requests go", _where())],
    )


def _cache() -> list[Panel]:
    cached = f"increase({_CACHED}{RANGE})"
    hits = ratio(cached, f"increase({_PROMPT}{RANGE}) and {cached}")
    return [
        number(
            "Hit rate, reported",
            "Share of the prompt tokens that the engines say they had in their cache, over the time shown; engines that say "
            "nothing count on neither side. Agents' turns repeat almost all of the last: well below 80 % with agents, the "
            "prompts change at their beginning, or the caches are too small.",
            "percentunit",
            hits,
            width=6,
        ),
        number(
            "Hit rate, predicted by reported",
            "Cached tokens that the router believed in, by those that the engines then had. 100 %: it is right. Above: it "
            "sends requests after prefixes that are gone.",
            "percentunit",
            ratio(f"increase({_PREDICTED}{RANGE})", f"increase({_COMPARED}{RANGE})"),
            width=6,
        ),
        number(
            "Tokens not read again",
            "Prompt tokens in a second that no engine had to read.",
            "si:tok/s",
            f"sum(rate({_CACHED}{EVERY}))",
            width=6,
            over=True,
        ),
        number(
            "Engines with drift",
            "Engines that have much less in their cache than the router believes. The log names the likely causes, the "
            "runbook what to do.",
            "short",
            f"sum(interlock_cache_prediction_drift{{{PAIR}}})",
            width=6,
            steps=ANY_IS_BAD,
            over=True,
        ),
        cache_saving(),
        lines(
            "Hit rate by engine, reported",
            "Share of the prompt tokens that each engine had. One far below the others was restarted, or its cache is smaller.",
            "percentunit",
            [Query(ratio(f"rate({_CACHED}{EVERY})", f"rate({_PROMPT}{EVERY})", "model, engine"), "{{model}} {{engine}}")],
            most=1,
        ),
    ]


def _right() -> list[Panel]:
    results = f"rate(interlock_cache_predictions_total{{{PAIR}}}{EVERY})"
    return [
        lines(
            "Cached tokens: predicted and reported",
            "Of the attempts whose engine says what it had. The lines should lie on each other.",
            "si:tok/s",
            [
                Query(f"sum by (model) (rate({_PREDICTED}{EVERY}))", "{{model}}: predicted"),
                Query(f"sum by (model) (rate({_COMPARED}{EVERY}))", "{{model}}: reported"),
            ],
        ),
        lines(
            "Error of the prediction",
            "Tokens between prediction and report, by those of the prompt. A p50 of 0 with a high p95 is a few requests that "
            "were wrong by much: an engine that was restarted, or other clients in its cache.",
            "percentunit",
            [
                Query(
                    quantile(share, "cache_prediction_error_ratio", "model, engine"),
                    f"{{{{model}}}} {{{{engine}}}} p{share * 100:g}",
                )
                for share in (0.5, 0.95)
            ],
            most=1,
        ),
        lines(
            "Predictions by result",
            "right: within a chunk, or 5 % of the prompt. over: there was less than the router believed, so the engine read "
            "what another may have had. under: there was more.",
            "percentunit",
            [Query(f"sum by (result) ({results}) / on () group_left () (sum({results}) > 0)", "{{result}}")],
            stacked=True,
            most=1,
        ),
    ]


def _timely() -> list[Panel]:
    slow = [
        Query(quantile(share, "predicted_ttft_ratio", "model, engine"), f"{{{{model}}}} {{{{engine}}}} p{share * 100:g}")
        for share in (0.1, 0.5, 0.9)
    ]
    return [
        lines(
            "Time to first token: actual by predicted",
            "1: as predicted. Above, the engine is slower than the router believes, and gets more than it should; it learns "
            "within minutes. Far from 1 for long: other clients use the engine.",
            "short",
            slow,
        ),
        heat(
            "Time to first token: actual by predicted, all",
            "The same, as it is spread. It should be narrow around 1.",
            "predicted_ttft_ratio",
            unit="short",
        ),
    ]


def _known() -> list[Panel]:
    return [
        states(
            "Engines that tell of their caches",
            "Whether the router goes by what an engine tells of its cache (live) or by what was sent there. An engine that "
            "falls back to what was sent stopped telling, or too much of it was missed. No line: none is set to tell.",
            Query(f"min by (model, engine) (interlock_engine_kv_events_live{{{PAIR}}})", "{{model}} {{engine}}"),
            {"0": ("by what was sent", "orange"), "1": ("live", "green")},
            width=12,
        ),
        lines(
            "Events of caches",
            "What engines told of their caches in a second, by kind, and how often something of it was missed.",
            "ops",
            [
                Query(f"sum by (kind) (rate(interlock_kv_events_total{{{PAIR}}}{EVERY}))", "{{kind}}"),
                Query(f"sum(rate(interlock_kv_event_gaps_total{{{PAIR}}}{EVERY}))", "missed"),
            ],
        ),
        states(
            "Drift",
            "Whether an engine has much less in its cache than the router believes: another chat template or tokenizer, a "
            "cache that is off or smaller, a restart, other clients.",
            Query(f"max by (model, engine) (interlock_cache_prediction_drift{{{PAIR}}})", "{{model}} {{engine}}"),
            {"0": ("as believed", "green"), "1": ("drift", "red")},
            width=12,
        ),
    ]


def _where() -> list[Panel]:
    decisions = f"interlock_route_decisions_total{{{PAIR}}}"
    up = f"max by (model, engine) (interlock_engine_up{{{PAIR}}}) == 1"
    spread = f"max by (model) ({_WORK} and {up}) / (avg by (model) ({_WORK} and {up}) > 0)"
    return [
        lines(
            "Decisions by reason",
            "Why attempts went where they did. docs/routing.md says what each word is. Many that follow no cache while hits "
            "are low: nothing is there to follow.",
            "reqps",
            [Query(f"sum by (reason) (rate({decisions}{EVERY}))", "{{reason}}")],
            stacked=True,
        ),
        lines(
            "Imbalance",
            "The busiest engine of a model by the mean of those that are up, in seconds of prefill and decode. 1: alike. An "
            "engine at its limit while others idle bounds the whole: look for one that all prefixes live on.",
            "short",
            [Query(spread, "{{model}}")],
        ),
        lines(
            "Requests in work, by engine",
            "Mean number of requests that each engine worked on (seconds of prefill and decode in a second).",
            "short",
            [Query(_WORK, "{{model}} {{engine}}")],
            stacked=True,
        ),
        lines(
            "Attempts by engine",
            "How often each engine was asked. With caches in use it need not be even: the work should be.",
            "reqps",
            [Query(f"sum by (model, engine) (rate(interlock_attempts_total{{{PAIR}}}{EVERY}))", "{{model}} {{engine}}")],
            stacked=True,
        ),
        lines(
            "Retries and resumes",
            "Attempts that followed a failure, and those of them that went on with a broken answer: failures that no client saw.",
            "reqps",
            [
                Query(f"sum by (model) (rate(interlock_retries_total{{{MODEL}}}{EVERY}))", "{{model}}: retries"),
                Query(f"sum by (model) (rate(interlock_resumes_total{{{MODEL}}}{EVERY}))", "{{model}}: of them resumes"),
            ],
        ),
        lines(
            "Failures that no attempt followed",
            "By what forbade it. Clients saw these.",
            "reqps",
            [
                Query(
                    f"sum by (model, reason) (rate(interlock_retries_refused_total{{{MODEL}}}{EVERY})) > 0",
                    "{{model}}: {{reason}}",
                )
            ],
        ),
    ]
