"""Every query of every panel: what it names exists, and a Prometheus that scrapes a gateway under load has an answer to it."""

import asyncio
import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.boards import EVERYTHING, Asked, queries, variable_queries
from support.busy import NOBODY, busy
from support.prometheus import Prometheus, prometheus, scraping
from support.promql import metrics

QUERIES = queries()
INTERVAL, WINDOW = "10s", "1m"
SCRAPES = 12
ONE: Mapping[str, str] = {"model": "(m|n|o)", "engine": "(a|broken|c|telling)", "objective": "1.0"}
"""As Grafana sends a choice of several."""


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.board}-{query.panel}")
def test_a_query_is_promql(query: Asked) -> None:
    assert metrics(query.filled(INTERVAL, WINDOW))


def test_there_is_something_to_test() -> None:
    assert len(QUERIES) > 80
    assert metrics('sum by (a) (rate(x_total{b="c"}[5m])) / on () group_left () (sum(y) > 0)') == {"x_total", "y"}
    with pytest.raises(ValueError, match=r".+"):
        metrics("sum(rate(x[5m])")


def wrong(asked: Prometheus, variables: Mapping[str, str]) -> list[str]:
    """The queries that nothing comes back for, or nothing that can be drawn."""
    return list(_wrong(asked, variables))


def _wrong(asked: Prometheus, variables: Mapping[str, str]) -> Iterator[str]:
    for query in QUERIES:
        expression = query.filled(INTERVAL, WINDOW, variables)
        values = asked.values(expression)
        if not any(map(math.isfinite, values)):
            yield f"{query.board}, {query.panel}: {values[:3]} for {expression}"


def told(asked: Prometheus, board: str, panel: str, number: int, *labels: str) -> dict[tuple[str, ...], float]:
    """What a panel shows by its query of this number: values by these labels."""
    found = [query for query in QUERIES if (query.board, query.panel) == (board, panel)][number]
    return {tuple(each.labels[name] for name in labels): each.value for each in asked.query(found.filled(INTERVAL, WINDOW))}


def misled(asked: Prometheus) -> None:
    """Fails where a panel says something else of this load than what is: what `busy` makes engines and clients do."""
    up, _, failed, *_ = (told(asked, "overview", "Which engine is sick?", number, "engine") for number in range(4))
    down = {engine for (engine,), value in up.items() if value == 0}
    assert {"gone"} <= down <= {"gone", "broken"}  # one that broke an answer off is asked first whether it is there
    assert {engine for (engine,), value in failed.items() if value > 0} == {"broken", "c"}
    kinds = told(asked, "formats", "Is it the model or the engine?", 0, "model", "engine_kind")
    assert kinds.keys() == {("m", "vllm"), ("m", "sglang"), ("n", "trtllm"), ("o", "vllm")}
    assert kinds["m", "sglang"] > 1.5 * kinds["m", "vllm"]
    how = told(asked, "overview", "Which format fails, and how?", 0, "engine", "format", "kind")
    assert {kind for engine, form, kind in how if (engine, form) == ("b", "hermes")} >= {
        "invalid_json",
        "unknown_tool",
        "truncated_call",
    }
    stages = told(asked, "overview", "Which model is slow, and why?", 0, "model", "stage")
    assert {stage for model, stage in stages if model == "m"} == {"render", "queue", "prefill", "decode", "client", "other"}
    share = told(asked, "latency", "Share of each stage", 0, "stage")
    assert sum(share.values()) == pytest.approx(1)
    hits = told(asked, "routing", "Hit rate by engine, reported", 0, "engine")
    assert hits["telling",] > 0.2 > hits["a",]
    assert told(asked, "routing", "Drift", 0, "engine")["telling",] == 0
    well = told(asked, "overview", "Availability by model", 0, "model")
    assert well["n",] < well["m",] <= 1


def chosen(asked: Prometheus) -> dict[str, set[str]]:
    """What the reader can choose of each variable."""
    choices: dict[str, set[str]] = {}
    for query in variable_queries():
        read = re.fullmatch(r"label_values\((.+), (\w+)\)", query.filled(INTERVAL, WINDOW))
        assert read, query.expression
        choices.setdefault(query.panel, set()).update(sample.labels[read[2]] for sample in asked.query(read[1]))
    return choices


def missing(asked: Prometheus) -> set[str]:
    """The metrics that panels name and no scrape had."""
    there = set(asked.api("label/__name__/values"))
    return {name for query in QUERIES for name in metrics(query.filled(INTERVAL, WINDOW))} - there


def traced(asked: Prometheus) -> set[str]:
    """The labels of the exemplars that Prometheus has for the heatmap of first tokens."""
    (query,) = (query for query in QUERIES if (query.board, query.panel) == ("latency", "Time to first token"))
    now_s = time.time()
    expression = query.filled(INTERVAL, WINDOW)
    series = asked.api("query_exemplars", query=expression, start=f"{now_s - 60}", end=f"{now_s}")
    return {label for each in series for exemplar in each["exemplars"] for label in exemplar["labels"]}


async def test_every_query_has_an_answer_under_load(tmp_path: Path) -> None:
    async with busy(tmp_path, tracing={"otlp_endpoint": NOBODY, "sample_ratio": 1.0}) as served:
        with prometheus(scraping(served.admin_url), tmp_path) as asked:
            await asyncio.to_thread(asked.scraped, SCRAPES)
            assert await asyncio.to_thread(missing, asked) == set()
            for variables in (EVERYTHING, ONE):
                problems = await asyncio.to_thread(wrong, asked, variables)
                assert problems == [], "\n".join(problems)
            assert await asyncio.to_thread(traced, asked) == {"trace_id"}
            await asyncio.to_thread(misled, asked)
            choices = await asyncio.to_thread(chosen, asked)
            assert choices["model"] >= {"m", "n", "o"}
            assert choices["engine"] >= {"a", "b", "broken", "c"}
