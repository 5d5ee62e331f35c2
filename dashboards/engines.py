"""Engines: which is sick, which is full, and what they are."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.parts import EVERY, MODEL, PAIR, SICK, Panel, Query, assembled, labels, lines, ratio, states
from dashboards.questions import BREAKER, UP, add_engine, sick_engine

_NAME = "{{model}} {{engine}}"
_GPU = "{{engine}} GPU {{gpu}}"


def dashboard() -> Dashboard:
    """The dashboard."""
    return assembled(
        "engines",
        "Engines",
        "Health, load, caches and restarts of every engine, and its GPUs where the gateway is told of a DCGM exporter.",
        [
            ("Health", _health()),
            ("Load", _load()),
            ("What they are", _what()),
            ("GPUs, with `interlock serve --gpu-metrics`", _gpus()),
        ],
    )


def _each(name: str, how: str = "max") -> str:
    return f"{how} by (model, engine) (interlock_{name}{{{PAIR}}})"


def _health() -> list[Panel]:
    return [sick_engine(), *_able(), *_failing()]


def _able() -> list[Panel]:
    return [
        states(
            "Up",
            "Whether an engine can serve, by its probes and connections. Gateways may differ: the worst is shown.",
            Query(_each("engine_up", "min"), _NAME),
            UP,
            width=12,
        ),
        states(
            "Breaker",
            "What an engine's failures made of it. open: no requests go there; half open: one tries it. An engine that is up "
            "with an open breaker answers probes and fails requests: read its log.",
            Query(_each("engine_breaker_state"), _NAME),
            BREAKER,
            width=12,
        ),
        lines(
            "Engines that can serve, by model",
            "Those of a model that are up. 0: its requests are refused, also where nothing names an engine for it any more. "
            "Gateways may differ: the least is shown.",
            "short",
            [Query(f"min by (model) (interlock_model_engines_ready{{{MODEL}}})", "{{model}}")],
        ),
        states(
            "Another tokenizer than its model's",
            "An engine that makes other token ids of a text than the model's files is kept out of service: it has another "
            "model, or another version of it.",
            Query(_each("engine_tokenizer_mismatch"), _NAME),
            {"0": ("the same", "green"), "1": ("another", "red")},
            width=12,
        ),
    ]


def _failing() -> list[Panel]:
    return [
        lines(
            "Attempts failed, by reason",
            "Attempts without an answer, also where another engine then served. unreachable: no connection. refused: an error"
            " answer. broke: the stream was cut. headers, first_token, between_tokens: which time limit it met. Some are not "
            "its doing: what the client asked (bad_request) or did, and whole answers that broke a rule (schema_miss).",
            "reqps",
            [
                Query(
                    f"sum by (engine, reason) (rate(interlock_attempt_failures_total{{{PAIR}}}{EVERY})) > 0",
                    "{{engine}}: {{reason}}",
                )
            ],
        ),
        lines(
            "Share of attempts failed",
            "By the engine's doing, of what it was asked. One alone is sick; all together, look at the network or at what is "
            "asked.",
            "percentunit",
            [
                Query(
                    ratio(
                        f"rate(interlock_attempt_failures_total{{{SICK}}}{EVERY})",
                        f"rate(interlock_attempts_total{{{PAIR}}}{EVERY})",
                        "model, engine",
                    ),
                    _NAME,
                )
            ],
        ),
        lines(
            "Restarts",
            "Lives of an engine that the gateway noticed to have ended, since it started itself. Each costs the engine its "
            "cache.",
            "short",
            [Query(_each("engine_restarts_total"), _NAME)],
        ),
    ]


def _load() -> list[Panel]:
    ours = f"sum by (model, engine) (interlock_inflight_requests{{{PAIR}}})"
    return [
        add_engine(),
        lines(
            "Running",
            "Requests that an engine says it works on, and those that this gateway has there. The engine's own far above "
            "ours: others use it.",
            "short",
            [Query(_each("engine_requests_running"), f"{_NAME}: says"), Query(ours, f"{_NAME}: ours")],
        ),
        lines(
            "Waiting inside engines",
            "Requests that an engine holds before it begins them. They have left the gateway's queue, and their wait counts "
            "as prefill.",
            "short",
            [Query(_each("engine_requests_waiting"), _NAME)],
        ),
        lines(
            "Cache filled",
            "How full an engine's KV cache is. Near 100 % it drops prefixes that are still wanted, and lets requests wait. No"
            " line: it does not say.",
            "percentunit",
            [Query(_each("engine_kv_cache_usage_ratio"), _NAME)],
            most=1,
        ),
        lines(
            "Tokens written, by engine",
            "Throughput of each engine. What it reaches at most, with full batches, is the measure for how many are needed.",
            "si:tok/s",
            [
                Query(
                    f"sum by (model, engine) (rate(interlock_completion_tokens_total{{{PAIR}}}{EVERY}))",
                    _NAME,
                )
            ],
            stacked=True,
        ),
        lines(
            "Prompt tokens read, by engine",
            "Those that were not in its cache: the prefill work. No line: it does not say what it had.",
            "si:tok/s",
            [
                Query(
                    f"sum by (model, engine) (rate(interlock_prompt_tokens_total{{{PAIR}}}{EVERY}))"
                    f" - sum by (model, engine) (rate(interlock_cached_prompt_tokens_total{{{PAIR}}}{EVERY}))",
                    _NAME,
                )
            ],
            stacked=True,
        ),
    ]


def _what() -> list[Panel]:
    expr = f"max by (model, engine, kind, version) (interlock_engine_info{{{PAIR}}})"
    text = "Kind and version of what serves each model. Two versions of a kind under one model explain many a difference above."
    return [labels("What serves which model", text, expr, width=24)]


def _gpus() -> list[Panel]:
    def gpu(name: str) -> str:
        return f"max by (engine, gpu) (interlock_engine_gpu_{name}{{{PAIR}}})"

    return [
        lines(
            "GPU use",
            "Share of the time in which the GPU did anything. High says little: a GPU that decodes one request is busy too. "
            "Low while requests wait: the engine is held up elsewhere. Uneven within one engine: its parts wait for each "
            "other.",
            "percentunit",
            [Query(gpu("utilization_ratio"), _GPU)],
            most=1,
        ),
        lines(
            "GPU memory used",
            "Share of the GPU's memory. Engines take theirs at the start: it should be flat.",
            "percentunit",
            [Query(f"{gpu('memory_used_bytes')} / ({gpu('memory_total_bytes')} > 0)", _GPU)],
            most=1,
        ),
        lines(
            "GPU power",
            "What it draws. It follows real work better than its use does.",
            "watt",
            [Query(gpu("power_watts"), _GPU)],
        ),
        lines(
            "GPU temperature",
            "Above 80 to 85 degrees most slow down by themselves.",
            "celsius",
            [Query(gpu("temperature_celsius"), _GPU)],
        ),
    ]
