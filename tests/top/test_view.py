"""What a window shows, and what of it is wrong."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.scrapes import ENGINE, UP, buckets, ended, scrape

from gateway.top.troubles import Trouble
from gateway.top.view import MOST_ROWS, View, view_of
from gateway.top.window import History

NAMING = "a name of engines cannot be resolved; what it said before stays"
LOST = ("warning", None, None, "3 records of the capture were dropped")


def after(seconds: float = 10.0, before: Mapping[str, float] | None = None, **changed: Any) -> View:
    """The view of a window. `changed`: samples of the one engine, `more` those of others."""
    more = changed.pop("more", {})
    history = History(60)
    history.add(scrape(0.0, {**UP, **(before or {})}))
    return view_of(history.add(scrape(seconds, {**UP, **more}, **changed)))


def wrong(view: View) -> list[tuple[str, str | None, str | None, str]]:
    return [(each.severity, each.model, each.engine, each.what) for each in view.troubles]


def test_all_is_well() -> None:
    more = {
        ended("ok"): 20,
        f"interlock_completion_tokens_total{{{ENGINE}}}": 400,
        **buckets("time_to_first_token_seconds", _1=20, inf=20),
    }
    view = after(more=more, prompt_tokens_total=200, cached_prompt_tokens_total=50)
    assert view.troubles == ()
    assert (view.window_s, view.left_out, view.restarted) == (10, 0, False)
    gateway, (model,), (engine,) = view.gateway, view.models, view.engines
    for row in (gateway, model, engine):
        assert (row.requests_per_s, row.output_tokens_per_s, row.running, row.ttft_p50_s) == (2, 40, 3, 0.5)
    assert (model.engines, model.engines_up, model.waiting, model.failed, model.failed_share) == (1, 1, 0, 0, 0)
    assert (engine.state, engine.cached_share, model.cached_share) == ("up", 0.25, 0.25)


def test_what_is_not_told_is_not_known() -> None:
    view = after()
    (engine,), (model,) = view.engines, view.models
    unknown = (
        "kind",
        "version",
        "engine_running",
        "engine_waiting",
        "kv_usage",
        "failed",
        "failed_share",
        "ttft_p50_s",
        "cached_share",
    )
    assert {getattr(engine, name) for name in (*unknown, "restarts", "drifts")} == {None}
    assert {getattr(model, name) for name in ("failed_share", "queue_wait_p95_s", "inter_token_p50_s", "parse_failures")} == {
        None
    }
    assert {getattr(view.gateway, name) for name in ("version", "fill", "pressure", "loop_lag_s", "ttft_p95_s")} == {None}


def test_the_first_scrape_shows_what_is_of_now_alone() -> None:
    view = view_of(
        History(60).add(
            scrape(0.0, {**UP, ended("ok"): 7, 'interlock_request_failures_total{model="m",outcome="timeout",reason="total"}': 2})
        )
    )
    assert view.window_s is None
    assert (view.gateway.running, view.gateway.requests_per_s, view.models[0].failed, view.engines[0].state) == (
        3,
        None,
        None,
        "up",
    )
    assert (view.failures[0].recent, view.failures[0].total) == (None, 2)


@pytest.mark.parametrize(
    ("changed", "state", "trouble"),
    [
        ({"engine_up": 0}, "down", "down"),
        ({"engine_breaker_state": 1}, "breaker open", "gets no requests: its last ones failed"),
        ({"engine_breaker_state": 1, "engine_up": 0}, "down", "down"),
        ({"engine_tokenizer_mismatch": 1}, "other tokenizer", "out of service: its tokenizer is not the model's"),
    ],
)
def test_an_engine_that_gets_no_requests_is_the_worst(changed: dict[str, Any], state: str, trouble: str) -> None:
    view = after(more={}, **changed)
    assert view.engines[0].state == state
    assert wrong(view) == [("critical", "m", None, "no engine can serve it"), ("critical", "m", "e", trouble)]
    assert view.models[0].engines_up == 0


def test_an_engine_that_is_tried_serves() -> None:
    view = after(engine_breaker_state=2)
    assert (view.models[0].engines_up, view.engines[0].state) == (1, "trying")
    assert wrong(view) == [("warning", "m", "e", "failed of late: one request tries it")]
    assert after(engine_breaker_state=9).engines[0].state == "unknown"


def test_failures_are_told_with_their_reasons() -> None:
    failures = {
        f'interlock_request_failures_total{{model="m",outcome="{o}",reason="{r}"}}': n
        for o, r, n in [("timeout", "first_token", 3.0), ("upstream_error", "broke", 1.0), ("client_error", "invalid_value", 9.0)]
    }
    view = after(more={ended("ok"): 91, ended("client_error"): 9, ended("timeout"): 3, ended("upstream_error"): 1, **failures})
    assert view.models[0].failed == 4
    assert view.models[0].failed_share == pytest.approx(4 / 104)
    assert wrong(view) == [("warning", "m", None, "4% of its requests fail: timeout first_token ×3, upstream_error broke ×1")]
    assert [(row.reason, row.recent, row.total) for row in view.failures] == [
        ("invalid_value", 9, 9),
        ("first_token", 3, 3),
        ("broke", 1, 1),
    ]
    many = after(more={ended("ok"): 10, ended("rejected"): 10})
    assert wrong(many) == [("critical", "m", None, "50% of its requests fail")]
    few = after(more={ended("ok"): 1000, ended("timeout"): 1})
    assert wrong(few) == [("warning", "m", None, "under 1% of its requests fail")]


def test_attempts_that_fail_are_their_engine_s() -> None:
    reasons = {
        f'interlock_attempt_failures_total{{{ENGINE},reason="{r}"}}': n
        for r, n in [("broke", 2.0), ("headers", 1.0), ("refused", 0.0)]
    }
    view = after(more=reasons, attempts_total=30)
    assert (view.engines[0].failed, view.engines[0].failed_share) == (3, 0.1)
    assert wrong(view) == [("warning", "m", "e", "10% of its attempts fail: broke ×2, headers ×1")]


def test_faults_in_the_output_are_counted_by_kind() -> None:
    kinds = {
        f'interlock_parse_failures_total{{{ENGINE},format="hermes",kind="{k}"}}': n
        for k, n in [("invalid_json", 5.0), ("stop_leak", 1.0), ("bad_header", 0.0)]
    }
    view = after(before={name: 1.0 for name in kinds if "stop_leak" in name}, more=kinds)
    assert wrong(view) == [("warning", "m", None, "faults in its output: invalid_json ×5")]
    assert [(row.kind, row.recent, row.total) for row in view.parse_failures] == [("invalid_json", 5, 5), ("stop_leak", 0, 1)]


@pytest.mark.parametrize(
    ("more", "trouble"),
    [
        ({"interlock_queue_fill": 0.5}, None),
        ({"interlock_queue_fill": 0.9}, ("warning", None, None, "the queue is 90% full")),
        ({"interlock_queue_fill": 1}, ("critical", None, None, "the queue is 100% full")),
        ({"interlock_pressure": 1.2}, ("critical", None, None, "at 120% of the limits of requests or lateness")),
        ({"interlock_event_loop_lag_max_seconds": 0.5}, ("warning", None, None, "the event loop was 0.5 s late")),
        ({'interlock_config_reload_failed{origin="dns"}': 1}, ("warning", None, None, NAMING)),
        ({'interlock_config_reload_failed{origin="dns"}': 0}, None),
        ({'interlock_capture_dropped_total{reason="queue_full"}': 3}, LOST),
        ({f"interlock_engine_restarts_total{{{ENGINE}}}": 1}, ("warning", "m", "e", "was started again")),
        ({f"interlock_cache_prediction_drift{{{ENGINE}}}": 1}, ("warning", "m", "e", "its cache is not as the router believes")),
        ({'interlock_model_check{model="m",test="stop"}': 0, 'interlock_model_check{model="m",test="template"}': 1},
         ("critical", "m", None, "not served: its check failed (stop)")),
    ],
)  # fmt: skip
def test_what_else_can_be_wrong(more: dict[str, float], trouble: tuple[str, str | None, str | None, str] | None) -> None:
    assert wrong(after(more=more)) == ([trouble] if trouble is not None else [])


def test_the_worst_comes_first() -> None:
    view = after(more={"interlock_queue_fill": 0.9}, engine_up=0)
    assert [each.severity for each in view.troubles] == ["critical", "critical", "warning"]
    assert view.troubles[0] == Trouble("critical", "m", None, "no engine can serve it")


def test_however_many_engines_there_are_the_view_is_bounded() -> None:
    many = {f'interlock_engine_up{{model="m",engine="{number}"}}': 0.0 for number in range(2500)}
    view = view_of(History(60).add(scrape(0.0, many)))
    assert (len(view.engines), view.left_out, len(view.troubles)) == (MOST_ROWS, 1500, 100)
