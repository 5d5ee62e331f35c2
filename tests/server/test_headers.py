"""The headers that say how an answer was served, where the settings want them."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from support.gateway import HELLO, Served, scripted, serving, settings_for
from support.scripted_engine import CLOSE, HANG, HEAD, RESET, ScriptedEngine, Step, completion, event, llama_end, llama_token

ON = {"route_headers": True}
NAMES = ("engine", "attempts", "queue-ms", "cached-tokens")


def routed(response: httpx.Response) -> dict[str, str | None]:
    return {name: response.headers.get(f"x-interlock-{name}") for name in NAMES}


async def ask(served: Served, stream: bool, **body: Any) -> httpx.Response:
    return await served.chat(stream=stream, **body)


def refusal(status: int) -> list[Step]:
    return [f"HTTP/1.1 {status} no\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}".encode(), CLOSE]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_says_how_it_was_served(stream: bool) -> None:
    async with scripted(server=ON) as (engine, served):
        engine.script = lambda seen: completion("Hi", " you", pause_s=0.1)
        response = await ask(served, stream)
    assert response.status_code == 200
    # Of a streamed answer the engine tells its counts at the end, when the headers are long gone.
    assert routed(response) == {"engine": "e", "attempts": "1", "queue-ms": "0", "cached-tokens": None if stream else "3"}


@pytest.mark.parametrize("stream", [False, True])
async def test_without_the_setting_none_of_them_is_there(stream: bool) -> None:
    async with scripted() as (engine, served):
        for steps in (completion("Hi"), refusal(500)):
            engine.script = lambda seen, steps=steps: steps  # type: ignore[misc]
            response = await ask(served, stream)
            assert routed(response) == dict.fromkeys(NAMES)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_from_the_second_engine_says_so(stream: bool) -> None:
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second:
        first.script, second.script = (lambda seen: refusal(503)), (lambda seen: completion("Hi"))
        urls = {"a": first.url, "org/b:1": second.url}
        engines = [{"id": name, "url": url, "kind": "llamacpp"} for name, url in urls.items()]
        async with serving(settings_for("", engines=engines, server=ON)) as served:
            response = await ask(served, stream)
    assert response.status_code == 200
    assert (routed(response)["engine"], routed(response)["attempts"]) == ("org/b:1", "2")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_after_an_attempt_has_them(stream: bool) -> None:
    async with scripted(server=ON) as (engine, served):
        engine.script = lambda seen: refusal(500)
        response = await ask(served, stream)
    assert response.status_code == 502
    assert routed(response) == {"engine": "e", "attempts": "1", "queue-ms": "0", "cached-tokens": None}


@pytest.mark.parametrize(("body", "status"), [({"n": "x"}, 400), ({"model": "other"}, 404)])
async def test_an_error_before_any_attempt_has_none(body: dict[str, Any], status: int) -> None:
    async with scripted(server=ON) as (_, served):
        response = await served.chat(**body)
        listing = await served.client.get("/v1/models")
    assert response.status_code == status
    assert routed(response) == routed(listing) == dict.fromkeys(NAMES)


async def test_headers_that_went_early_tell_what_was_known_then() -> None:
    """The first engine is silent beyond the grace: the headers name it, though the second serves."""
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second:
        first.script, second.script = (lambda seen: [HEAD, 0.6, RESET]), (lambda seen: completion("Hi"))
        urls = {"a": first.url, "b": second.url}
        engines = [{"id": name, "url": url, "kind": "llamacpp"} for name, url in urls.items()]
        async with serving(settings_for("", engines=engines, server={**ON, "headers_grace_s": 0.1})) as served:
            response = await ask(served, True)
    assert response.content.endswith(b"data: [DONE]\n\n")
    assert (routed(response)["engine"], routed(response)["attempts"]) == ("a", "1")


async def test_the_wait_in_the_queue_is_told() -> None:
    async with scripted(server=ON, engine={"most_running": 1}) as (engine, served):
        slow: list[Step] = [HEAD, event(llama_token("a", 1)), 0.5, event(llama_end(1)), b"0\r\n\r\n", CLOSE]
        steps: Iterator[Sequence[Step]] = iter([slow, completion("Hi")])
        engine.script = lambda seen: next(steps)
        async with served.client.stream("POST", "/v1/chat/completions", json={**HELLO, "stream": True}) as first:
            second = await ask(served, False)
            assert first.headers["x-interlock-queue-ms"] == "0"
            await first.aread()
    assert 50 <= int(second.headers["x-interlock-queue-ms"]) < 20_000


async def test_what_is_cut_as_the_gateway_goes_down_has_them() -> None:
    async with scripted(server={**ON, "drain_s": 0}) as (engine, served):
        engine.script = lambda seen: [HEAD, HANG]
        request = asyncio.create_task(ask(served, False))
        while not engine.calls:
            await asyncio.sleep(0.01)
        served.stop.set()
        response = await request
    assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
    assert routed(response)["engine"] == "e"
