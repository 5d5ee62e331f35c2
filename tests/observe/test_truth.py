"""What the router believed beside what came, as metrics of the events, and the line of the log that says that it is wrong."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families as parse_text
from structlog.testing import capture_logs
from support.metrics import metrics_of
from support.wiring import fleet

from gateway.events import AttemptStarted, CacheTold, Prefilled
from gateway.observe.drift import Result, State
from gateway.observe.explain import AttemptStory, Considered, Expected
from gateway.observe.group import Served
from gateway.observe.health import Health
from gateway.observe.metrics import Metrics
from gateway.observe.truth import RoutingTruth
from gateway.routing.policy import Why
from gateway.routing.view import Belief, Forecast, Terms
from gateway.server.admin import CacheEntry

EXPECTED = Forecast(10_000, 9_000, 0.2, Terms(prefill_s=0.2))
METRIC = re.compile(r"interlock_[a-z_]+")
DOCS = Path(__file__).parents[2] / "docs"
DRIFT = "interlock_cache_prediction_drift"


def made(clock: list[float] | None = None) -> tuple[Metrics, RoutingTruth]:
    now = clock if clock is not None else [0.0]
    served = [Served("m", ("a", "b"), ("hermes",))]
    truth = RoutingTruth()
    return metrics_of(served, lambda _: truth, lambda known: Health(known, fleet(), {}), clock_s=lambda: now[0]), truth


def value(metrics: Metrics, name: str, engine: str = "a", **labels: str) -> float | None:
    wanted = {"model": "m", "engine": engine, **labels}
    families = parse_text(metrics.copied()("")[1].decode())
    return next((s.value for family in families for s in family.samples if s.name == name and s.labels == wanted), None)


def told(metrics: Metrics, cached: int | None, times: int = 1, engine: str = "a", **changed: Any) -> None:
    for _ in range(times):
        metrics(CacheTold("r", 1, engine, "m", cached, replace(EXPECTED, **changed)))


def test_both_sums_are_of_the_same_attempts() -> None:
    metrics, _ = made()
    told(metrics, None, 5)  # it has not said anything yet: of neither
    assert value(metrics, "interlock_predicted_cached_prompt_tokens_total") == 0
    told(metrics, 9_010)
    told(metrics, None)  # nothing, now
    told(metrics, 3_000, cached_tokens=1_000)
    told(metrics, 7, engine="b")
    assert value(metrics, "interlock_predicted_cached_prompt_tokens_total") == 9_000 + 9_000 + 1_000
    assert value(metrics, "interlock_compared_cached_prompt_tokens_total") == 9_010 + 0 + 3_000
    counts = {each: value(metrics, "interlock_cache_predictions_total", result=each) for each in ("right", "over", "under")}
    assert counts == {"right": 1, "over": 1, "under": 1}
    name = "interlock_cache_prediction_error_ratio"
    assert value(metrics, f"{name}_count") == 3
    assert value(metrics, f"{name}_sum") == pytest.approx(0.001 + 0.9 + 0.2)
    assert [value(metrics, f"{name}_bucket", le=le) for le in ("0.0", "0.01", "0.1", "0.25", "1.0")] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("took_s", "predicted_s", "bucket", "before"),
    [(0.2, 0.2, "1.0", "0.8"), (0.25, 0.2, "1.25", "1.0"), (0.002, 0.0, "2.5", "1.5625"), (0.02, 0.2, "0.1", None)],
)
def test_the_time_is_told_by_the_predicted_one(took_s: float, predicted_s: float, bucket: str, before: str | None) -> None:
    metrics, _ = made()
    metrics(Prefilled("r", 1, "a", "m", took_s, replace(EXPECTED, ttft_s=predicted_s)))
    metrics(Prefilled("r", 2, "a", "m", took_s))  # nothing was predicted
    name = "interlock_predicted_ttft_ratio"
    assert value(metrics, f"{name}_count") == 1
    assert value(metrics, f"{name}_bucket", le=bucket) == 1
    if before is not None:
        assert value(metrics, f"{name}_bucket", le=before) == 0


def test_decisions_are_counted_by_their_reason_of_a_closed_set() -> None:
    metrics, _ = made()
    whys = [why for why in get_args(Why) if why not in ("none", "hold")]
    assert [value(metrics, "interlock_route_decisions_total", reason=why) for why in whys] == [0] * len(whys)
    for why in (*whys, "cheapest", "something else", ""):
        metrics(AttemptStarted("r", 1, "a", "m", 0.0, why))
    found = {why: value(metrics, "interlock_route_decisions_total", reason=why) for why in (*whys, "other")}
    assert found == {**dict.fromkeys(whys, 1), "cheapest": 2, "other": 2}


def test_the_alarm_is_one_line_with_names_sums_and_causes_and_its_end_another() -> None:
    metrics, truth = made()
    with capture_logs() as logs:
        told(metrics, None, 100, engine="b")
        told(metrics, 8_990)
        assert value(metrics, DRIFT) == 0
        told(metrics, None, 40)
        assert value(metrics, DRIFT) == 1
        assert value(metrics, DRIFT, engine="b") is None  # it never told
        told(metrics, 9_000, 300)
    assert value(metrics, DRIFT) == 0
    began, ended = logs
    assert (began["log_level"], began["model"], began["engine"]) == ("warning", "m", "a")
    assert began["predicted_cached_tokens"] == pytest.approx(9_000 * 10, rel=0.1)
    assert began["reported_cached_tokens"] == pytest.approx(8_990, rel=0.2)
    for cause in ("template", "tokenizer", "salt", "cache is off", "restarted", "other clients"):
        assert cause in began["likely"], cause
    assert (ended["log_level"], ended["model"], ended["engine"]) == ("info", "m", "a")
    assert truth.of("m", "a").state == "as_predicted"
    assert truth.of("m", "b").state == truth.of("m", "never").state == "not_told"


def test_what_was_learned_of_an_engine_goes_with_it() -> None:
    now = [0.0]
    metrics, truth = made(now)
    metrics.joined("m", "new")
    with capture_logs():
        told(metrics, 9_000, engine="new")
        told(metrics, 0, 20, engine="new")
    metrics.left("m", "new")
    assert truth.of("m", "new").alarm
    now[0] = 301.0
    assert value(metrics, DRIFT, engine="new") is None
    assert truth.of("m", "new").state == "not_told"


def test_what_the_documents_name_is_there_and_what_is_there_is_named() -> None:
    routing, admin = (DOCS / "routing.md").read_text(), (DOCS / "admin.md").read_text()
    metrics, truth = made()
    told(metrics, 9_000)
    metrics(Prefilled("r", 1, "a", "m", 0.1, EXPECTED))
    families = {family.name for family in parse_text(metrics.copied()("")[1].decode())}
    named = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_total") for name in set(METRIC.findall(routing))}
    assert named <= families, named - families
    shown = {each.name.removesuffix("_total") for each in truth.families}
    assert shown <= named
    words = [*get_args(Result), *(why for why in get_args(Why) if why not in ("none", "hold")), *get_args(State)]
    shapes = (Belief, CacheEntry, Expected, Considered, AttemptStory)
    names = {each.name for shape in shapes for each in fields(shape)} - {"id"}
    assert [word for word in {*words, *names} if f"`{word}`" not in admin] == []
