"""What happened between two scrapes, as Prometheus would say it; and that nothing is of two lives of a gateway."""

import math
import random
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.scrapes import ENGINE, buckets, ended, scrape
from support.services import program

from gateway.top.window import History, quantile

INF = math.inf


@pytest.mark.parametrize(
    ("share", "pairs", "is_"),
    [
        (0.5, [(1.0, 10.0), (2.0, 20.0), (INF, 20.0)], 1.0),
        (0.75, [(1.0, 10.0), (2.0, 20.0), (INF, 20.0)], 1.5),
        (0.5, [(1.0, 4.0), (INF, 4.0)], 0.5),  # the lowest bucket begins at 0
        (0.95, [(1.0, 1.0), (2.0, 2.0), (INF, 10.0)], 2.0),  # one beyond all bounds counts as the highest
        (0.5, [(0.0, 4.0), (1.0, 4.0), (INF, 4.0)], 0.0),
        (0.5, [(1.0, 4.0), (2.0, 3.0), (INF, 8.0)], 1.0),  # read while it was added to
        (0.5, [(1.0, 0.0), (INF, 0.0)], None),
        (0.5, [(1.0, 5.0), (2.0, 5.0)], None),  # not all of it
        (0.5, [(INF, 5.0)], None),
        (0.5, [], None),
    ],
)
def test_quantiles(share: float, pairs: list[tuple[float, float]], is_: float | None) -> None:
    assert quantile(share, pairs) == is_
    assert quantile(share, pairs[::-1]) == is_


def test_prometheus_computes_the_same_quantiles(tmp_path: Path) -> None:
    """Its own tool evaluates `histogram_quantile` on the same buckets."""
    chance = random.Random(8)
    bounds = (0.001, 0.005, 0.1, 0.25, 1, 2.5, 10)
    series, checks = [], []
    for case in range(30):
        count, pairs = 0, []
        for bound in (*bounds, INF):
            count += chance.choice([0, 0, 1, 3, 50])
            pairs.append((float(bound), float(count)))
        series += [{"series": f'b{{case="{case}",le="{"+Inf" if b == INF else b}"}}', "values": f"{n:.0f}"} for b, n in pairs]
        for share in (0.01, 0.5, 0.95, 1.0):
            ours = quantile(share, pairs)
            theirs = f'histogram_quantile({share}, b{{case="{case}"}})'
            same = f"{theirs} != {theirs}" if ours is None else f"abs({theirs} - {ours!r}) <= 1e-12"
            checks.append({"expr": f"count({same})", "eval_time": 0, "exp_samples": [{"labels": "{}", "value": 1}]})
    (tmp_path / "rules.yml").write_text("groups: []\n")
    tests = {"rule_files": ["rules.yml"], "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}]}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    command = [program("promtool"), "test", "rules", "tests.yml"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_nothing_is_known_of_a_window_before_the_second_scrape() -> None:
    window = History(10).add(scrape(0.0))
    assert window.seconds is None
    assert window.rates("interlock_requests_total") is None
    assert window.increases("interlock_requests_total") is None
    assert window.quantiles("interlock_time_to_first_token_seconds", 0.5) is None
    assert window.gauge("interlock_inflight_requests", "engine") == {("e",): 3.0}


def test_rates_and_quantiles_are_of_what_came_between() -> None:
    name = "time_to_first_token_seconds"
    before = {ended("ok"): 100.0, **buckets(name, _0_1=90, _1=100, inf=100)}
    after = {ended("ok"): 104.0, **buckets(name, _0_1=90, _1=104, inf=104), f"interlock_attempts_total{{{ENGINE}}}": 2.0}
    history = History(10)
    history.add(scrape(0.0, before))
    window = history.add(scrape(2.0, after))
    assert window.rates("interlock_requests_total") == {(): 2.0}
    assert window.increases("interlock_requests_total", "model", outcome=["ok"]) == {("m",): 4.0}
    assert window.increases("interlock_requests_total", "model", outcome=["timeout"]) == {}
    assert window.increases("interlock_attempts_total") == {(): 2.0}  # a series that is new began at zero
    assert window.quantiles(f"interlock_{name}", 0.5, "model") == pytest.approx({("m",): 0.55})
    assert window.quantiles("interlock_queue_wait_seconds", 0.5) == {}


def test_a_window_is_as_long_as_asked_where_so_much_is_known() -> None:
    history = History(10)
    spans = [history.add(scrape(float(at), {ended("ok"): float(at)})).seconds for at in range(0, 40, 3)]
    assert spans == [None, 3, 6, 9, 12, *[12] * 9]


def test_what_was_seen_long_ago_is_no_window_s_beginning() -> None:
    history = History(10)
    history.add(scrape(0.0))
    assert history.add(scrape(3600.0)).seconds is None
    assert history.add(scrape(3605.0)).seconds == 5


def test_two_scrapes_at_the_same_moment_are_no_window() -> None:
    history = History(10)
    assert [history.add(scrape(at)).seconds for at in (0.0, 0.1, 0.2, 1.0)] == [None, None, None, 1.0]


def test_a_counter_that_went_back_is_a_new_life() -> None:
    history = History(10)
    history.add(scrape(0.0, {ended("ok"): 50.0}))
    history.add(scrape(2.0, {ended("ok"): 60.0}))
    window = history.add(scrape(4.0, {ended("ok"): 3.0}))
    assert (window.before, window.restarted) == (None, True)
    window = history.add(scrape(6.0, {ended("ok"): 5.0}))
    assert (window.restarted, window.rates("interlock_requests_total")) == (True, {(): 1.0})
    for at in (8.0, 10.0, 12.0, 14.0, 16.0):
        window = history.add(scrape(at, {ended("ok"): 5.0}))
    assert not window.restarted


def test_gauges_may_go_back() -> None:
    history = History(10)
    history.add(scrape(0.0, inflight_requests=9))
    assert not history.add(scrape(2.0, inflight_requests=1)).restarted


@given(st.lists(st.floats(0, 50), min_size=1, max_size=400))
def test_however_often_it_is_asked_it_keeps_little(steps: list[float]) -> None:
    history, at_s, one = History(60), 0.0, scrape(0.0)
    for step in steps:
        at_s += step
        window = history.add(type(one)(at_s, one.samples))
        assert window.seconds is None or 0.5 <= window.seconds <= 120
    assert len(history._kept) <= 258
