"""What panels say of loads that have misled them: series as Prometheus would have them, and the numbers that a reader should see.

`promtool` evaluates the panels' own queries."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.boards import Asked, queries
from support.services import program

QUERIES = queries()
HOUR, EVERY = "1h", "5m"
PLACE = 'model="m",engine="e"'


def panel(board: str, title: str, number: int = 0) -> Asked:
    """One of the queries of a panel."""
    return [query for query in QUERIES if (query.board, query.panel) == (board, title)][number]


def says(folder: Path, series: Mapping[str, str], query: Asked, at: str, expected: Sequence[tuple[str, float]]) -> None:
    """Fails where this is not what the query gives. Values are as promtool writes them: `0+10x80` grows by 10 at each scrape."""
    case: dict[str, Any] = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f"round({query.filled(EVERY, HOUR)}, 0.001)",
                "eval_time": at,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected],
            }
        ],
    }
    file = folder / "case.yml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [case]}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_slow_model_is_no_faster_where_others_are_refused(tmp_path: Path) -> None:
    """Fifty requests that no engine was asked for, to each that took thirty seconds."""
    series = {
        f'interlock_request_stage_seconds_total{{{PLACE},stage="decode"}}': "0+30x80",
        f'interlock_requests_total{{{PLACE},dialect="d",outcome="ok"}}': "0+1x80",
        'interlock_request_stage_seconds_total{model="m",engine="none",stage="other"}': "0+0.01x80",
        'interlock_requests_total{model="m",engine="none",dialect="d",outcome="rejected"}': "0+50x80",
    }
    slow = panel("overview", "Which model is slow, and why?")
    says(tmp_path, series, slow, "20m", [('{model="m",stage="decode"}', 30)])
    says(tmp_path, series, panel("latency", "Where the time of a request goes"), "20m", [('{stage="decode"}', 30)])


def test_the_first_requests_of_a_gateway_count_in_a_mean(tmp_path: Path) -> None:
    """Two of two seconds each; a histogram would begin with the first, and so forget it."""
    series = {
        f'interlock_request_stage_seconds_total{{{PLACE},stage="prefill"}}': "0x20 2x20 4x60",
        f'interlock_requests_total{{{PLACE},dialect="d",outcome="ok"}}': "0x20 1x20 2x60",
        f"interlock_prompt_tokens_total{{{PLACE}}}": "0x20 70x20 140x60",
    }
    slow = panel("overview", "Which model is slow, and why?")
    says(tmp_path, series, slow, "20m", [('{model="m",stage="prefill"}', 2)])
    says(tmp_path, series, panel("capture", "Tokens by request"), "8m", [('{model="m"}', 70)])


@pytest.mark.parametrize(("until", "kind"), [(40, "sglang"), (70, "vllm")])
def test_an_engine_that_becomes_one_of_another_kind_is_the_one_that_it_was_for_longest(
    tmp_path: Path, until: int, kind: str
) -> None:
    info = f'interlock_engine_info{{{PLACE},version="1",kind='
    series = {
        f'{info}"vllm"}}': f"1x{until} stale",
        f'{info}"sglang"}}': f"_x{until} 1x100",
        f'interlock_parse_failures_total{{{PLACE},format="f",kind="invalid_json"}}': "0+1x140",
        f"interlock_attempts_total{{{PLACE}}}": "0+10x140",
    }
    whose = panel("formats", "Is it the model or the engine?")
    says(tmp_path, series, whose, "25m", [(f'{{model="m",engine_kind="{kind}"}}', 0.1)])
    over = panel("formats", "By model, engine kind and format, over time")
    now = [('{model="m",engine_kind="sglang",format="f"}', 0.1)]
    says(tmp_path, series, over, "25m", now)


def test_two_gateways_that_disagree_on_an_engine_do_not_hide_it(tmp_path: Path) -> None:
    """While one of them has not seen yet that another kind is there."""
    series = {
        f'interlock_engine_info{{{PLACE},version="1",kind="vllm",instance="a"}}': "1x140",
        f'interlock_engine_info{{{PLACE},version="1",kind="sglang",instance="b"}}': "1x140",
        f'interlock_engine_info{{{PLACE},version="1",kind="sglang",instance="c"}}': "1x140",
        f'interlock_parse_failures_total{{{PLACE},format="f",kind="invalid_json"}}': "0+1x140",
        f"interlock_attempts_total{{{PLACE}}}": "0+10x140",
    }
    over = panel("formats", "By model, engine kind and format, over time")
    says(tmp_path, series, over, "20m", [('{model="m",engine_kind="sglang",format="f"}', 0.1)])


def test_what_is_no_engines_doing_makes_none_look_sick(tmp_path: Path) -> None:
    series = {
        f'interlock_attempt_failures_total{{{PLACE},reason="bad_request"}}': "0+8x80",
        f'interlock_attempt_failures_total{{{PLACE},reason="refused"}}': "0+1x80",
        f"interlock_attempts_total{{{PLACE}}}": "0+10x80",
    }
    share = [('{model="m",engine="e"}', 0.1)]
    says(tmp_path, series, panel("overview", "Which engine is sick?", 2), "20m", share)
    says(tmp_path, series, panel("engines", "Share of attempts failed"), "20m", share)


def test_faults_of_a_request_with_several_answers_are_those_of_the_engine_that_made_them(tmp_path: Path) -> None:
    """Two answers on two engines: the request is the last one's, the fault the first one's."""
    fault = 'format="f",kind="invalid_json"'
    series = {
        f'interlock_parse_failures_total{{model="m",engine="a",{fault}}}': "0+5x80",
        f'interlock_parse_failures_total{{model="m",engine="b",{fault}}}': "0x80",
        'interlock_attempts_total{model="m",engine="a"}': "0+10x80",
        'interlock_attempts_total{model="m",engine="b"}': "0+10x80",
        'interlock_requests_total{model="m",engine="b",dialect="d",outcome="ok"}': "0+10x80",
    }
    how = panel("overview", "Which format fails, and how?", 1)
    says(tmp_path, series, how, "20m", [(f'{{model="m",engine="a",{fault}}}', 0.5)])


@pytest.mark.parametrize("cached", ["", "0x80"])
def test_tokens_are_read_where_no_engine_says_what_it_had(tmp_path: Path, cached: str) -> None:
    series = {f"interlock_prompt_tokens_total{{{PLACE}}}": "0+150x80"}
    if cached:
        series[f"interlock_cached_prompt_tokens_total{{{PLACE}}}"] = cached
    says(tmp_path, series, panel("overview", "Tokens"), "20m", [("{}", 10)])


def test_the_model_without_engines_can_be_chosen_and_is_shown(tmp_path: Path) -> None:
    series = {'interlock_model_engines_ready{model="m",instance="a"}': "1x20 0x80"}
    says(tmp_path, series, panel("engines", "Engines that can serve, by model"), "20m", [('{model="m"}', 0)])


def test_an_engine_that_says_nothing_of_its_cache_lowers_no_hit_rate(tmp_path: Path) -> None:
    series = {
        'interlock_prompt_tokens_total{model="m",engine="telling"}': "0+100x80",
        'interlock_cached_prompt_tokens_total{model="m",engine="telling"}': "0+80x80",
        'interlock_prompt_tokens_total{model="m",engine="silent"}': "0+900x80",
    }
    says(tmp_path, series, panel("routing", "Hit rate, reported"), "20m", [("{}", 0.8)])
