"""The panels that answer what an operator asks first: together on the overview, and each on the dashboard of its part."""

from dashboards.parts import (
    ANY_IS_BAD,
    EVERY,
    FILLING,
    GOOD_IS_LOW,
    MODEL,
    PAIR,
    RANGE,
    SICK,
    Column,
    Panel,
    Query,
    Steps,
    lines,
    matrix,
    mean,
    number,
    rows,
)

_SECONDS: Steps = ((None, "transparent"), (1, "orange"), (5, "red"))
UP = {"0": ("down", "red"), "1": ("up", "green")}
BREAKER = {"0": ("closed", "green"), "1": ("open", "red"), "2": ("half open", "orange")}
_STAGES = f"interlock_request_stage_seconds_total{{{PAIR}}}"


def engine_kind(window: str = "") -> str:
    """1 for each model and engine with its kind, as `engine_kind`: `kind` is what a failure has. `window`: of engines that were
    there in it. Of one that was of several kinds, the kind that it was of for longest, or that most gateways see."""
    info = f"interlock_engine_info{{{PAIR}}}"
    there = f"count_over_time({info}{window})" if window else info
    kinds = f'sum by (model, engine, engine_kind) (label_replace({there}, "engine_kind", "$1", "kind", "(.+)"))'
    return f"(topk by (model, engine) (1, {kinds}) ^ 0)"


def slow_model(width: int = 12) -> Panel:
    """Which model is slow, and why."""
    expr = mean("interlock_request_stage_seconds_total", RANGE, "model, stage")
    text = (
        "Mean seconds that a request spent in each stage, of those that an engine was asked for; together they are its duration."
        " queue: it waited in the gateway for an engine (add one, or see which is down). prefill: the engine read the prompt, "
        "its own queue included (long prompts, a cold cache, a busy engine). decode: the engine wrote (long answers, a full "
        "batch). client: the client did not read. render: the prompt was made here. other: the rest, failed attempts with it."
    )
    return matrix("Which model is slow, and why?", text, "s", expr, down="model", across="stage", width=width, steps=_SECONDS)


def sick_engine(width: int = 24) -> Panel:
    """Which engine is sick."""
    failed = f"sum by (model, engine) (increase(interlock_attempt_failures_total{{{SICK}}}{RANGE}))"
    asked = f"(sum by (model, engine) (increase(interlock_attempts_total{{{PAIR}}}{RANGE})) > 0)"
    text = (
        "An engine that is down fails its probes. One whose breaker is open fails requests: the gateway keeps them away from it "
        "and tries again by one (half open). Attempts failed are those without an answer by the engine's doing, also where "
        "another then served. Restarts cost an engine its cache. On one that is up and closed, a cache that is full makes "
        "requests wait inside it."
    )
    columns = [
        Column("up", f"min by (model, engine) (interlock_engine_up{{{PAIR}}})", "none", names=UP),
        Column("breaker", f"max by (model, engine) (interlock_engine_breaker_state{{{PAIR}}})", "none", names=BREAKER),
        Column("attempts failed", f"{failed} / {asked}", "percentunit", GOOD_IS_LOW),
        Column(
            "restarts",
            f"sum by (model, engine) (increase(interlock_engine_restarts_total{{{PAIR}}}{RANGE}))",
            "short",
            ANY_IS_BAD,
        ),
        Column("waiting in it", f"max by (model, engine) (interlock_engine_requests_waiting{{{PAIR}}})", "short"),
        Column(
            "cache filled", f"max by (model, engine) (interlock_engine_kv_cache_usage_ratio{{{PAIR}}})", "percentunit", FILLING
        ),
    ]
    return rows("Which engine is sick?", text, columns, width=width, sort="attempts failed")


def failing_format(width: int = 12) -> Panel:
    """Which format fails, and how."""
    failed = f"sum by (model, engine, format, kind) (increase(interlock_parse_failures_total{{{PAIR}}}{RANGE})) > 0"
    asked = f"sum by (model, engine) (increase(interlock_attempts_total{{{PAIR}}}{RANGE}))"
    text = (
        "Faults in the models' output, by model, engine, format and kind. An attempt may have several, so more than 100 % is "
        "possible. docs/formats.md says what each kind is. The same kind on every engine of a model is the model's or its "
        "format's; on one engine alone it is the engine's: see the dashboard Formats."
    )
    columns = [
        Column("faults", failed, "short"),
        Column("by attempt", f"({failed}) / on (model, engine) group_left () {asked}", "percentunit", GOOD_IS_LOW),
    ]
    return rows("Which format fails, and how?", text, columns, width=width, sort="faults")


def model_or_engine(width: int = 12) -> Panel:
    """The same model's failures on each kind of engine, side by side."""
    kinds = engine_kind(RANGE)
    failed = f"sum by (model, engine) (increase(interlock_parse_failures_total{{{PAIR}}}{RANGE}))"
    asked = f"sum by (model, engine) (increase(interlock_attempts_total{{{PAIR}}}{RANGE}))"
    joined = "* on (model, engine) group_left (engine_kind)"
    expr = (
        f"sum by (model, engine_kind) ({failed} {joined} {kinds}) / (sum by (model, engine_kind) ({asked} {joined} {kinds}) > 0)"
    )
    text = (
        "Parse failures by attempt. Read a row: about the same under every kind of engine, and it is the model, or how it is "
        "spoken to (its template and format, which `interlock check` tests). High under one kind alone, and it is that "
        "engine: its version, its tokenizer, its speculative decoding, its quantisation. One column proves nothing: serve the"
        " model on a second kind. An engine that became one of another kind counts as what it was for longest."
    )
    return matrix(
        "Is it the model or the engine?",
        text,
        "percentunit",
        expr,
        down="model",
        across="engine_kind",
        width=width,
        steps=GOOD_IS_LOW,
    )


def cache_saving(width: int = 12) -> Panel:
    """How much the cache saves."""
    cached = f"rate(interlock_cached_prompt_tokens_total{{{PAIR}}}{EVERY})"
    prompt = f"rate(interlock_prompt_tokens_total{{{PAIR}}}{EVERY})"
    prefill = f'rate(interlock_request_stage_seconds_total{{{PAIR},stage="prefill"}}{EVERY})'
    made = f"(sum by (model) ({prompt}) - sum by (model) ({cached}) > 0)"
    text = (
        "Seconds of prefill that were not needed in each second, as the engines said that they had the tokens: 2 is the "
        "prefill work of two engines. Estimated by what a token that was not cached took, so it is too much where engines let"
        " requests wait, and nothing is shown where they report no cached tokens."
    )
    saved = f"sum by (model) ({cached}) * sum by (model) ({prefill}) / {made}"
    return lines("How much does the cache save?", text, "s", [Query(saved, "{{model}}")], width=width)


def add_engine(width: int = 12) -> Panel:
    """When to add an engine."""
    stages = f"rate({_STAGES}{EVERY})"
    waited = f'rate(interlock_request_stage_seconds_total{{{PAIR},stage="queue"}}{EVERY})'
    queue = f"sum by (model) ({waited}) / (sum by (model) ({stages}) > 0)"
    emptiest = f"min by (model) (interlock_engine_kv_cache_usage_ratio{{{PAIR}}})"
    held = (
        f"sum by (model) (interlock_engine_requests_waiting{{{PAIR}}})"
        f" / (sum by (model) (interlock_engine_requests_waiting{{{PAIR}}} + interlock_engine_requests_running{{{PAIR}}}) > 0)"
    )
    text = (
        "For one model: what part of its requests' time goes by in the gateway's queue, how full the cache of its emptiest "
        "engine is, and what part of the requests inside its engines waits there. Add an engine when, for longer than a "
        "burst, a tenth of the time goes by in the queue, or a tenth of the requests inside waits, or even the emptiest cache"
        " is filled to 80 %. A queue while caches are empty and nothing waits inside is no lack of engines: one is down or "
        "its breaker is open."
    )
    queries = [
        Query(queue, "{{model}}: time in the queue"),
        Query(emptiest, "{{model}}: emptiest cache filled"),
        Query(held, "{{model}}: held inside engines"),
    ]
    return lines("When to add an engine?", text, "percentunit", queries, width=width, most=1)


def waiting(width: int = 4) -> Panel:
    """How many wait now."""
    text = "Requests that wait for an engine now. A number that grows means more come than the engines take."
    expr = f"sum(interlock_queue_depth{{{MODEL}}})"
    return number("In the queue", text, "short", expr, width=width, over=True)
