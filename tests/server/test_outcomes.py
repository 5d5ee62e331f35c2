"""One word for how a request ended: the log, the metrics and the trace have the same, with the same reason, engine and tokens."""

import asyncio
import io
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, get_args

import pytest
from support.collector import Collector, Got
from support.gateway import IN_FLIGHT, Served, serving, settings_for
from support.metrics import read
from support.scripted_engine import CLOSE, HANG, HEAD, ScriptedEngine, Step, completion, event, llama_token

from gateway.events import Outcome
from gateway.observe import genai
from gateway.observe.logs import record_writer
from gateway.observe.metrics import Metrics

Act = Callable[[Served, ScriptedEngine], Awaitable[None]]
FAILS: list[Step] = [b"HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}", CLOSE]
BEGINS: list[Step] = [HEAD, event(llama_token("H", 1)), HANG]
STREAM = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
SECRET = "sk-planted-canary-42"


async def ok(served: Served, engine: ScriptedEngine) -> None:
    engine.script = lambda seen: completion("H", "i", pause_s=0.01)
    assert (await served.chat()).status_code == 200
    assert await served.stream()


async def client_error(served: Served, _: ScriptedEngine) -> None:
    assert (await served.chat(model=f"{SECRET}\n\x1b[31m\u2028")).status_code == 404
    assert (await served.chat(messages=[])).status_code == 400


async def rejected(served: Served, engine: ScriptedEngine) -> None:
    engine.script = lambda seen: BEGINS
    async with served.client.stream("POST", "/v1/chat/completions", json=STREAM):
        assert (await served.chat()).status_code == 429
    await served.settled(IN_FLIGHT, 0)


async def upstream_error(served: Served, engine: ScriptedEngine) -> None:
    engine.script = lambda seen: FAILS
    assert (await served.chat()).status_code >= 500


async def timeout(served: Served, engine: ScriptedEngine) -> None:
    engine.script = lambda seen: [HEAD, HANG]
    assert (await served.chat()).status_code == 504


async def client_gone(served: Served, engine: ScriptedEngine) -> None:
    engine.script = lambda seen: BEGINS
    async with served.client.stream("POST", "/v1/chat/completions", json=STREAM) as response:
        await anext(response.aiter_bytes())
    await served.settled(IN_FLIGHT, 0)


async def drained(served: Served, engine: ScriptedEngine) -> None:
    engine.script = lambda seen: BEGINS
    async with served.client.stream("POST", "/v1/chat/completions", json=STREAM) as response:
        pieces = response.aiter_bytes()
        await anext(pieces)
        served.stop.set()
        assert b"error" in b"".join([piece async for piece in pieces])


ACTS: Mapping[Outcome, Act] = {
    "ok": ok,
    "client_error": client_error,
    "rejected": rejected,
    "upstream_error": upstream_error,
    "timeout": timeout,
    "client_gone": client_gone,
    "drained": drained,
}
SETTINGS: dict[str, Any] = {
    "engine": {"most_running": 1},
    "limits": {"queue_requests": 0},
    "timeouts": {"first_token_s": 0.3},
    "failures": {"attempts": 1},
}


@pytest.mark.parametrize("outcome", get_args(Outcome))
async def test_log_metrics_and_trace_agree(outcome: Outcome) -> None:
    out = io.StringIO()
    async with Collector().over_http() as collector, ScriptedEngine().running() as engine:
        settings = settings_for(engine.url, tracing={"otlp_endpoint": collector.url, "sample_ratio": 1.0}, **SETTINGS)
        async with serving(settings, access=record_writer(out, [SECRET])) as served:
            await asyncio.wait_for(ACTS[outcome](served, engine), 20)
            metrics = served.gateway.metrics
    lines = out.getvalue().splitlines()
    records = [json.loads(line) for line in lines]
    spans = [span for span in collector.spans if span.kind == "server"]
    assert outcome in {record["outcome"] for record in records}
    assert Counter(map(of_record, records)) == Counter(map(of_span, spans))
    ended = Counter((record["model"], record["engine"], record["outcome"]) for record in records)
    assert ended == counted(metrics, "interlock_requests_total", "model", "engine", "outcome")
    failed = Counter((each["model"], each["outcome"], each["reason"]) for each in records if each["outcome"] != "ok")
    assert failed == counted(metrics, "interlock_request_failures_total", "model", "outcome", "reason")
    answered = [record for record in records if record["completion_tokens"]]  # an engine that began no answer has read no prompt
    for name, field in (("prompt", "prompt_tokens"), ("completion", "completion_tokens"), ("cached_prompt", "cached_tokens")):
        assert sum(counted(metrics, f"interlock_{name}_tokens_total", "engine").values()) == sum(r[field] for r in answered)
    assert SECRET not in out.getvalue()
    assert out.getvalue().isascii()
    assert all(line.isprintable() for line in lines)


def of_record(record: Mapping[str, Any]) -> tuple[object, ...]:
    """What both say of a request, by the log."""
    names = ("request_id", "trace_id", "outcome", "reason", "model", "engine", "status", "attempts", "completion_tokens")
    return tuple(record[name] for name in names)


def of_span(span: Got) -> tuple[object, ...]:
    """The same, by its span."""
    names = (genai.OUTCOME, genai.REASON, genai.REQUEST_MODEL, genai.ENGINE, genai.HTTP_STATUS, genai.ATTEMPTS)
    said = [span.attributes.get(name) for name in names]
    return (span.attributes[genai.REQUEST_ID], span.trace_id, *said, span.attributes[genai.USAGE_OUTPUT_TOKENS])


def counted(metrics: Metrics, name: str, *labels: str) -> Counter[tuple[str, ...]]:
    """What a counter says, by some of its labels; what is zero is left out."""
    found: Counter[tuple[str, ...]] = Counter()
    for (each, said), value in read(metrics).items():
        if each == name and value:
            found[tuple(dict(said)[label] for label in labels)] += int(value)
    return found
