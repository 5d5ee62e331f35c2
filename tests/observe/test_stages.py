"""A request's duration taken apart: nothing is counted twice, nothing is lost."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any, get_args

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.events import DONE
from support.gateway import IN_FLIGHT, Served, sample, scripted, serving, settings_for
from support.scripted_engine import CLOSE, HANG, HEAD, RESET, ScriptedEngine, Step, completion, event, llama_end, llama_token

from gateway.observe.stages import Stage, stages_of

SECONDS = st.floats(-10, 1e6, allow_nan=False) | st.floats(0, 2)
FAILS: list[Step] = [b"HTTP/1.1 500 Internal Server Error\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}", CLOSE]


@given(
    duration_s=SECONDS,
    queue_s=SECONDS,
    prefill_s=SECONDS,
    decode_s=SECONDS,
    client_stall_s=SECONDS,
    rendered=st.none() | st.tuples(SECONDS, SECONDS),
)
def test_whatever_was_measured_the_stages_sum_to_the_duration(**measured: Any) -> None:
    stages = stages_of(replace(DONE, **measured))
    assert set(stages) == set(get_args(Stage))
    assert min(stages.values()) >= 0
    assert sum(stages.values()) == pytest.approx(max(measured["duration_s"], 0), rel=1e-12, abs=1e-12)


def test_each_stage_is_what_was_measured_of_it_and_the_rest_is_other() -> None:
    done = replace(DONE, duration_s=10.0, rendered=(5.0, 5.5), queue_s=1.0, prefill_s=2.0, decode_s=4.0, client_stall_s=1.5)
    expected: Mapping[Stage, float] = {"render": 0.5, "queue": 1.0, "prefill": 2.0, "decode": 4.0, "client": 1.5, "other": 1.0}
    assert stages_of(done) == expected


async def stages(served: Served) -> dict[str, float]:
    """Seconds of all requests by stage, on any engine; `all` is their duration."""
    found: dict[str, float] = dict.fromkeys((*get_args(Stage), "all"), 0.0)
    for name, seconds in (await served.metrics()).items():
        if name.startswith("interlock_request_stage_seconds_total"):
            found[next(stage for stage in get_args(Stage) if f"'{stage}'" in name)] += seconds
        elif name.startswith("interlock_request_duration_seconds_sum"):
            found["all"] += seconds
    return found


async def test_of_answers_of_all_kinds_they_sum_to_the_durations() -> None:
    async with scripted(engine={"most_running": 2}, timeouts={"first_token_s": 0.3}, failures={"attempts": 1}) as (
        engine,
        served,
    ):
        scripts: list[list[Step]] = [
            completion("a", "b", pause_s=0.03),
            FAILS,
            [HEAD, HANG],
            [HEAD, event(llama_token("a", 1)), 0.05, RESET],
            [HEAD, 0.1, event(llama_token("a", 1)), event(llama_end(1)), b"0\r\n\r\n", CLOSE],
        ]
        turns = itertools.cycle(scripts)
        engine.script = lambda seen: next(turns)
        await asyncio.gather(*(served.chat(stream=number % 2 == 0, n=1 + number % 3) for number in range(15)))
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), HANG]
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
        async with served.client.stream("POST", "/v1/chat/completions", json=body) as response:
            await anext(response.aiter_bytes())
        await served.settled(IN_FLIGHT, 0)
        found = await stages(served)
    whole_s = found.pop("all")
    assert sum(found.values()) == pytest.approx(whole_s, rel=1e-9)
    assert min(found[stage] for stage in ("render", "queue", "prefill", "decode", "other")) > 0


async def test_a_stage_that_takes_long_is_the_one_that_is_told() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [HEAD, 0.3, event(llama_token("a", 1)), event(llama_end(1)), b"0\r\n\r\n", CLOSE]
        await served.stream()
        slow_prefill = await stages(served)
        engine.script = lambda seen: completion("a", "b", "c", "d", pause_s=0.1)
        await served.stream()
        slow_decode = await stages(served)
    assert slow_prefill["prefill"] > 0.5 * slow_prefill["all"]
    assert slow_decode["decode"] - slow_prefill["decode"] > 0.5 * (slow_decode["all"] - slow_prefill["all"])


async def test_an_attempt_that_another_engine_began_anew_is_other() -> None:
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second:
        first.script = lambda seen: [HEAD, 0.4, RESET]
        second.script = lambda seen: completion("a", "b", pause_s=0.05)
        engines = [{"id": each, "url": one.url, "kind": "llamacpp"} for each, one in (("a", first), ("b", second))]
        async with serving(settings_for("", engines=engines)) as served:
            assert (await served.chat()).status_code == 200
            found = await stages(served)
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert found["other"] >= 0.4
    assert found["prefill"] < 0.4


async def test_an_answer_that_another_went_on_with_has_the_work_of_the_last_and_the_rest_is_other() -> None:
    async with ScriptedEngine().running() as first, ScriptedEngine().running() as second:
        begun: list[Step] = [HEAD, *(event(llama_token(text, at)) for at, text in enumerate("ab", 1)), 0.4, RESET]
        first.script = lambda seen: begun
        second.script = lambda seen: [0.4, *completion("c")]
        engines = [
            {"id": each, "url": one.url, "kind": "llamacpp", "weights": "w"} for each, one in (("a", first), ("b", second))
        ]
        async with serving(settings_for("", engines=engines)) as served:
            events = await served.stream(temperature=0)
            found = await stages(served)
            resumed = (await served.metrics())[sample("interlock_resumes_total", model="m")]
    assert (events[-1], resumed) == ("[DONE]", 1)
    assert min(found["prefill"], found["other"]) >= 0.4
    assert found["decode"] < 0.4


async def test_a_client_that_does_not_read_is_a_stage_of_its_own() -> None:
    piece = "x" * (1 << 18)
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion(*(piece for _ in range(60)))
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
        async with (
            httpx.AsyncClient(base_url=served.url, timeout=30, trust_env=False) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            pieces = response.aiter_raw()
            await anext(pieces)
            await asyncio.sleep(0.5)
            async for _ in pieces:
                pass
        await served.settled(IN_FLIGHT, 0)
        found = await stages(served)
    assert found["client"] > 0.3
    assert found["decode"] < found["all"] - found["client"] + 0.01
