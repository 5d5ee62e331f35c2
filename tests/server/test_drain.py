"""What clients and probes are told while a gateway goes down."""

import asyncio
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from support.gateway import Served, outcome, scripted
from support.scripted_engine import CLOSE, HANG, HEAD, ScriptedEngine, Step, completion, event, llama_end, llama_token

from gateway.settings_parts import ServerSettings

LONG = {"drain_s": 20}


def slow(answer_s: float) -> list[Step]:
    return [HEAD, event(llama_token("a", 1)), answer_s, event(llama_end(1)), b"0\r\n\r\n", CLOSE]


async def running(served: Served, engine: ScriptedEngine, **body: Any) -> "asyncio.Task[httpx.Response]":
    """A request that the engine has."""
    request = asyncio.create_task(served.chat(**body))
    while not engine.calls:
        await asyncio.sleep(0.01)
    return request


async def closed(served: Served) -> None:
    """Returns once new requests are refused."""
    async with asyncio.timeout(10):
        while (await served.client.get("/v1/models")).status_code != 503:
            await asyncio.sleep(0.01)


async def test_late_requests_are_refused_in_full_and_the_running_one_is_finished() -> None:
    async with scripted(server=LONG) as (engine, served):
        engine.script = lambda seen: slow(2.0)
        request = await running(served, engine, stream=True)
        served.stop.set()
        await closed(served)
        assert not request.done()
        late = [await served.chat(stream=stream) for stream in (False, True)]
        late += [await served.client.post("/tokenize", json={"prompt": "x"}), await served.client.get("/nowhere")]
        for path, status in (("/health", 200), ("/ready", 503), ("/metrics", 200)):
            told = await served.client.get(path)
            assert (told.status_code, told.headers["connection"]) == (status, "close"), path
            assert (await served.client.get(f"{served.admin_url}{path}")).status_code == status
        assert (await served.client.get("/ready")).json()["status"] == "draining"
        assert (await served.client.get(f"{served.admin_url}/fleet")).status_code == 200
        metrics = await served.metrics()
        response = await request
    assert response.content.endswith(b"data: [DONE]\n\n")
    for answer in late:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
        assert answer.headers["x-request-id"]
    assert len(engine.calls) == 1
    assert metrics[outcome("drained", engine="none", model="unknown")] == 2


async def test_during_the_grace_new_requests_are_taken_on_connections_that_end_with_them() -> None:
    async with scripted(server={**LONG, "drain_grace_s": 1.5}) as (engine, served):
        engine.script = lambda seen: completion("Hi")
        assert "connection" not in (await served.chat()).headers
        served.stop.set()
        async with asyncio.timeout(1):
            while (ready := await served.client.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
        response = await served.chat()
        assert (response.status_code, response.headers["connection"]) == (200, "close")
        assert ready.json()["status"] == "draining"


async def test_a_request_that_came_before_is_taken_though_its_body_comes_later() -> None:
    sent = asyncio.Event()
    async with scripted(server=LONG) as (engine, served):
        engine.script = lambda seen: slow(1.0)
        first = await running(served, engine)

        async def body() -> Any:
            yield b'{"model": "m", '
            await sent.wait()
            yield b'"messages": [{"role": "user", "content": "Hello"}]}'

        second = asyncio.create_task(served.client.post("/v1/chat/completions", content=body()))
        await asyncio.sleep(0.2)
        served.stop.set()
        await closed(served)
        sent.set()
        answers = await asyncio.gather(first, second)
    assert [answer.status_code for answer in answers] == [200, 200]


async def test_a_request_that_waits_for_an_engine_is_told_at_the_limit() -> None:
    async with scripted(server={"drain_s": 0.5}, engine={"most_running": 1}) as (engine, served):
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), HANG]
        first = await running(served, engine, stream=True)
        second = asyncio.create_task(served.chat(stream=True))
        await asyncio.sleep(0.2)
        served.stop.set()
        answers = await asyncio.gather(first, second)
    assert b'"code":"draining"' in answers[0].content
    assert b"[DONE]" not in answers[0].content
    assert (answers[1].status_code, answers[1].json()["error"]["code"]) == (503, "draining")
    assert len(engine.calls) == 1


async def test_an_open_connection_without_a_request_holds_nothing_up() -> None:
    async with scripted(server=LONG) as (engine, served):
        engine.script = lambda seen: completion("Hi")
        await served.chat()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        served.stop.set()
        async with asyncio.timeout(10):
            with pytest.raises(httpx.TransportError):
                while True:
                    await served.client.get("/health")
                    await asyncio.sleep(0.02)
        assert loop.time() - began_s < 5


def test_a_grace_longer_than_the_drain_is_refused() -> None:
    assert ServerSettings(drain_s=10, drain_grace_s=10).drain_grace_s == 10
    with pytest.raises(ValidationError, match="no more than `drain_s`"):
        ServerSettings(drain_s=1, drain_grace_s=2)
