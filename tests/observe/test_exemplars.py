"""Trace ids on the buckets of histograms: in OpenMetrics alone, and only of traces that lead somewhere."""

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.collector import Collector
from support.events import DONE, MADE
from support.gateway import Served, serving, settings_for
from support.metrics import metrics_of
from support.prometheus import prometheus, scraping
from support.scripted_engine import ScriptedEngine, completion

from gateway.observe.group import Served as Model
from gateway.observe.metrics import Metrics
from gateway.observe.series import Histogram

TRACE, OTHER = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
EXEMPLAR = re.compile(r'# \{trace_id="([0-9a-f]{32})"\}')


def exemplars(text: str) -> dict[tuple[str, str], tuple[str, float]]:
    """By metric and bucket: the trace, and its value."""
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]  # not typed
    return {
        (sample.name, sample.labels["le"]): (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for family in families
        for sample in family.samples
        if sample.exemplar
    }


def made() -> Metrics:
    return metrics_of([Model("m", ("a",), ("hermes",))])


def test_the_last_recorded_request_of_each_bucket_is_named_and_no_other() -> None:
    metrics = made()
    metrics(replace(MADE, ttft_s=0.05, recorded=OTHER))
    metrics(replace(MADE, ttft_s=0.055, recorded=TRACE))
    metrics(replace(MADE, ttft_s=0.051))  # nobody has it
    metrics(replace(MADE, ttft_s=3.0))
    found = exemplars(metrics.copied()(OPENMETRICS)[1].decode())
    ttft = {bucket: told for (name, bucket), told in found.items() if name == "interlock_time_to_first_token_seconds_bucket"}
    assert ttft == {"0.06": (TRACE, 0.055)}
    assert b"trace_id" not in metrics.copied()("")[1]


def test_of_many_values_at_once_the_largest_is_named() -> None:
    histogram = Histogram("h", "x", ("l",), (1, 2, 3))
    histogram.add_all(("a",), ((0.5, 4), (2.5, 1), (1.5, 2)), TRACE)
    histogram.add_all(("a",), (), OTHER)
    samples = histogram.copied()().samples
    assert [(each.labels["le"], each.exemplar.labels) for each in samples if each.exemplar] == [("3.0", {"trace_id": TRACE})]


def test_a_copy_keeps_the_exemplars_of_its_moment() -> None:
    metrics = made()
    metrics(replace(DONE, trace_id=TRACE, sampled=True))
    write = metrics.copied()
    metrics(replace(DONE, trace_id=OTHER, sampled=True))
    assert set(EXEMPLAR.findall(write(OPENMETRICS)[1].decode())) == {TRACE}


async def scraped(served: Served, accept: str) -> str:
    return (await served.client.get(f"{served.admin_url}/metrics", headers={"accept": accept})).text


@pytest.mark.parametrize(("flags", "named"), [("01", {TRACE}), ("00", set())])
async def test_a_gateway_names_the_traces_that_its_callers_record(flags: str, named: set[str]) -> None:
    async with ScriptedEngine().running() as engine, serving(settings_for(engine.url)) as served:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        traceparent = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-{flags}"}
        assert (await served.client.post("/v1/chat/completions", json=body, headers=traceparent)).status_code == 200
        assert set(EXEMPLAR.findall(await scraped(served, OPENMETRICS))) == named
        assert not EXEMPLAR.findall(await scraped(served, "text/plain"))


async def test_a_real_prometheus_finds_the_trace_of_a_slow_request(tmp_path: Path) -> None:
    async with Collector().over_http() as collector, ScriptedEngine().running() as engine:
        engine.script = lambda seen: completion("a", "b", "c", pause_s=0.03)
        settings = settings_for(engine.url, tracing={"otlp_endpoint": collector.url, "sample_ratio": 1.0})
        async with serving(settings) as served:
            await served.stream()
            found = await asyncio.to_thread(asked, served.admin_url, tmp_path)
    assert found
    assert {each["labels"]["trace_id"] for each in found} == {collector.spans[0].trace_id}


def asked(url: str, folder: Path) -> list[dict[str, dict[str, str]]]:
    """The exemplars that a Prometheus has of the time per token."""
    with prometheus(scraping(url, every="1s"), folder) as server:
        server.scraped()
        query = "interlock_inter_token_latency_seconds_bucket"
        series = server.api("query_exemplars", query=query, start="0", end="9999999999")
        return [each for one in series for each in one["exemplars"]]
