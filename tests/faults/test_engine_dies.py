"""The local engine is killed under load: each client gets an answer or a typed error, none hangs, and it serves again."""

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.up_process import UpProcess, alive, up_process

pytestmark = [pytest.mark.engine, pytest.mark.timeout(150)]

CLIENTS = 8
ANSWERED = 2  # at a time: the slots of the engine
TYPES = {"upstream_error": (502, 504), "overloaded_error": (429, 503)}


@dataclass(frozen=True, slots=True)
class Ended:
    """How one request ended for its client."""

    status: int
    whole: bool
    error: dict[str, Any] | None
    retry_after: str | None
    text: str

    def check(self) -> None:
        """An answer, or an error that cannot be taken for one."""
        assert self.whole is (self.error is None), self
        if self.error is None:
            assert self.status == 200
            assert self.text
            return
        statuses = TYPES[self.error["type"]]
        assert self.error["message"]
        assert self.error["code"]
        assert self.status in (200, *statuses), self
        assert "127.0.0.1" not in self.error["message"]
        if self.status in (429, 503):
            assert self.retry_after is not None


async def ask(client: httpx.AsyncClient, model: str, *, stream: bool, tokens: int, number: int = 0) -> Ended:
    """One request to its end, whichever that is."""
    message = {"role": "user", "content": f"Count slowly from {number} to one hundred, in words."}
    body = {"model": model, "messages": [message], "stream": stream, "max_tokens": tokens, "temperature": 0}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        retry_after = response.headers.get("retry-after")
        if response.status_code != 200 or not stream:
            answer = json.loads(await response.aread())
            error = answer.get("error")
            text = "" if error else answer["choices"][0]["message"]["content"]
            return Ended(response.status_code, error is None, error, retry_after, text)
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]
    done = lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    error = chunks[-1].get("error")
    assert not any("error" in chunk for chunk in chunks[:-1])
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ()))
    return Ended(200, done, error, retry_after, text)


async def in_flight(client: httpx.AsyncClient) -> float:
    """The requests on the engine, and those that wait for it."""
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    wanted = ("interlock_inflight_requests", "interlock_queue_depth")
    return sum(sample.value for each in families if each.name in wanted for sample in each.samples)


async def until_in_flight(client: httpx.AsyncClient, wanted: float, limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while await in_flight(client) != wanted:
            await asyncio.sleep(0.05)


async def test_a_killed_engine_costs_no_client_more_than_an_error(tmp_path: Path) -> None:
    with up_process(tmp_path) as up:
        await up.shown("Ctrl-C ends it")
        async with httpx.AsyncClient(base_url=up.url, timeout=60, trust_env=False) as client:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
            for end in (await kill_under_load(up, client, model), await ask_while_down(up, client, model)):
                for each in end:
                    each.check()
            again = await ask(client, model, stream=True, tokens=8)
            assert again.error is None, again
            again.check()
            await until_in_flight(client, 0)
        engine = up.engine()
        assert engine is not None
        up.child.send_signal(signal.SIGINT)
        assert await up.ended() == 0, up.output.read_text()
        assert not alive(engine)
    assert "The engine died and is started again (" in up.output.read_text()
    assert "Traceback" not in up.output.read_text()


async def kill_under_load(up: UpProcess, client: httpx.AsyncClient, model: str) -> list[Ended]:
    """Half of the clients stream; two are being answered when the engine dies, the others wait for a slot. These may be answered
    by the next engine."""

    def asked(number: int, tokens: int) -> asyncio.Task[Ended]:
        return asyncio.create_task(ask(client, model, stream=number % 2 == 0, tokens=tokens, number=number))

    answered = [asked(number, 2000) for number in range(ANSWERED)]
    await until_in_flight(client, ANSWERED)
    await asyncio.sleep(0.5)
    waiting = [asked(number, 8) for number in range(ANSWERED, CLIENTS)]
    await until_in_flight(client, CLIENTS)
    engine = up.engine()
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    killed = time.monotonic()
    async with asyncio.timeout(10):
        cut = await asyncio.gather(*answered)
    assert time.monotonic() - killed < 5
    assert any(each.error is not None for each in cut), "the engine died too late to matter"
    async with asyncio.timeout(60):
        return cut + await asyncio.gather(*waiting)


async def ask_while_down(up: UpProcess, client: httpx.AsyncClient, model: str) -> list[Ended]:
    """Requests until it is back: the first may meet the dead engine, later ones wait for the new one."""
    asked = []
    for number in range(4):
        asked.append(asyncio.create_task(ask(client, model, stream=number % 2 == 1, tokens=4, number=number)))
        await asyncio.sleep(0.1)
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*asked)
    await up.ready()
    assert ended[-1].error is None or ended[-1].error["code"] == "no_engine"
    return ended
