"""Metrics: names and labels as documented, folds that are right, label values that no client can choose."""

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from timeit import repeat
from typing import get_args

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from support.events import DONE, MADE
from support.gateway import serving, settings_for
from support.metrics import metrics_of, read, value
from support.scripted_engine import ScriptedEngine
from support.wiring import fleet

from gateway.errors import GatewayError, RejectReason, TimeoutStage
from gateway.events import AttemptFailed, AttemptStarted, CacheTold, NotRetried, Outcome, Prefilled
from gateway.fleet.registry import Registry
from gateway.made import Made
from gateway.observe import groups
from gateway.observe.group import Served
from gateway.observe.health import Health
from gateway.observe.load import Load
from gateway.observe.metrics import OPENMETRICS_TYPE, TEXT_TYPE, Metrics
from gateway.observe.series import Histogram
from gateway.observe.truth import RoutingTruth
from gateway.prompt.profile import CheckName
from gateway.request import FailureKind, Usage
from gateway.routing.retry import EXCUSED, Stopped
from gateway.routing.view import Forecast, Terms

PAIR = {"model", "engine"}
DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
FORMAT = PAIR | {"format"}
LABELS = {
    "interlock_requests_total": PAIR | {"dialect", "outcome"},
    "interlock_request_failures_total": {"model", "outcome", "reason"},
    "interlock_request_duration_seconds": PAIR,
    "interlock_request_stage_seconds_total": PAIR | {"stage"},
    "interlock_queue_wait_seconds": PAIR,
    "interlock_time_to_first_token_seconds": PAIR,
    "interlock_time_to_first_output_seconds": PAIR,
    "interlock_time_per_output_token_seconds": PAIR,
    "interlock_inter_token_latency_seconds": PAIR,
    "interlock_client_stall_seconds": PAIR,
    "interlock_render_seconds": {"model"},
    "interlock_tokenize_seconds": {"model"},
    "interlock_prompt_tokens_total": PAIR,
    "interlock_completion_tokens_total": PAIR,
    "interlock_cached_prompt_tokens_total": PAIR,
    "interlock_reasoning_tokens_total": PAIR,
    "interlock_reasoning_budget_reached_total": PAIR,
    "interlock_answers_total": FORMAT | {"finish_reason"},
    "interlock_tool_calls_total": FORMAT,
    "interlock_requests_with_tools_total": FORMAT,
    "interlock_parse_failures_total": FORMAT | {"kind"},
    "interlock_attempts_total": PAIR,
    "interlock_attempt_failures_total": PAIR | {"reason"},
    "interlock_retries_total": {"model"},
    "interlock_resumes_total": {"model"},
    "interlock_retries_refused_total": {"model", "reason"},
    "interlock_route_decisions_total": PAIR | {"reason"},
    "interlock_predicted_cached_prompt_tokens_total": PAIR,
    "interlock_compared_cached_prompt_tokens_total": PAIR,
    "interlock_cache_predictions_total": PAIR | {"result"},
    "interlock_cache_prediction_error_ratio": PAIR,
    "interlock_cache_prediction_drift": PAIR,
    "interlock_predicted_ttft_ratio": PAIR,
    "interlock_inflight_requests": PAIR,
    "interlock_model_engines_ready": {"model"},
    "interlock_engine_up": PAIR,
    "interlock_engine_breaker_state": PAIR,
    "interlock_engine_restarts_total": PAIR,
    "interlock_engine_requests_running": PAIR,
    "interlock_engine_requests_waiting": PAIR,
    "interlock_engine_kv_cache_usage_ratio": PAIR,
    "interlock_engine_gpu_utilization_ratio": PAIR | {"gpu"},
    "interlock_engine_gpu_memory_used_bytes": PAIR | {"gpu"},
    "interlock_engine_gpu_memory_total_bytes": PAIR | {"gpu"},
    "interlock_engine_gpu_power_watts": PAIR | {"gpu"},
    "interlock_engine_gpu_temperature_celsius": PAIR | {"gpu"},
    "interlock_engine_info": {"engine", "kind", "version", "model"},
    "interlock_engine_tokenizer_mismatch": PAIR,
    "interlock_engine_kv_events_live": PAIR,
    "interlock_kv_events_total": PAIR | {"kind"},
    "interlock_kv_event_gaps_total": PAIR,
    "interlock_model_check": {"model", "test"},
    "interlock_queue_depth": {"model", "priority"},
    "interlock_queue_fill": set[str](),
    "interlock_pressure": set[str](),
    "interlock_event_loop_lag_seconds": set[str](),
    "interlock_event_loop_lag_max_seconds": set[str](),
    "interlock_config_reload_failed": {"origin"},
    "interlock_spans_waiting": set[str](),
    "interlock_spans_sent_total": set[str](),
    "interlock_spans_dropped_total": {"reason"},
    "interlock_capture_records_total": set[str](),
    "interlock_capture_dropped_total": {"reason"},
    "interlock_build_info": {"version", "python"},
}
LONG = (0.25, 0.5, 0.75, 1, 2.5, 5, 7.5)
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
EXTRA = """
from gateway.events import Finished
from gateway.observe.group import Group
from gateway.observe.series import PAIR, Counter


class Seen(Group):
    def __init__(self, known):
        self.seen = Counter("interlock_answers_seen_total", "Answers.", PAIR)
        super().__init__("Seen", [self.seen], {Finished: lambda pair, event: self.seen.add(pair)})

    def starts(self, served, engine):
        yield self.seen, [(served.model, engine)]


GROUP = Seen
"""
ENGINE_FAILURES = {"unreachable", "refused", "broke", "connect", "headers", "first_token", "between_tokens", "internal"}
REASONS = ENGINE_FAILURES | {*EXCUSED}
SERVED = [Served("m", ("a", "b"), ("hermes",)), Served("n", ("c",), ("plain",))]
CHECKS: Mapping[str, Mapping[CheckName, bool]] = {"m": {"template": True, "stop": False}}
EXPECTED = Forecast(100, 60, 0.2, Terms(prefill_s=0.2), unit_tokens=4.0)


def made(clock_s: Callable[[], float] = lambda: 0.0, *, registry: Registry | None = None) -> Metrics:
    fleet_ = registry if registry is not None else fleet("a", "b")
    return metrics_of(
        SERVED,
        lambda known: Health(known, fleet_, CHECKS),
        lambda known: Load(known, fleet_),
        lambda _: RoutingTruth(),
        clock_s=clock_s,
    )


async def test_a_gateway_has_exactly_these_metrics() -> None:
    async with ScriptedEngine().running() as engine, serving(settings_for(engine.url), gpu_metrics=engine.url) as served:
        families = [family for group in served.gateway.metrics.groups for family in group.families]
        assert {each.name: set(each.labels) for each in families} == LABELS
        await served.chat()
        text = (await served.client.get(f"{served.admin_url}/metrics")).text
    assert set(re.findall(r"^\| `(interlock_\w+)` \|", DOCS.read_text(), re.MULTILINE)) == LABELS.keys()
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")} == {each.name for each in families}
    labels: dict[str, set[str]] = {}
    for shown in parse_text(text):
        assert shown.documentation
        for sample in shown.samples:
            name = sample.name
            if shown.type == "histogram":
                name = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
            labels.setdefault(name, set()).update(set(sample.labels) - {"le"})
    assert labels == {name: LABELS[name] for name in labels}


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("interlock_requests_total", {"dialect": "openai_chat", "outcome": "ok"}, 1),
        ("interlock_requests_total", {"dialect": "openai_chat", "outcome": "drained"}, 0),
        ("interlock_prompt_tokens_total", {}, 100),
        ("interlock_completion_tokens_total", {}, 20),
        ("interlock_cached_prompt_tokens_total", {}, 60),
        ("interlock_tool_calls_total", {"format": "hermes"}, 2),
        ("interlock_requests_with_tools_total", {"format": "hermes"}, 1),
        ("interlock_parse_failures_total", {"format": "hermes", "kind": "invalid_json"}, 1),
        ("interlock_parse_failures_total", {"format": "hermes", "kind": "stray_marker"}, 4),
        ("interlock_parse_failures_total", {"format": "hermes", "kind": "stop_leak"}, 0),
        ("interlock_request_duration_seconds_sum", {}, 1.2),
        ("interlock_request_duration_seconds_bucket", {"le": "1.0"}, 0),
        ("interlock_request_duration_seconds_bucket", {"le": "1.5"}, 1),
        ("interlock_time_to_first_token_seconds_bucket", {"le": "0.04"}, 0),
        ("interlock_time_to_first_token_seconds_bucket", {"le": "0.06"}, 1),
        ("interlock_client_stall_seconds_sum", {}, 0.03),
        ("interlock_inter_token_latency_seconds_count", {}, 19),
        ("interlock_inter_token_latency_seconds_sum", {}, 0.0015 * 3 + 0.02 * 16),
        ("interlock_inter_token_latency_seconds_bucket", {"le": "0.001"}, 0),
        ("interlock_inter_token_latency_seconds_bucket", {"le": "0.002"}, 3),
        ("interlock_inter_token_latency_seconds_bucket", {"le": "0.01"}, 3),
        ("interlock_inter_token_latency_seconds_bucket", {"le": "0.025"}, 19),
        ("interlock_inter_token_latency_seconds_bucket", {"le": "+Inf"}, 19),
    ],
)
def test_one_request_is_counted(name: str, labels: dict[str, str], expected: float) -> None:
    metrics = made()
    metrics(MADE)
    metrics(DONE)
    assert value(metrics, name, model="m", engine="a", **labels) == pytest.approx(expected)


def test_a_value_on_a_bound_is_in_that_bucket() -> None:
    metrics = made()
    metrics(replace(MADE, ttft_s=0.005))
    name = "interlock_time_to_first_token_seconds_bucket"
    assert value(metrics, name, model="m", engine="a", le="0.001") == 0
    assert value(metrics, name, model="m", engine="a", le="0.005") == 1


def test_a_failure_before_routing_counts_as_a_request_but_measures_no_engine() -> None:
    metrics = made()
    metrics(replace(DONE, model="unknown", engine="none", format="none", outcome="client_error", reason="model_not_found"))
    failed = {"model": "unknown", "outcome": "client_error"}
    assert value(metrics, "interlock_requests_total", engine="none", dialect="openai_chat", **failed) == 1
    assert value(metrics, "interlock_request_failures_total", reason="model_not_found", **failed) == 1
    assert value(metrics, "interlock_time_to_first_token_seconds_count", model="unknown", engine="none") is None
    assert value(metrics, "interlock_prompt_tokens_total", model="unknown", engine="none") is None


def test_a_request_without_tokens_has_no_first_token() -> None:
    metrics = made()
    metrics(replace(DONE, outcome="timeout", reason="first_token", ttft_s=None, with_tools=False))
    assert value(metrics, "interlock_requests_with_tools_total", model="m", engine="a", format="hermes") == 0
    assert value(metrics, "interlock_time_to_first_token_seconds_count", model="m", engine="a") is None
    assert value(metrics, "interlock_request_failures_total", model="m", outcome="timeout", reason="first_token") == 1


def test_series_of_served_models_exist_from_the_start_at_zero() -> None:
    series = read(made())
    said = ("interlock_model_check", "interlock_build_info")
    assert {value for (name, _), value in series.items() if name not in said} == {0.0}
    for model, engine in (("m", "a"), ("m", "b"), ("n", "c")):
        pair = {"model": model, "engine": engine}
        form = "hermes" if model == "m" else "plain"
        for outcome in get_args(Outcome):
            labels = pair | {"dialect": "openai_chat", "outcome": outcome}
            assert ("interlock_requests_total", frozenset(labels.items())) in series
        for kind in get_args(FailureKind):
            labels = pair | {"format": form, "kind": kind}
            assert ("interlock_parse_failures_total", frozenset(labels.items())) in series
        for name in ("interlock_inflight_requests", "interlock_prompt_tokens_total", "interlock_attempts_total"):
            assert (name, frozenset(pair.items())) in series
        assert ("interlock_attempt_failures_total", frozenset((pair | {"reason": "broke"}).items())) in series
        for stopped in get_args(Stopped):
            assert ("interlock_retries_refused_total", frozenset({"model": model, "reason": stopped}.items())) in series
    assert not [name for name, _ in series if name.endswith("_bucket")]


def test_what_fails_before_an_engine_is_asked_is_counted_from_zero() -> None:
    metrics = made()
    series = {name: value for name, value in read(metrics).items() if value == 0}
    unserved = {"engine": "none", "dialect": "openai_chat", "outcome": "rejected"}
    for model in ("m", "n", "unknown"):
        assert ("interlock_requests_total", frozenset({"model": model, **unserved}.items())) in series
    assert ("interlock_requests_total", frozenset({"model": "m", **unserved, "outcome": "ok"}.items())) not in series
    metrics(replace(DONE, engine="none", outcome="rejected", reason="queue_full"))
    metrics(replace(DONE, model="unknown", engine="none", outcome="client_error", reason="model_not_found"))
    names = ("interlock_requests_total", "interlock_request_failures_total")
    grown = {name: value for name, value in read(metrics).items() if name[0] in names and value}
    assert len(grown) == 4
    assert grown.keys() <= series.keys()


def every(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from every(each)


def test_every_word_of_an_error_that_ends_a_request_is_known_from_the_start() -> None:
    """But those of pages and of what no error is made of: no request for an answer ends in them."""
    told = {dict(labels)["reason"] for name, labels in read(made()) if name == "interlock_request_failures_total"}
    words = {each.reason for each in every(GatewayError)} | {*get_args(RejectReason), *get_args(TimeoutStage)}
    assert words - told == {"unknown_url", "foreign_site", "engine"}
    assert "other" not in told


def test_many_pairs_do_not_multiply_by_every_kind_at_the_start() -> None:
    metrics = metrics_of([Served(f"m{n}", ("a",), ("hermes",)) for n in range(60)])
    series = read(metrics)
    assert 0 < sum(name == "interlock_parse_failures_total" for name, _ in series) <= 1000
    assert sum(name == "interlock_tool_calls_total" for name, _ in series) == 60
    metrics(replace(MADE, model="m7"))
    labels = {"model": "m7", "engine": "a", "format": "hermes", "kind": "invalid_json"}
    assert value(metrics, "interlock_parse_failures_total", **labels) == 1


def test_no_client_and_no_engine_makes_series() -> None:
    metrics = made()
    metrics(MADE)
    metrics(DONE)
    before = len(read(metrics))
    for number in range(2_000):
        word = f'evil{number}\n{{}}"\u2028'
        metrics(AttemptStarted(word, 1, engine=word, model=word, at_s=0.0, why=word))
        metrics(Prefilled(word, 1, word, word, 0.1, EXPECTED))
        metrics(CacheTold(word, 1, word, word, 50, EXPECTED))
        unheard = Made(failures={word: 1})  # type: ignore[dict-item]  # a kind that there is not
        metrics(replace(MADE, request_id=word, model=word, engine=word, format=word, made=unheard))
        metrics(AttemptFailed(word, 1, engine=word, reason=word, model=word))
        metrics(NotRetried(word, 1, why=word, model=word))
        metrics(
            replace(DONE, request_id=word, model=word, engine=word, format=word, dialect=word, outcome="rejected", reason=word)
        )
        metrics.engine_info(word, "vllm", "1", word)
    series = read(metrics)
    reasons = {dict(labels)["reason"] for name, labels in series if name == "interlock_request_failures_total"}
    assert "other" in reasons
    assert not [word for word in reasons if word.startswith("evil")]
    failed = {dict(labels)["reason"] for name, labels in series if name == "interlock_attempt_failures_total"}
    assert failed == {*REASONS, "other"}
    assert "other" in failed
    assert len(series) - before - len(reasons) - len(failed) <= 180  # one set of series for `other`
    other = {"model": "other", "engine": "other", "dialect": "other", "outcome": "rejected"}
    assert value(metrics, "interlock_requests_total", **other) == 2_000


def test_negative_counts_of_an_engine_do_not_lower_a_counter() -> None:
    metrics = made()
    metrics(MADE)
    metrics(replace(MADE, made=Made(Usage(-5, -5, -5)), prompt_tokens=-5, cached_tokens=-5))
    assert value(metrics, "interlock_prompt_tokens_total", model="m", engine="a") == 100


def test_in_flight_follows_the_attempts() -> None:
    registry = fleet("a", "b")
    metrics, inflight = made(registry=registry), registry.running

    def running(engine: str) -> float | None:
        return value(metrics, "interlock_inflight_requests", model="m", engine=engine)

    inflight.apply(AttemptStarted("r", 1, engine="a", model="m", at_s=0.0))
    assert (running("a"), running("b")) == (1, 0)
    inflight.apply(AttemptFailed("r", 1, engine="a", reason="broke"))
    inflight.apply(AttemptStarted("r", 2, engine="b", model="m", at_s=0.0))
    assert (running("a"), running("b")) == (0, 1)
    inflight.apply(DONE)
    assert (running("a"), running("b")) == (0, 0)


def test_engine_info_holds_one_version_and_only_printable_text() -> None:
    metrics = made()
    metrics.engine_info("a", "vllm", "0.32.0", "m")
    metrics.engine_info("a", "vllm", "0.33.0\n\x1b[31m" + "x" * 5000, "m")
    metrics.engine_info("c", "llamacpp", None, "n")
    versions = {dict(labels)["version"] for name, labels in read(metrics) if name == "interlock_engine_info"}
    assert versions == {"0.33.0[31m" + "x" * 52, "unknown"}


def test_both_exposition_formats_say_the_same() -> None:
    metrics = made()
    metrics(DONE)
    metrics.engine_info("a", "vllm", "0.33.0", "m")
    content_type, body = metrics.copied()("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type == OPENMETRICS_TYPE
    assert metrics.copied()("text/plain")[0] == TEXT_TYPE
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]  # not typed
    samples = [s for family in families for s in family.samples]
    assert {(s.name, frozenset(s.labels.items())): s.value for s in samples} == read(metrics)


def test_a_long_answer_costs_a_few_milliseconds() -> None:
    metrics = made()
    long = replace(MADE, inter_token_s=tuple(itertools.repeat((0.0123, 1), 10_000)))
    best_s = min(repeat(lambda: metrics(long), number=1, repeat=7))
    assert best_s < 0.02, f"{best_s * 1e3:.2f} ms"


VLLM: Mapping[str, tuple[float, ...]] = {  # of its 0.33
    "time_to_first_token": (*(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1), *LONG, 10, 20, 40, 80, 160, 640, 2560),
    "inter_token_latency": PER_TOKEN,
    "time_per_output_token": PER_TOKEN,
    "request_duration": LATENCY,
    "queue_wait": LATENCY,
}


@pytest.mark.parametrize("name", VLLM)
def test_panels_of_ours_and_of_vllm_overlay(name: str) -> None:
    families = [family for group in made().groups for family in group.families]
    (histogram,) = (each for each in families if isinstance(each, Histogram) and each.name == f"interlock_{name}_seconds")
    ours, theirs = histogram.bounds, VLLM[name]
    assert ours[len(ours) - len(theirs) :] == theirs, "ours may be finer below"


def test_a_new_metric_is_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extra.py").write_text(EXTRA)
    monkeypatch.setattr(groups, "__path__", [*groups.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"{groups.__name__}.extra", raising=False)
    metrics = made()
    labels = {"model": "m", "engine": "a"}
    assert value(metrics, "interlock_answers_seen_total", **labels) == 0
    metrics(DONE)
    assert value(metrics, "interlock_answers_seen_total", **labels) == 1
    monkeypatch.delitem(sys.modules, f"{groups.__name__}.extra")


def test_what_a_model_was_checked_for_is_shown_and_nothing_of_one_that_was_not() -> None:
    metrics = made()
    assert value(metrics, "interlock_model_check", model="m", test="template") == 1
    assert value(metrics, "interlock_model_check", model="m", test="stop") == 0
    assert value(metrics, "interlock_model_check", model="n", test="template") is None


def test_an_engine_that_joins_has_its_series_and_one_that_left_keeps_them_for_a_while() -> None:
    metrics = made()
    metrics.joined("m", "new@10.0.0.1")
    labels = {"model": "m", "engine": "new@10.0.0.1"}
    assert value(metrics, "interlock_inflight_requests", **labels) == 0
    assert value(metrics, "interlock_prompt_tokens_total", **labels) is None  # it never answered
    metrics.engine_info("new@10.0.0.1", "vllm", "0.33.0", "m")
    assert value(metrics, "interlock_prompt_tokens_total", **labels) == 0
    assert value(metrics, "interlock_attempts_total", **labels) == 0
    metrics.left("m", "new@10.0.0.1")
    metrics(replace(MADE, engine="new@10.0.0.1"))  # it ended as the engine left
    assert value(metrics, "interlock_prompt_tokens_total", **labels) == 100
    assert value(metrics, "interlock_inflight_requests", **labels) is None
    assert value(metrics, "interlock_engine_info", kind="vllm", version="0.33.0", **labels) is None
    metrics.engine_info("new@10.0.0.1", "vllm", "0.33.0", "m")  # a probe that ends late
    assert value(metrics, "interlock_engine_info", kind="vllm", version="0.33.0", **labels) is None
    metrics.joined("m", "new@10.0.0.1")
    assert value(metrics, "interlock_prompt_tokens_total", **labels) == 100


def test_an_engine_that_left_before_it_was_ready_begins_at_zero_when_it_is_back() -> None:
    metrics = made()
    for leaves in (True, False):
        metrics.joined("m", "new")
        if leaves:
            metrics.left("m", "new")
    assert value(metrics, "interlock_attempts_total", model="m", engine="new") is None
    metrics.engine_info("new", "vllm", "0.33.0", "m")
    assert value(metrics, "interlock_attempts_total", model="m", engine="new") == 0


def test_engines_that_come_and_go_for_ever_do_not_make_series_for_ever() -> None:
    metrics = made()
    sizes = []
    for number in range(900):
        metrics.joined("m", f"e@{number}")
        metrics(AttemptStarted("r", 1, engine=f"e@{number}", model="m", at_s=0.0))
        metrics.left("m", f"e@{number}")
        if number % 300 == 299:
            sizes.append(sum(name == "interlock_prompt_tokens_total" for name, _ in read(metrics)))
    assert sizes == [16 + 3] * 3
    metrics(replace(MADE, engine="e@0"))
    assert value(metrics, "interlock_prompt_tokens_total", model="m", engine="other") == 100
    assert value(metrics, "interlock_prompt_tokens_total", model="m", engine="a") == 0


def test_an_engine_that_left_is_shown_for_some_minutes_only() -> None:
    now_s = 0.0
    metrics = made(lambda: now_s)
    for engine in ("early", "late"):
        metrics.joined("m", engine)
        metrics(replace(DONE, engine=engine))
    metrics.left("m", "early")
    now_s = 200
    metrics.left("m", "late")
    now_s = 299
    shown = {dict(labels).get("engine") for _, labels in read(metrics)}
    assert {"early", "late"} <= shown
    now_s = 301
    shown = {dict(labels).get("engine") for _, labels in read(metrics)}
    assert "early" not in shown
    assert "late" in shown


def test_an_engine_that_goes_to_another_model_keeps_its_name_and_loses_its_old_counts() -> None:
    now_s = 0.0
    metrics = made(lambda: now_s)
    metrics(MADE)
    metrics.left("m", "a")
    metrics.joined("n", "a")
    metrics(replace(MADE, model="n", format="plain"))
    now_s = 301
    assert value(metrics, "interlock_prompt_tokens_total", model="m", engine="a") is None
    assert value(metrics, "interlock_prompt_tokens_total", model="n", engine="a") == 100
    metrics(replace(MADE, model="n", format="plain"))
    assert value(metrics, "interlock_prompt_tokens_total", model="n", engine="a") == 200


def test_an_engine_whose_failures_others_make_good_is_seen() -> None:
    metrics = made()
    for number in range(3):
        request = f"r{number}"
        metrics(AttemptStarted(request, 1, engine="a", model="m", at_s=0.0))
        metrics(AttemptFailed(request, 1, engine="a", reason="broke", model="m"))
        why = "resume" if number == 2 else "elsewhere"
        metrics(AttemptStarted(request, 2, engine="b", model="m", at_s=0.0, why=why, retry=True))
        metrics(replace(DONE, request_id=request, engine="b", attempts=2, retries=1, resumes=int(number == 2)))
    metrics(AttemptStarted("r3", 1, engine="a", model="m", at_s=0.0))
    metrics(AttemptFailed("r3", 1, engine="a", reason="schema_miss", model="m"))
    metrics(NotRetried("r3", 1, why="budget", model="m"))
    series = {
        ("attempts", "a"): value(metrics, "interlock_attempts_total", model="m", engine="a"),
        ("attempts", "b"): value(metrics, "interlock_attempts_total", model="m", engine="b"),
        ("broke", "a"): value(metrics, "interlock_attempt_failures_total", model="m", engine="a", reason="broke"),
        ("missed", "a"): value(metrics, "interlock_attempt_failures_total", model="m", engine="a", reason="schema_miss"),
        ("broke", "b"): value(metrics, "interlock_attempt_failures_total", model="m", engine="b", reason="broke"),
        ("retries", ""): value(metrics, "interlock_retries_total", model="m"),
        ("resumes", ""): value(metrics, "interlock_resumes_total", model="m"),
        ("refused", "budget"): value(metrics, "interlock_retries_refused_total", model="m", reason="budget"),
        ("refused", "poison"): value(metrics, "interlock_retries_refused_total", model="m", reason="poison"),
    }
    assert list(series.values()) == [4, 3, 3, 1, 0, 3, 1, 1, 0]


def test_a_copy_is_of_its_moment() -> None:
    metrics = made()
    metrics(DONE)
    before, write = metrics.copied()(""), metrics.copied()
    metrics(DONE)
    assert write("") == before != metrics.copied()("")


@pytest.mark.parametrize(("present", "gone"), [(17, 0), (9, 256)])
def test_what_a_scrape_takes_from_the_loop_is_little_whatever_engines_there_were(present: int, gone: int) -> None:
    metrics = made()
    for number in range(gone + present):
        metrics.joined("m", f"e{number}")
        metrics(replace(DONE, engine=f"e{number}"))
        if number < gone:
            metrics.left("m", f"e{number}")
    best_s = min(repeat(metrics.copied, number=1, repeat=7))
    assert best_s < 0.01, f"{best_s * 1e3:.2f} ms"
    assert len(read(metrics)) < 6_000
