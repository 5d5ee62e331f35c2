"""One number, and what it stops."""

from typing import Any

import pytest
from support.gateway import HELLO, scripted
from support.scripted_engine import chat

from gateway.errors import Rejected
from gateway.pressure import STAGES, Pressure, stage_of


@pytest.mark.parametrize(
    ("level", "stage"),
    [
        (0.0, "normal"),
        (0.79, "normal"),
        (0.8, "no_retries"),
        (0.89, "no_retries"),
        (0.9, "closing"),
        (0.999, "closing"),
        (1.0, "refusing"),
        (50.0, "refusing"),
    ],
)
def test_the_stages(level: float, stage: str) -> None:
    assert stage_of(level) == stage
    pressure = Pressure(sources={"test": lambda: level})
    assert pressure.stage == stage
    assert pressure.saturated is (stage != "normal")


def test_the_largest_source_counts_and_the_stages_are_in_order() -> None:
    levels = {"a": 0.3, "b": 0.85}
    pressure = Pressure(100, {"a": lambda: levels["a"], "b": lambda: levels["b"]})
    assert pressure.level == 0.85
    levels["a"] = 0.95
    assert pressure.level == 0.95
    assert [least for least, _ in STAGES] == sorted((least for least, _ in STAGES), reverse=True)


def test_the_requests_that_run_are_counted_and_bounded() -> None:
    pressure = Pressure(2)
    with pressure.request() as first, pressure.request():
        assert first == "normal"
        assert (pressure.requests, pressure.level) == (2, 1.0)
        with pytest.raises(Rejected) as caught, pressure.request():
            pass
        assert (caught.value.status, caught.value.reason, caught.value.retry_after_s) == (503, "overloaded", 1.0)
    assert (pressure.requests, pressure.level) == (0, 0.0)


async def test_answers_under_pressure_end_their_connection() -> None:
    async with scripted(kind="openai", limits={"inflight_requests": 100}) as (engine, served):
        engine.script = lambda seen: chat("Hi")
        for served.gateway.gate.pressure.requests, connection in ((85, None), (90, "close"), (0, None)):
            for streamed in (False, True):
                answer = await served.chat(stream=streamed)
                assert answer.status_code == 200
                assert answer.headers.get("connection") == connection


async def test_an_overloaded_gateway_refuses_before_it_reads() -> None:
    async with scripted(kind="openai", limits={"inflight_requests": 2}) as (engine, served):
        engine.script = lambda seen: chat("Hi")
        served.gateway.gate.pressure.requests = 2
        refused = await served.client.post("/v1/chat/completions", content=b"this is not even JSON")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "overloaded"
        assert refused.headers["retry-after"] == "1"
        assert refused.headers.get_list("connection") == ["close"]
        large = await served.client.post("/v1/chat/completions", content=b"x" * 8_000_000)
        assert (large.status_code, large.headers["retry-after"]) == (503, "1")  # it is not lost with a connection that is reset
        assert (await served.client.get("/health")).status_code == 200
        assert engine.calls == []
        metrics: dict[str, Any] = await served.metrics()
        assert metrics["interlock_pressure[]"] == 1.0
        served.gateway.gate.pressure.requests = 0
        assert (await served.client.post("/v1/chat/completions", json=HELLO)).status_code == 200
