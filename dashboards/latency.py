"""Latency: how long who waits, and in which stage."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.parts import EVERY, MODEL, SERVED, Panel, Query, assembled, heat, lines, quantile, quantiles
from dashboards.questions import slow_model


def dashboard() -> Dashboard:
    """The dashboard."""
    return assembled(
        "latency",
        "Latency",
        "How long who waits, and in which stage: queue, prefill, decode, client. Times begin with the last byte of the request.",
        [
            ("Stages", _stages()),
            ("First token: the cost of the prompt", _first()),
            ("Tokens: the cost of writing", _tokens()),
            ("Queue, client and whole requests", _around()),
        ],
    )


def _stages() -> list[Panel]:
    stages = f"rate(interlock_request_stage_seconds_total{{{SERVED}}}{EVERY})"
    requests = f"rate(interlock_requests_total{{{SERVED}}}{EVERY})"
    each = f"sum by (stage) ({stages}) / on () group_left () (sum({requests}) > 0)"
    share = f"sum by (stage) ({stages}) / on () group_left () (sum({stages}) > 0)"
    return [
        slow_model(24),
        lines(
            "Where the time of a request goes",
            "Mean seconds in each stage, of the requests that an engine was asked for; the height of the whole is their mean "
            "duration. Choose one model above to see its own. What grew says where to look: queue is a lack of engines, prefill "
            "long prompts or a cold cache, decode long answers or full batches, client a reader that is slow.",
            "s",
            [Query(each, "{{stage}}")],
            stacked=True,
        ),
        lines(
            "Share of each stage",
            "The same as parts of the whole, which shows a change also where traffic changes.",
            "percentunit",
            [Query(share, "{{stage}}")],
            stacked=True,
            most=1,
        ),
    ]


def _first() -> list[Panel]:
    return [
        lines(
            "Time to first token, by model",
            "Until the first delta was sent, thoughts included. p50 is what most see; p95 is what a plan must hold. Where p95"
            " alone rises, look at the queue and at long prompts. The dots are single requests: one leads to its trace.",
            "s",
            quantiles("time_to_first_token_seconds", "model"),
        ),
        heat(
            "Time to first token",
            "How many answers began after how long. Two bands are two kinds of requests, with and without their prompt in the"
            " cache; a band that climbs is a queue.",
            "time_to_first_token_seconds",
        ),
        lines(
            "Time to first token by engine, p95",
            "The engines of a model should look alike. One far above the others is sick, or gets the long prompts (see "
            "Routing and cache).",
            "s",
            [Query(quantile(0.95, "time_to_first_token_seconds", "model, engine"), "{{model}} {{engine}}")],
        ),
        lines(
            "Time to first output, by model",
            "Until the first text or tool call that is no thought. Far above the first token: the model thinks for long "
            "(`reasoning_budget` bounds it).",
            "s",
            quantiles("time_to_first_output_seconds", "model"),
        ),
    ]


def _tokens() -> list[Panel]:
    return [
        lines(
            "Between tokens, by engine",
            "Inter-token latency. p50 is the pace of a batch, p95 what stutters. It rises as batches fill: that is throughput"
            " bought with latency. p95 alone rising is prefill of others between the steps.",
            "s",
            quantiles("inter_token_latency_seconds", "model, engine"),
        ),
        heat(
            "Between tokens",
            "How often which gap came between two tokens. A second band above the first is other requests' prefill.",
            "inter_token_latency_seconds",
        ),
        lines(
            "Time per output token, by engine",
            "Of one answer: its time after the first token, by its tokens. The pace that a reader feels over a whole answer.",
            "s",
            quantiles("time_per_output_token_seconds", "model, engine"),
        ),
        lines(
            "Rendering and tokenising, p95",
            "What it took to make the prompt here, before any engine was asked. It grows with what is new in a conversation.",
            "s",
            [
                Query(quantile(0.95, "render_seconds", "model", MODEL), "{{model}} render"),
                Query(quantile(0.95, "tokenize_seconds", "model", MODEL), "{{model}} tokenise"),
            ],
        ),
    ]


def _around() -> list[Panel]:
    return [
        lines(
            "Waiting in the queue, by model",
            "How long requests waited in the gateway for an engine, of those that one was asked for in the end. By Kingman's "
            "formula it explodes near full use, and sooner where requests come in bursts: add an engine, or bound the bursts.",
            "s",
            quantiles("queue_wait_seconds", "model", SERVED),
        ),
        heat(
            "Waiting in the queue",
            "How many requests waited how long, of those that an engine was asked for. All in the lowest row: nobody waits.",
            "queue_wait_seconds",
            where=SERVED,
        ),
        lines(
            "Blocked by the client, p95",
            "Time of a request in which the client did not read what was there. Not the engine's doing: a slow network or "
            "harness.",
            "s",
            [Query(quantile(0.95, "client_stall_seconds", "model"), "{{model}}")],
        ),
        lines(
            "Whole requests, by model",
            "From the request's last byte to the end of the answer, of those that an engine was asked for.",
            "s",
            quantiles("request_duration_seconds", "model", SERVED),
        ),
    ]
