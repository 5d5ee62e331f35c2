"""What an engine did is counted for that engine: with several answers of one request, after failures, and in resumed answers."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from support.gateway import Served, sample, scripted, serving, settings_for, tiny_model
from support.scripted_engine import CLOSE, HEAD, RESET, ScriptedEngine, Step, chunked, completion, event, llama_token

from gateway.top.rows import engines
from gateway.top.scrape import read
from gateway.top.window import Window

BAD_CALL = ("<tool_call>", '{"name": "f", ', "oops", "</tool_call>")
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
AS_NUMBER = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}


@asynccontextmanager
async def two(
    engine: dict[str, Any] | None = None, **changed: Any
) -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine, Served]]:
    """Two engines of one model, `a` and `b`."""
    async with AsyncExitStack() as stack:
        a, b = [await stack.enter_async_context(ScriptedEngine().running()) for _ in range(2)]
        named = [{"id": name, "url": one.url, "kind": "llamacpp", **(engine or {})} for name, one in (("a", a), ("b", b))]
        yield a, b, await stack.enter_async_context(serving(settings_for("", engines=named, **changed)))


async def counted(served: Served, name: str, **labels: str) -> tuple[float, ...]:
    """A metric of `a`, and of `b`; 0 where there is none."""
    found = await served.metrics()
    return tuple(found.get(sample(f"interlock_{name}", model="m", engine=engine, **labels), 0.0) for engine in "ab")


async def test_of_two_answers_on_two_engines_each_is_its_engines() -> None:
    form = {"format": "hermes"}
    async with two(format="hermes", source=str(tiny_model("full"))) as (a, b, served):
        a.script = lambda seen: completion(*BAD_CALL, pause_s=0.1)
        b.script = lambda seen: completion("fine", "x", pause_s=0.02)
        assert (await served.chat(n=2, tools=TOOLS)).status_code == 200
        assert await counted(served, "attempts_total") == (1, 1)
        assert await counted(served, "parse_failures_total", kind="invalid_json", **form) == (1, 0)
        assert await counted(served, "answers_total", finish_reason="stop", **form) == (1, 1)
        assert await counted(served, "completion_tokens_total") == (4, 2)
        assert await counted(served, "inter_token_latency_seconds_count") == (3, 1)
        assert await counted(served, "time_per_output_token_seconds_count") == (1, 1)
        prompts = await counted(served, "prompt_tokens_total")
        assert prompts[0] == prompts[1] > 0
        assert await counted(served, "requests_total", dialect="openai_chat", outcome="ok") == (1, 0)  # `a` ended last


async def test_of_a_resumed_answer_each_engine_has_its_tokens_and_none_the_gap() -> None:
    async with two({"weights": "w"}) as (a, b, served):
        begun: list[Step] = [HEAD]
        for at in range(1, 4):
            begun += [event(llama_token("x", at)), 0.1]
        a.script = lambda seen: [*begun, 0.6, RESET]
        b.script = lambda seen: completion("y", "z", pause_s=0.1)
        assert (await served.stream())[-1] == "[DONE]"
        assert await counted(served, "completion_tokens_total") == (3, 2)
        assert await counted(served, "inter_token_latency_seconds_count") == (2, 1)
        assert max(await counted(served, "inter_token_latency_seconds_sum")) < 0.6
        assert max(await counted(served, "time_per_output_token_seconds_sum")) < 0.6
        assert await counted(served, "time_to_first_token_seconds_count") == (1, 0)
        prompts = await counted(served, "prompt_tokens_total")
        assert (prompts[0] > 0, prompts[1]) == (True, 0)
        assert (await counted(served, "request_stage_seconds_total", stage="other"))[1] >= 0.6


async def test_an_answer_begun_anew_leaves_what_was_made_with_its_engine() -> None:
    async with two() as (a, b, served):
        a.script = lambda seen: [HEAD, *(event(llama_token("x", at)) for at in range(1, 4)), RESET]
        b.script = lambda seen: completion("y", "z")
        answer = await served.chat()
        assert answer.json()["choices"][0]["message"]["content"] == "yz"
        assert await counted(served, "completion_tokens_total") == (3, 2)
        assert await counted(served, "answers_total", format="plain", finish_reason="stop") == (0, 1)
        assert await counted(served, "time_to_first_token_seconds_count") == (0, 1)


async def test_an_engine_that_refuses_made_nothing() -> None:
    refusal = b"HTTP/1.1 500 X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    async with two() as (a, b, served):
        a.script = lambda seen: [refusal]
        b.script = lambda seen: completion("y")
        assert (await served.chat()).status_code == 200
        prompts = await counted(served, "prompt_tokens_total")
        assert (prompts[0], prompts[1] > 0) == (0, True)
        assert await counted(served, "attempt_failures_total", reason="refused") == (1, 0)


async def of_engines(served: Served, before: bytes) -> list[tuple[str, float | None, float | None]]:
    """What `interlock top` says: each engine with its failed attempts and the share of its prompts that was cached."""
    now = (await served.client.get(f"{served.admin_url}/metrics")).content
    rows = engines(Window(read(before, 0.0), read(now, 1.0)))
    return [(row.engine, row.failed, row.cached_share) for row in rows]


async def test_what_is_wrong_with_a_request_is_not_its_engines() -> None:
    body = b'{"error":{"message":"max_tokens too large","type":"BadRequestError","code":400}}'
    head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with scripted(kind="openai") as (engine, served):
        before = (await served.client.get(f"{served.admin_url}/metrics")).content
        engine.script = lambda seen: [head + body]
        assert (await served.chat()).status_code == 400
        found = await served.metrics()
        assert await of_engines(served, before) == [("e", 0, None)]
    place = {"model": "m", "engine": "e"}
    assert found[sample("interlock_attempt_failures_total", reason="bad_request", **place)] == 1
    assert found[sample("interlock_attempt_failures_total", reason="refused", **place)] == 0


async def test_an_answer_that_missed_its_schema_was_given_by_its_engine() -> None:
    answers = iter(['{"x": "no"}', '{"x": 1}'])
    async with scripted(format="hermes", source=str(tiny_model("full")), on_schema_miss="retry") as (engine, served):
        before = (await served.client.get(f"{served.admin_url}/metrics")).content
        engine.script = lambda seen: completion(next(answers))
        assert (await served.chat(response_format=AS_NUMBER, temperature=1)).status_code == 200
        found = await served.metrics()
        assert [(name, failed) for name, failed, _ in await of_engines(served, before)] == [("e", 0)]
    place = {"model": "m", "engine": "e"}
    assert found[sample("interlock_attempt_failures_total", reason="schema_miss", **place)] == 1
    assert found[sample("interlock_parse_failures_total", format="hermes", kind="schema_mismatch", **place)] == 1
    assert found[sample("interlock_completion_tokens_total", **place)] == 2
    assert found[sample("interlock_answers_total", format="hermes", finish_reason="stop", **place)] == 1


def said(delta: dict[str, str], finish: str | None = None, **more: Any) -> Step:
    """An event of an engine that speaks OpenAI's protocol."""
    about = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return chunked(b"data: " + json.dumps({**about, "choices": [choice], **more}).encode() + b"\n\n")


async def test_what_an_engine_does_not_say_is_counted_here_or_not_known() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 109}
    details: dict[str, Any] = {}
    async with scripted(kind="openai") as (engine, served):
        thoughts = [said({"reasoning_content": f"t{number} "}) for number in range(8)]
        place = {"model": "m", "engine": "e"}
        cached = sample("interlock_cached_prompt_tokens_total", **place)
        before = (await served.client.get(f"{served.admin_url}/metrics")).content

        def script(_: object) -> list[Step]:
            end = said({}, "stop", usage={**usage, **details})
            return [HEAD, *thoughts, said({"content": "Hi"}), end, chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE]

        engine.script = script
        await served.stream()
        found = await served.metrics()
        assert found[sample("interlock_reasoning_tokens_total", **place)] == 8
        assert found[sample("interlock_completion_tokens_total", **place)] == 9
        assert cached not in found
        assert await of_engines(served, before) == [("e", 0, None)]
        details["prompt_tokens_details"] = {"cached_tokens": 60}
        details["completion_tokens_details"] = {"reasoning_tokens": 5}
        await served.stream()
        found = await served.metrics()
        assert (found[cached], found[sample("interlock_reasoning_tokens_total", **place)]) == (60, 8 + 5)
        assert await of_engines(served, before) == [("e", 0, 0.3)]
