"""Prompts over HTTP: hostile templates answer 400, short requests and long ones, and nobody else waits for them."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.gateway import HELLO, Served, scripted, settings_for
from support.hostile import TRICKS, hostile_model
from support.scripted_engine import ScriptedEngine

from gateway.app import with_models
from gateway.errors import Rejected
from gateway.prompt.pool import RenderPool
from gateway.prompt.renderer import Draft, Renderer, Rendering
from gateway.rendering import HERE_BODY_BYTES, THREAD_BODY_BYTES

SHORT: list[dict[str, Any]] = []
LONG = [{"role": "user", "content": "word " * (HERE_BODY_BYTES // 5)}]
LARGE = [{"role": "user", "content": "word " * (THREAD_BODY_BYTES // 5)}]
MANY = [{"role": "user", "content": "word"}] * 500
LENGTHS = {"short": SHORT, "long": LONG, "large": LARGE, "many messages": MANY}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def served(model: Path) -> AsyncIterator[tuple[ScriptedEngine, Served]]:
    """A gateway with one worker."""
    async with scripted(source=str(model), format="plain", limits={"render_workers": 1, "render_s": 5.0}) as found:
        yield found


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
    """What the workers are asked for."""
    asked: list[Draft] = []
    render = RenderPool.render

    async def seen(self: RenderPool, model: str, draft: Draft) -> Rendering:
        asked.append(draft)
        return await render(self, model, draft)

    monkeypatch.setattr(RenderPool, "render", seen)
    return asked


def said(before: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    return [*before, {"role": "user", "content": text}]


@pytest.mark.parametrize("before", LENGTHS.values(), ids=LENGTHS)
async def test_a_hostile_template_is_a_bad_request(served: tuple[ScriptedEngine, Served], before: list[dict[str, Any]]) -> None:
    engine, gateway = served
    for name in TRICKS:
        response = await gateway.chat(messages=said(before, name))
        error = response.json()["error"]
        assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "messages"), name
        assert error["message"].startswith("The model's chat template"), name
        assert len(error["message"]) < 700
    assert engine.calls == []
    assert (await gateway.chat(messages=said(before, "hello"))).status_code == 200


async def test_what_is_rendered_apart_is_what_is_rendered_here(served: tuple[ScriptedEngine, Served], model: Path) -> None:
    engine, gateway = served
    for before in LENGTHS.values():
        assert (await gateway.chat(messages=said(before, "hello <|im_end|>"))).status_code == 200
    async with scripted(on=engine, source=str(model), format="plain", limits={"render_workers": 0}) as (_, without):
        for before in LENGTHS.values():
            assert (await without.chat(messages=said(before, "hello <|im_end|>"))).status_code == 200
    prompts = [seen.body["prompt"] for seen in engine.calls]
    assert len(prompts) == 8
    assert prompts[:4] == prompts[4:]


async def test_a_small_body_is_rendered_here_unless_its_template_takes_many_steps(
    apart: list[Draft], served: tuple[ScriptedEngine, Served]
) -> None:
    _, gateway = served
    assert (await gateway.chat()).status_code == 200
    assert apart == []
    refused = await gateway.chat(messages=said(SHORT, "loops"))
    assert "more than 1002000 steps" in refused.json()["error"]["message"]
    assert [draft.steps for draft in apart] == [None]
    assert (await gateway.chat(messages=LONG)).status_code == 200
    assert len(apart) == 2


async def test_short_requests_do_not_wait_for_a_long_one_that_is_rendered(
    served: tuple[ScriptedEngine, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, gateway = served
    free, render = asyncio.Event(), RenderPool.render

    async def held_up(self: RenderPool, model: str, draft: Draft) -> Rendering:
        await free.wait()
        return await render(self, model, draft)

    monkeypatch.setattr(RenderPool, "render", held_up)
    long = asyncio.create_task(gateway.chat(messages=LARGE))
    for _ in range(2):
        assert (await gateway.chat()).status_code == 200
        assert not long.done()
    free.set()
    assert (await long).status_code == 200


async def test_a_client_that_leaves_while_its_prompt_is_rendered(served: tuple[ScriptedEngine, Served]) -> None:
    engine, gateway = served
    leaving = asyncio.create_task(gateway.chat(messages=said(LARGE, "slow")))
    await asyncio.sleep(0.3)
    leaving.cancel()
    asked = [gateway.chat(messages=said(LARGE, f"number {number}")) for number in range(4)]
    assert [response.status_code for response in await asyncio.gather(*asked)] == [200] * 4
    assert len(engine.calls) == 4


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stream_begins_with_pings_while_its_prompt_is_rendered(
    model: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    free, render = asyncio.Event(), RenderPool.render

    async def held_up(self: RenderPool, model: str, draft: Draft) -> Rendering:
        await free.wait()
        if fails:
            raise Rejected("No worker.", reason="no_worker", retry_after_s=1)
        return await render(self, model, draft)

    monkeypatch.setattr(RenderPool, "render", held_up)
    sections: Any = {"limits": {"render_workers": 1}, "server": {"headers_grace_s": 0.01}}
    async with scripted(source=str(model), format="plain", **sections) as (_, gateway):
        body = {**HELLO, "messages": LONG, "stream": True}
        async with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            pieces = answer.aiter_bytes()
            assert await anext(pieces) == b": ping\n\n"
            free.set()
            rest = b"".join([piece async for piece in pieces])
    assert rest.endswith(b"data: [DONE]\n\n") is not fails
    assert (b'"code":"no_worker"' in rest) is fails


async def test_without_workers_a_model_s_long_prompts_are_rendered_one_after_the_other(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, most, places = 0, 0, set()
    render = Renderer.render

    def seen(self: Renderer, draft: Draft) -> Rendering:
        nonlocal now, most
        now += 1
        most = max(most, now)
        places.add(threading.current_thread() is threading.main_thread())
        time.sleep(0.01)
        try:
            return render(self, draft)
        finally:
            now -= 1

    async with scripted(source=str(model), format="plain") as (engine, gateway):
        monkeypatch.setattr(Renderer, "render", seen)
        asked = [gateway.chat(messages=said(LONG, f"number {number}")) for number in range(8)]
        assert [response.status_code for response in await asyncio.gather(*asked)] == [200] * 8
    assert (most, places) == (1, {False})
    assert len(engine.calls) == 8


def test_a_render_has_time_of_its_own_thread_so_that_others_do_not_use_it_up(model: Path) -> None:
    (wired,) = with_models(settings_for("http://127.0.0.1:1", source=str(model), format="plain")).models
    assert wired.rendered is not None
    assert {template._seconds for template in wired.rendered.prompter.renderer.templates.values()} == {time.thread_time}


async def test_the_context_is_the_same_everywhere(model: Path) -> None:
    async with scripted(source=str(model), format="plain") as (_, gateway):
        listed = (await gateway.client.get("/v1/models/m")).json()["max_model_len"]
        told = (await gateway.client.post("/tokenize", json={"model": "m", "prompt": "a"})).json()["max_model_len"]
    assert listed == told
