"""How late the loop was."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gguf_writer import Field, gguf
from support.process import ServeProcess, serve_process
from support.scripted_engine import HEAD, ScriptedEngine, event, llama_end, llama_token
from support.vocabulary import CONTROL, DEFINED, template_text, tokenizer_fields

from gateway.lag import RECENT_S, LoopLag


async def test_a_loop_that_is_held_up_is_late() -> None:
    late_s: list[float] = []
    async with LoopLag(late_s.append, tick_s=0.01).ticking() as lag:
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is held up on purpose
        await asyncio.sleep(0.05)
        assert 0.25 < lag.most_s < 2
        assert max(late_s) == lag.most_s
        assert len(late_s) > 3
        told = len(late_s)
    await asyncio.sleep(0.05)
    assert len(late_s) == told


def test_the_most_is_of_the_last_seconds() -> None:
    lag = LoopLag()
    assert (lag.most_s, lag.lasting_s) == (0.0, 0.0)
    for at, late in enumerate([0.1, 0.9, 0.2, 0.3]):
        lag.ticked(float(at), late)
    assert lag.most_s == 0.9
    lag.ticked(1.0 + RECENT_S, 0.05)
    assert lag.most_s == 0.9
    lag.ticked(1.1 + RECENT_S, 0.05)
    assert lag.most_s == 0.3


def test_one_pause_is_no_load() -> None:
    lag = LoopLag()
    lag.ticked(0.0, 60.0)
    assert lag.lasting_s == 0.0
    for at in range(3):
        lag.ticked(float(at), 1.5)
    assert lag.lasting_s == 1.5
    lag.ticked(4.0, 0.0)
    assert lag.lasting_s == 0.0


async def test_how_long_the_loop_stood_still_is_known_before_the_tick_that_is_due() -> None:
    lag = LoopLag(tick_s=0.01)
    assert lag.stood_s() == 0.0
    async with lag.ticking():
        await asyncio.sleep(0.05)
        before_s = lag.stood_s()
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is held up on purpose
        at_once_s = lag.stood_s()
        await asyncio.sleep(0.05)
        later_s = lag.stood_s()
        lag.ticked(0.0, 0.09)  # late, but no pause
        assert lag.stood_s() == later_s
    assert 0.25 < at_once_s - before_s <= later_s - before_s < 2
    time.sleep(0.2)  # noqa: ASYNC251 - nobody watches it any more
    assert lag.stood_s() == later_s


# ---- what one request may hold up -----------------------------------------------------------------------------------------

SLACK = 5
LATE_S = 0.05
OPENS, CLOSES = (len(CONTROL) + DEFINED.index(marker) for marker in ("<tool_call>", "</tool_call>"))
PROMPT_BYTES, TOOL_BYTES = 2_000_000, 100_000


@pytest.mark.timeout(180)
async def test_c13_a_long_prompt_and_large_tool_json_hold_nobody_up(tmp_path: Path) -> None:
    """The largest lateness is held to the row's bound of p99.9. The prompt has half a million tokens. Other
    processes of this machine may hold the gateway up too, but not three times in a row."""
    model = tmp_path / "wide.gguf"
    about: dict[str, Field] = {"general.architecture": "tiny", "tiny.context_length": 1 << 22}
    model.write_bytes(gguf({**about, **tokenizer_fields(template=template_text("full"))}))
    arguments = json.dumps({"text": "word " * (TOOL_BYTES // 5)})
    said = f'{{"name": "write", "arguments": {arguments}}}'
    pieces = [(said[at : at + 40], 500) for at in range(0, len(said), 40)]
    tokens = [("<tool_call>", OPENS), *pieces, ("</tool_call>", CLOSES)]
    tool = {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string", "description": "word " * (TOOL_BYTES // 5)}},
            },
        },
    }
    prompt = {"role": "user", "content": " the" * (PROMPT_BYTES // 4)}
    async with ScriptedEngine().running() as engine:
        engine.script = lambda seen: [
            HEAD,
            *(event(llama_token(text, at, token)) for at, (text, token) in enumerate(tokens, 1)),
            event(llama_end(len(tokens))),
            b"0\r\n\r\n",
        ]
        engines = [{"id": "e", "url": engine.url, "kind": "llamacpp"}]
        settings = {"models": [{"name": "m", "source": str(model), "format": "hermes", "engines": engines}]}
        async with apart(settings, tmp_path) as gateway, httpx.AsyncClient(timeout=100, trust_env=False) as client:
            for body in (
                {"messages": [prompt]},
                {"messages": [prompt], "stream": True},
                {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool]},
                {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "stream": True},
            ):
                for last in (False, False, True):
                    answer = await client.post(f"{gateway.url}/v1/chat/completions", json={"model": "m", **body})
                    assert answer.status_code == 200, answer.text[:500]
                    if (late_s := await lateness(client, gateway.admin_url)) < LATE_S * SLACK:
                        break
                    assert not last, late_s
                    await asyncio.sleep(RECENT_S)
                if "tools" in body and "stream" not in body:
                    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
                    assert call["function"]["arguments"] == arguments


async def lateness(client: httpx.AsyncClient, admin_url: str) -> float:
    text = (await client.get(f"{admin_url}/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith("interlock_event_loop_lag_max_seconds ")]
    return float(line.split()[1])


@asynccontextmanager
async def apart(settings: dict[str, Any], folder: Path) -> AsyncIterator[ServeProcess]:
    """A gateway in a process of its own, while this loop turns."""
    process = serve_process(settings, folder)
    gateway = await asyncio.to_thread(process.__enter__)
    try:
        yield gateway
    finally:
        await asyncio.to_thread(process.__exit__, None, None, None)
