"""Spans of whole requests, as a collector gets them, and what engines are told of a trace."""

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from support.collector import Collector, Got
from support.gateway import IN_FLIGHT, Served, sample, serving, settings_for
from support.scripted_engine import (
    CLOSE,
    HANG,
    HEAD,
    RESET,
    ScriptedEngine,
    Step,
    chat,
    completion,
    event,
    llama_end,
    llama_token,
)

from gateway.observe import genai

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
CANARY = "planted-canary-42"
FAILS: list[Step] = [b"HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}", CLOSE]
NO_REST = {"eject_failures": 100, "eject_share": 1}
WAITING = sample("interlock_spans_waiting")
DROPPED = sample("interlock_spans_dropped_total", reason="unsent")


@contextlib.asynccontextmanager
async def traced(
    collector: Collector, *names: str, ratio: float = 1.0, access: list[Mapping[str, object]] | None = None, **changed: Any
) -> AsyncIterator[tuple[Served, list[ScriptedEngine]]]:
    """A gateway before engines of these names, whose spans go to the collector; all of them are there once it has ended."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine().running()) for _ in names or "e"]
        entries = [
            {"id": name, "url": engine.url, "kind": "llamacpp", **changed.get("engine", {})}
            for name, engine in zip(names or "e", engines, strict=True)
        ]
        tracing = {"otlp_endpoint": collector.url, "sample_ratio": ratio} if collector.url else {}
        changed.pop("engine", None)
        settings = settings_for("", engines=entries, tracing=tracing, **changed)
        records = access if access is not None else []
        async with serving(settings, access=records.append) as served:
            while not all(each.ready for each in served.gateway.registry.view("m").engines):
                await served.gateway.registry.changed()
            yield served, engines


@contextlib.asynccontextmanager
async def collecting(*names: str, **changed: Any) -> AsyncIterator[tuple[Collector, Served, list[ScriptedEngine]]]:
    async with Collector().over_http() as collector, traced(collector, *names, **changed) as (served, engines):
        yield collector, served, engines
        await served.settled(WAITING, 0, within_s=30)


def nested(spans: list[Got]) -> None:
    """Every span lies within its parent, and ends no sooner than it begins."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        assert span.begin_ns <= span.end_ns
        if (outer := by_id.get(span.parent_id)) is not None:
            assert outer.begin_ns <= span.begin_ns, (outer.name, span.name)
            assert span.end_ns <= outer.end_ns, (outer.name, span.name)


def told(engine: ScriptedEngine) -> tuple[str, str, str, str]:
    """The parts of the `traceparent` of its last call."""
    version, trace_id, span_id, flags = engine.calls[-1].headers["traceparent"].split("-")
    return version, trace_id, span_id, flags


async def test_a_streamed_answer_is_one_tree_with_the_conventions_attributes() -> None:
    records: list[Mapping[str, object]] = []
    before_ns = time.time_ns()
    async with collecting(access=records) as (collector, served, (engine,)):
        engine.script = lambda seen: completion("H", "i", pause_s=0.01)
        await served.stream(temperature=0.5, max_tokens=20, seed=7, prompt_cache_key="talk\n1")
        trace_id, span_id = told(engine)[1:3]
        metrics = await served.metrics()
    assert metrics[DROPPED] == 0
    assert collector.paths == ["/v1/traces"]
    assert collector.tree() == ["chat m", ["render", "route", "attempt", ["parse"]]]
    nested(collector.spans)
    root, attempt, route, parse = (collector.one(name) for name in ("chat m", "attempt", "route", "parse"))
    assert before_ns - 10**6 <= root.begin_ns <= root.end_ns <= time.time_ns() + 10**6
    assert [span.kind for span in (root, attempt, route, parse)] == ["server", "client", "internal", "internal"]
    assert {span.trace_id for span in collector.spans} == {trace_id, records[0]["trace_id"]}
    assert (attempt.span_id, root.parent_id, root.remote) == (span_id, "", False)
    assert not any(span.failed for span in collector.spans)
    known = {
        genai.OPERATION_NAME: "chat",
        genai.PROVIDER_NAME: "interlock",
        genai.REQUEST_MODEL: "m",
        genai.HTTP_METHOD: "POST",
        genai.HTTP_STATUS: 200,
        genai.REQUEST_ID: records[0]["request_id"],
        genai.DIALECT: "openai_chat",
        genai.ENGINE: "e",
        genai.FORMAT: records[0]["format"],
        genai.OUTCOME: "ok",
        genai.REQUEST_STREAM: True,
        genai.OUTPUT_TYPE: "text",
        genai.ATTEMPTS: 1,
        genai.USAGE_INPUT_TOKENS: 10,
        genai.USAGE_OUTPUT_TOKENS: 2,
        genai.USAGE_CACHED_TOKENS: 3,
        genai.USAGE_REASONING_TOKENS: 0,
        genai.REQUEST_TEMPERATURE: 0.5,
        genai.REQUEST_MAX_TOKENS: 20,
        genai.REQUEST_SEED: 7,
        genai.RESPONSE_FINISH_REASONS: ["stop"],
        genai.CONVERSATION_ID: "talk\ufffd1",
    }
    measured = {genai.RESPONSE_TIME_TO_FIRST_CHUNK: records[0]["ttft_s"], genai.BODY_S: root.attributes[genai.BODY_S]}
    assert root.attributes == {**known, **measured} | {
        name: root.attributes[name] for name in (genai.CLIENT_STALL_S,) if name in root.attributes
    }
    host, port = engine.url.removeprefix("http://").split(":")
    assert attempt.attributes == {
        genai.OPERATION_NAME: "chat",
        genai.REQUEST_MODEL: "m",
        genai.ENGINE: "e",
        genai.ATTEMPT: 1,
        genai.WHY: "only",
        genai.PROVIDER_NAME: "llamacpp",
        genai.SERVER_ADDRESS: host,
        genai.SERVER_PORT: int(port),
        genai.USAGE_CACHED_TOKENS: 3,
        genai.RESPONSE_TIME_TO_FIRST_CHUNK: attempt.attributes[genai.RESPONSE_TIME_TO_FIRST_CHUNK],
    }
    assert route.attributes[genai.ENGINES_CONSIDERED] == 1
    assert parse.attributes[genai.PARSE_STEPS] >= 2
    assert 0 < parse.attributes[genai.PARSE_S] <= (parse.end_ns - parse.begin_ns) / 1e9 + 1e-6
    assert collector.resource["service.name"] == "interlock"


async def test_what_was_said_is_in_no_span() -> None:
    async with collecting() as (collector, served, (engine,)):
        engine.script = lambda seen: completion(*CANARY)
        answer = await served.chat(messages=[{"role": "user", "content": CANARY}], stop=[CANARY[::-1]])
        assert answer.status_code == 200, answer.text
        assert (await served.chat(model=CANARY)).status_code == 404
    sent = b"".join(collector.requests)
    assert sent
    assert CANARY.encode() not in sent
    assert CANARY[::-1].encode() not in sent
    assert len(collector.named("chat")) == 1  # whose model is none of ours


async def test_a_retry_has_a_route_and_an_attempt_of_its_own() -> None:
    async with collecting("a", "b", failures=NO_REST) as (collector, served, (first, second)):
        first.script = lambda seen: FAILS
        assert (await served.chat()).status_code == 200
        tried = [engine.calls[-1].headers["traceparent"].split("-")[2] for engine in (first, second)]
    assert collector.tree() == ["chat m", ["render", "route", "attempt", "route", "attempt", ["parse"]]]
    nested(collector.spans)
    failed, served_by = collector.named("attempt")
    assert [failed.span_id, served_by.span_id] == tried
    assert (failed.failed, failed.attributes[genai.ERROR_TYPE]) == (True, "refused")
    assert (served_by.failed, genai.ERROR_TYPE in served_by.attributes) == (False, False)
    assert [span.attributes[genai.ENGINE] for span in collector.named("route")] == ["a", "b"]
    root = collector.one("chat m")
    assert (root.failed, root.attributes[genai.RETRIES], root.attributes[genai.ATTEMPTS]) == (False, 1, 2)


async def test_an_answer_that_another_engine_goes_on_with() -> None:
    same = {"weights": "one"}
    async with collecting("a", "b", engine=same, failures=NO_REST) as (collector, served, (first, second)):
        ids = {text: first.tokenizer.encode(text)[0] for text in "Hi!"}
        begun = [event(llama_token(text, at, ids[text])) for at, text in enumerate("Hi", 1)]
        first.script = lambda seen: [HEAD, *begun, 0.05, RESET]
        second.script = lambda seen: [HEAD, event(llama_token("!", 1, ids["!"])), event(llama_end(1)), b"0\r\n\r\n", CLOSE]
        events = await served.stream(temperature=0)
        print((await served.client.get(f"{served.admin_url}/explain?last=1")).text)
    assert events[-1] == "[DONE]"
    broken, resumed = collector.named("attempt")
    assert (broken.attributes[genai.ERROR_TYPE], broken.failed) == ("broke", True)
    assert (resumed.attributes[genai.WHY], resumed.failed) == ("resume", False)
    assert len(collector.named("parse")) == 2
    root = collector.one("chat m")
    assert (root.attributes[genai.RESUMES], root.attributes[genai.OUTCOME]) == (1, "ok")
    nested(collector.spans)


async def test_a_request_that_waits_has_a_queue_span() -> None:
    async with collecting(engine={"most_running": 1}) as (collector, served, (engine,)):
        scripts = itertools.chain([completion("H", "i", pause_s=0.1)], itertools.repeat(completion("Hi")))
        engine.script = lambda seen: next(scripts)
        answers = await asyncio.gather(served.chat(), served.chat())
    assert [answer.status_code for answer in answers] == [200, 200]
    queue = collector.one("queue")
    nested(collector.spans)
    (root,) = (span for span in collector.named("chat m") if span.span_id == queue.parent_id)
    assert root.attributes[genai.QUEUE_S] == pytest.approx((queue.end_ns - queue.begin_ns) / 1e9, abs=1e-5)
    (route,) = (span for span in collector.named("route") if span.parent_id == root.span_id)
    assert route.begin_ns == pytest.approx(queue.end_ns, abs=1000)


async def test_a_rejected_request_has_the_word_of_the_log() -> None:
    records: list[Mapping[str, object]] = []
    async with collecting(access=records, engine={"most_running": 1}, limits={"queue_requests": 0}) as (
        collector,
        served,
        (engine,),
    ):
        engine.script = lambda seen: [HEAD, event(llama_token("H", 1)), HANG]
        async with served.client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}):
            assert (await served.chat()).status_code == 429
        await served.settled(IN_FLIGHT, 0)
    rejected = next(record for record in records if record["outcome"] == "rejected")
    (root,) = (span for span in collector.named("chat m") if span.attributes[genai.REQUEST_ID] == rejected["request_id"])
    assert root.attributes[genai.OUTCOME] == "rejected"
    assert root.attributes[genai.ERROR_TYPE] == root.attributes[genai.REASON] == rejected["reason"]
    assert (root.failed, root.attributes[genai.HTTP_STATUS], root.attributes[genai.ATTEMPTS]) == (True, 429, 0)
    assert not [span for span in collector.spans if span.parent_id == root.span_id]


async def test_a_bad_request_is_the_clients_fault_and_no_failed_span() -> None:
    async with collecting() as (collector, served, _):
        assert (await served.chat(messages=[])).status_code == 400
        assert (await served.client.get("/v1/chat/completions")).status_code == 405
    bad, method = collector.named("chat m") + collector.named("chat")
    assert (bad.attributes[genai.OUTCOME], bad.failed, bad.attributes[genai.HTTP_STATUS]) == ("client_error", False, 400)
    assert (method.attributes[genai.HTTP_STATUS], method.failed) == (405, False)


async def test_a_client_that_leaves() -> None:
    async with collecting() as (collector, served, (engine,)):
        engine.script = lambda seen: [HEAD, event(llama_token("H", 1)), HANG]
        async with served.client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as response:
            await anext(response.aiter_bytes())
        await served.settled(IN_FLIGHT, 0)
    root, attempt = collector.one("chat m"), collector.one("attempt")
    assert (root.attributes[genai.OUTCOME], root.attributes[genai.ERROR_TYPE], root.failed) == ("client_gone", "streaming", False)
    assert (attempt.attributes[genai.ERROR_TYPE], attempt.failed) == ("client_gone", False)
    nested(collector.spans)


async def test_a_caller_that_records_is_followed_whatever_the_ratio() -> None:
    records: list[Mapping[str, object]] = []
    async with collecting(ratio=0, access=records) as (collector, served, (engine,)):
        await ask(served, {"traceparent": f"{PARENT}-01", "tracestate": "a=1, b=2"})
        _, trace_id, span_id, flags = told(engine)
        state = engine.calls[-1].headers["tracestate"]
    root, attempt = collector.one("chat m"), collector.one("attempt")
    assert (trace_id, flags, state) == (PARENT.split("-")[1], "01", "a=1,b=2")
    assert (root.trace_id, root.parent_id, root.remote) == (*PARENT.split("-")[1:], True)
    assert (attempt.span_id, attempt.parent_id, attempt.remote) == (span_id, root.span_id, False)
    assert {span.state for span in collector.spans} == {"a=1,b=2"}
    assert records[0]["trace_id"] == trace_id


async def test_a_caller_that_does_not_record_is_passed_on_and_makes_no_span() -> None:
    async with collecting(ratio=1) as (collector, served, (engine,)):
        await ask(served, {"traceparent": f"{PARENT}-00"})
        assert engine.calls[-1].headers["traceparent"] == f"{PARENT}-00"
    assert not collector.requests


async def test_a_caller_with_a_bad_header_has_a_trace_of_its_own() -> None:
    async with collecting(ratio=1) as (collector, served, (engine,)):
        await ask(served, {"traceparent": f"{PARENT}-01-more", "tracestate": "a=1"})
        assert told(engine)[1] != PARENT.split("-")[1]
        assert "tracestate" not in engine.calls[-1].headers
    assert collector.one("chat m").parent_id == ""


async def test_at_ratio_0_nothing_is_recorded_and_the_engine_hears_so() -> None:
    records: list[Mapping[str, object]] = []
    async with collecting(ratio=0, access=records) as (collector, served, (engine,)):
        await served.chat()
        version, trace_id, _, flags = told(engine)
    assert (version, flags) == ("00", "02")
    assert records[0]["trace_id"] == trace_id
    assert not collector.requests


async def test_without_tracing_the_clients_header_goes_on_as_it_came() -> None:
    records: list[Mapping[str, object]] = []
    async with traced(Collector(), access=records) as (served, (engine,)):
        await ask(served, {"traceparent": f"{PARENT}-03", "tracestate": "a=1"})
        seen = engine.calls[-1].headers
        assert (seen["traceparent"], seen["tracestate"]) == (f"{PARENT}-03", "a=1")
        for bad in (None, "00-xyz", f"{PARENT}-01\u00ff"):
            await ask(served, {"traceparent": bad} if bad else {})
            assert "traceparent" not in engine.calls[-1].headers
        metrics = await served.metrics()
    assert [record["trace_id"] for record in records] == [PARENT.split("-")[1], None, None, None]
    assert (metrics[DROPPED], metrics[sample("interlock_spans_sent_total")]) == (0, 0)


async def test_a_collector_that_dies_changes_nothing_for_clients() -> None:
    async with contextlib.AsyncExitStack() as stack:
        collector = Collector()
        alive = await stack.enter_async_context(contextlib.AsyncExitStack())
        await alive.enter_async_context(collector.over_http())
        with capture_logs() as logs:
            served, _ = await stack.enter_async_context(traced(collector))
            assert (await served.stream())[-1] == "[DONE]"
            await served.settled(sample("interlock_spans_sent_total"), 5, within_s=20)
            await alive.aclose()
            answers = await asyncio.gather(*(served.stream() for _ in range(20)))
            await served.settled(DROPPED, 100, within_s=30)
            answers += await asyncio.gather(*(served.stream() for _ in range(20)))
            assert all(answer[-1] == "[DONE]" for answer in answers)
            port = int(collector.url.rpartition(":")[2])
            await stack.enter_async_context(collector.over_http(port))
            while not await sent_again(served):
                assert (await served.stream())[-1] == "[DONE]"
    said = [entry["event"] for entry in logs if entry["event"].startswith("spans")]
    assert [each[:15] for each in said] == ["spans cannot be", "spans are sent "]


async def sent_again(served: Served) -> bool:
    return (await served.metrics())[sample("interlock_spans_sent_total")] > 5


async def test_a_collector_that_answers_nothing_holds_nobody_up() -> None:
    async with contextlib.AsyncExitStack() as stack:
        collector = await stack.enter_async_context(Collector().over_http())
        collector.hangs = True
        async with asyncio.timeout(30), traced(collector) as (served, _):
            assert (await served.stream())[-1] == "[DONE]"
            while not collector.paths:
                await asyncio.sleep(0.01)
            assert (await served.stream())[-1] == "[DONE]"
    assert not collector.spans


async def test_over_grpc() -> None:
    with Collector().over_grpc() as collector:
        async with traced(collector) as (served, _):
            assert (await served.stream())[-1] == "[DONE]"
            await served.settled(WAITING, 0, within_s=30)
    assert collector.tree() == ["chat m", ["render", "route", "attempt", ["parse"]]]
    assert collector.resource["service.name"] == "interlock"


async def test_an_engine_that_makes_its_own_prompt_has_no_render_span() -> None:
    async with Collector().over_http() as collector, ScriptedEngine().running() as engine:
        engine.script = lambda seen: chat("Hi")
        async with serving(
            settings_for(engine.url, kind="openai", format="engine", tracing={"otlp_endpoint": collector.url})
        ) as served:
            assert (await served.stream())[-1] == "[DONE]"
            assert engine.calls[-1].headers["traceparent"].endswith("-03")
            await served.settled(WAITING, 0, within_s=30)
    assert collector.tree() == ["chat m", ["route", "attempt", ["parse"]]]


async def test_each_of_several_answers_has_an_attempt() -> None:
    async with collecting("a", "b") as (collector, served, _):
        answer = await served.chat(n=2)
        assert len(answer.json()["choices"]) == 2
    assert len(collector.named("attempt")) == len(collector.named("parse")) == 2
    assert collector.one("chat m").attributes[genai.REQUEST_CHOICE_COUNT] == 2
    nested(collector.spans)


async def test_requests_that_are_over_leave_nothing_behind() -> None:
    async with collecting() as (collector, served, (engine,)):
        engine.script = lambda seen: completion("Hi")
        for _ in range(3):
            await served.stream()
        assert (await served.chat(messages=[])).status_code == 400
    assert len(collector.named("chat m")) == 4


BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


async def ask(served: Served, headers: dict[str, str]) -> None:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    response = await served.client.post("/v1/chat/completions", json=BODY, headers=httpx.Headers(list(sent.items())))  # type: ignore[arg-type]  # bytes too
    assert response.status_code == 200, response.text


def test_a_gateway_without_tracing_imports_no_package_of_the_extra() -> None:
    """FastAPI imports `opentelemetry-api`."""
    script = (
        "import asyncio, sys\n"
        "from support.gateway import settings_for\n"
        "from gateway.app import running, with_models\n"
        "async def main():\n"
        "    async with running(with_models(settings_for('http://127.0.0.1:9')), {}):\n"
        "        pass\n"
        "asyncio.run(main())\n"
        "extra = 'opentelemetry.sdk', 'opentelemetry.exporter', 'grpc', 'google.protobuf'\n"
        "sys.exit(sum(name.startswith(extra) for name in sys.modules))\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50, env=environ)
