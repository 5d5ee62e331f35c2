"""Prompts over HTTP: hostile templates answer 400, short requests and long ones, and nobody else waits for them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.gateway import Served, scripted
from support.hostile import TRICKS, hostile_model
from support.scripted_engine import ScriptedEngine

from gateway.rendering import APART_BODY_BYTES, APART_MESSAGES, THREAD_BODY_BYTES

SHORT: list[dict[str, Any]] = []
LONG = [{"role": "user", "content": "word " * (THREAD_BODY_BYTES // 5)}]
LARGE = [{"role": "user", "content": "word " * (APART_BODY_BYTES // 5)}]
MANY = [{"role": "user", "content": "word"}] * APART_MESSAGES


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def served(model: Path) -> AsyncIterator[tuple[ScriptedEngine, Served]]:
    """A gateway with one worker."""
    async with scripted(source=str(model), format="plain", limits={"render_workers": 1, "render_s": 1.0}) as found:
        yield found


def said(before: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    return [*before, {"role": "user", "content": text}]


@pytest.mark.parametrize("before", [SHORT, LONG, LARGE, MANY], ids=["inline", "thread", "worker", "worker, many messages"])
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
    for before in (SHORT, LONG, LARGE, MANY):
        assert (await gateway.chat(messages=said(before, "hello <|im_end|>"))).status_code == 200
    async with scripted(on=engine, source=str(model), format="plain", limits={"render_workers": 0}) as (_, without):
        for before in (SHORT, LONG, LARGE, MANY):
            assert (await without.chat(messages=said(before, "hello <|im_end|>"))).status_code == 200
    prompts = [seen.body["prompt"] for seen in engine.calls]
    assert len(prompts) == 8
    assert prompts[:4] == prompts[4:]


async def test_short_requests_do_not_wait_for_a_long_one_that_is_rendered(served: tuple[ScriptedEngine, Served]) -> None:
    _, gateway = served
    long = asyncio.create_task(gateway.chat(messages=said(LARGE, "slow")))
    for _ in range(2):
        assert (await gateway.chat()).status_code == 200
        assert not long.done()
    assert "takes more than 1 s" in (await long).json()["error"]["message"]


async def test_a_client_that_leaves_while_its_prompt_is_rendered(served: tuple[ScriptedEngine, Served]) -> None:
    engine, gateway = served
    leaving = asyncio.create_task(gateway.chat(messages=said(LARGE, "slow")))
    await asyncio.sleep(0.3)
    leaving.cancel()
    asked = [gateway.chat(messages=said(LARGE, f"number {number}")) for number in range(4)]
    assert [response.status_code for response in await asyncio.gather(*asked)] == [200] * 4
    assert len(engine.calls) == 4
