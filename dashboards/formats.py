"""Formats: which fail, how, and whose fault it is."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.parts import (
    EVERY,
    GOOD_IS_LOW,
    MODEL,
    PAIR,
    RANGE,
    SERVED,
    Panel,
    Query,
    assembled,
    lines,
    matrix,
    number,
    ratio,
)
from dashboards.questions import engine_kind, failing_format, model_or_engine

_FAILED = f"interlock_parse_failures_total{{{PAIR}}}"
_ASKED = f"interlock_requests_total{{{SERVED}}}"
_ATTEMPTS = f"interlock_attempts_total{{{PAIR}}}"
_ENDS = f"interlock_answers_total{{{PAIR}}}"
_CUT = f'interlock_answers_total{{{PAIR},finish_reason="length"}}'
_CALLS = f"interlock_tool_calls_total{{{PAIR}}}"
_OFFERED = f"interlock_requests_with_tools_total{{{PAIR}}}"


def dashboard() -> Dashboard:
    """The dashboard."""
    return assembled(
        "formats",
        "Formats",
        "Malformed calls, truncations and leaks in the models' output: which format fails, how, and whether it is the model "
        "or the engine.",
        [
            ("Now", _now()),
            ("Whose fault is it?", _whose()),
            ("What is wrong", _kinds()),
            ("Ends of answers, tools and thoughts", [*_ends(), *_thoughts(), _checked()]),
        ],
    )


def _of_kind(kinds: str) -> str:
    return f'interlock_parse_failures_total{{{PAIR},kind=~"{kinds}"}}'


def _now() -> list[Panel]:
    return [
        number(
            "Parse failures by request",
            "Faults in the models' output, by request, over the time shown. A request may have several.",
            "percentunit",
            ratio(f"increase({_FAILED}{RANGE})", f"increase({_ASKED}{RANGE})"),
            width=6,
            steps=GOOD_IS_LOW,
        ),
        number(
            "Answers cut by the token limit",
            "Share of the answers that ended for their length. A tool call that is cut is no call: raise `max_tokens`.",
            "percentunit",
            ratio(f"increase({_CUT}{RANGE})", f"increase({_ENDS}{RANGE})"),
            width=6,
            steps=GOOD_IS_LOW,
        ),
        number(
            "Stop tokens that leaked, by request",
            "The token that ends a turn came through in the text. It should be 0: the engine does not stop where the model "
            "does, or the profile lacks a stop token.",
            "percentunit",
            ratio(f"increase({_of_kind('stop_leak')}{RANGE})", f"increase({_ASKED}{RANGE})"),
            width=6,
            steps=GOOD_IS_LOW,
        ),
        number(
            "Tool calls by request with tools",
            "Whole tool calls, by request that offered tools. A sudden fall: the model no longer calls, or its calls are no "
            "longer read.",
            "short",
            ratio(f"increase({_CALLS}{RANGE})", f"increase({_OFFERED}{RANGE})"),
            width=6,
        ),
    ]


def _whose() -> list[Panel]:
    joined = "* on (model, engine) group_left (engine_kind)"
    failed = f"sum by (model, engine, format) (rate({_FAILED}{EVERY})) {joined} {engine_kind()}"
    asked = f"sum by (model, engine) (rate({_ATTEMPTS}{EVERY})) {joined} {engine_kind()}"
    over = (
        f"sum by (model, engine_kind, format) ({failed}) / on (model, engine_kind) group_left ()"
        f" (sum by (model, engine_kind) ({asked}) > 0)"
    )
    return [
        model_or_engine(),
        lines(
            "By model, engine kind and format, over time",
            "The same rate as it went. A step of one line: what changed then on that kind of engine (an upgrade, a flag)? A "
            "step of all lines of a model: its files, its profile, or what it is asked.",
            "percentunit",
            [Query(over, "{{model}} on {{engine_kind}}, {{format}}")],
        ),
        failing_format(24),
    ]


def _kinds() -> list[Panel]:
    text = (
        "Parse failures of the request rate, by what is wrong: docs/formats.md says what each kind is and what it costs the "
        "client."
    )
    by_kind = f"sum by (kind) (rate({_FAILED}{EVERY})) / on () group_left () (sum(rate({_ASKED}{EVERY})) > 0) > 0"
    kinds = matrix(
        "Kinds by model",
        "How often which fault came, over the time shown. One kind that all models share is the gateway's or the clients' doing.",
        "short",
        f"sum by (model, kind) (increase({_FAILED}{RANGE})) > 0",
        down="kind",
        across="model",
        steps=((None, "transparent"), (1, "orange"), (100, "red")),
    )
    return [lines("Kinds over time", text, "percentunit", [Query(by_kind, "{{kind}}")]), kinds]


def _ends() -> list[Panel]:
    cut = _of_kind("truncated_call|truncated_reasoning")
    return [
        lines(
            "Answers by finish reason",
            "How answers ended. length is truncation: the limit was met before the model was done.",
            "reqps",
            [Query(f"sum by (finish_reason) (rate({_ENDS}{EVERY}))", "{{finish_reason}}")],
            stacked=True,
        ),
        lines(
            "Truncations by model and format",
            "Share of the answers cut by the token limit, and of the requests in which a call or a thought was cut.",
            "percentunit",
            [
                Query(ratio(f"rate({_CUT}{EVERY})", f"rate({_ENDS}{EVERY})", "model, format"), "{{model}} {{format}}: answers"),
                Query(ratio(f"rate({cut}{EVERY})", f"rate({_ASKED}{EVERY})", "model"), "{{model}}: calls and thoughts"),
            ],
        ),
        lines(
            "Stop tokens that leaked, by model and engine",
            "By attempt. Any is a fault of an engine or a profile, never of a client.",
            "percentunit",
            [
                Query(
                    ratio(f"rate({_of_kind('stop_leak')}{EVERY})", f"rate({_ATTEMPTS}{EVERY})", "model, engine"),
                    "{{model}} {{engine}}",
                )
            ],
        ),
        lines(
            "Tool calls by model and format",
            "Whole calls by request that offered tools. It changes when the harness does, when the model does, and when calls"
            " are no longer read.",
            "short",
            [Query(ratio(f"rate({_CALLS}{EVERY})", f"rate({_OFFERED}{EVERY})", "model, format"), "{{model}} {{format}}")],
        ),
    ]


def _thoughts() -> list[Panel]:
    thoughts = f"rate(interlock_reasoning_tokens_total{{{PAIR}}}{EVERY})"
    written = f"rate(interlock_completion_tokens_total{{{PAIR}}}{EVERY})"
    return [
        lines(
            "Thoughts",
            "Share of the tokens written that are thoughts, and thoughts that the gateway ended as they had all the tokens "
            "allowed.",
            "percentunit",
            [
                Query(ratio(thoughts, written, "model"), "{{model}}: of the tokens"),
                Query(
                    ratio(
                        f"rate(interlock_reasoning_budget_reached_total{{{PAIR}}}{EVERY})",
                        f"rate({_ASKED}{EVERY})",
                        "model",
                    ),
                    "{{model}}: ended, of the requests",
                ),
            ],
        ),
    ]


def _checked() -> Panel:
    return matrix(
        "Tests of `interlock check`",
        "1: the model passed this test when it was last checked, 0: it did not. A model that fails one will show it above.",
        "none",
        f"min by (model, test) (interlock_model_check{{{MODEL}}})",
        down="model",
        across="test",
        steps=((None, "red"), (1, "green")),
    )
