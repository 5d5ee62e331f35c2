"""Chats through the gateway with the real vLLM behind it."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
from support.gateway import Served, serving, settings_for
from support.vllm import ALIAS, BLOCK_TOKENS, VllmUnderTest

from engines.base import Work
from engines.registry import make
from gateway.errors import EngineRefused
from gateway.prompt.source import read_model
from gateway.request import GenerateRequest, Sampling
from gateway.wire.sse import SseReader

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

END, STARS = 2, 7  # <|im_end|>, <gh_stars>
ASK = [{"role": "user", "content": "Name three colours of the rainbow."}]
LONG = [{"role": "user", "content": "Count from one to ten thousand in words. " * 12}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Kraków", "東京"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": SCHEMA}}]


@contextlib.asynccontextmanager
async def in_front(vllm: VllmUnderTest, **changed: Any) -> AsyncIterator[Served]:
    """The gateway, with the patience that a loaded machine needs."""
    patient = {"between_tokens_s": 300, "connect_s": 30}
    settings = settings_for(vllm.url, kind="vllm", source=str(vllm.model), engine={"model": ALIAS}, timeouts=patient, **changed)
    async with serving(settings) as served:
        served.client.timeout = httpx.Timeout(600)
        yield served


def content(answer: Any) -> str:
    (choice,) = answer["choices"]
    return str(choice["message"]["content"])


def streamed(events: list[Any], field: str = "content") -> str:
    deltas = [choice["delta"] for event in events[:-1] for choice in event["choices"]]
    return "".join(delta.get(field) or "" for delta in deltas)


async def test_an_answer_is_the_same_streamed_and_whole(vllm: VllmUnderTest) -> None:
    body = {"messages": ASK, "temperature": 0, "max_tokens": 24, "return_token_ids": True}
    async with in_front(vllm) as served:
        whole = (await served.chat(**body)).json()
        events = await served.stream(**body)
    assert content(whole) == streamed(events) != ""
    files = read_model(vllm.model)
    ids = whole["choices"][0]["token_ids"]
    assert ids == [token for event in events[:-1] for choice in event["choices"] for token in choice.get("token_ids", [])]
    detokenizer = files.tokenizer.detokenizer()
    shown = [token for token in ids if token not in files.stop_ids]
    assert "".join(map(detokenizer.add, shown)) + detokenizer.finish() == content(whole)
    assert whole["usage"]["completion_tokens"] == len(ids) <= 24
    assert whole["choices"][0]["finish_reason"] == ("stop" if ids[-1] == END else "length")


async def test_the_engine_says_what_it_is(vllm: VllmUnderTest) -> None:
    async with in_front(vllm) as served:
        (info,) = [served.gateway.registry.info(each) for each in served.gateway.registry.members]
    assert (info.version, info.model, info.context_tokens) == ("0.32.0", ALIAS, 2048)


async def test_it_is_known_again_by_its_start_and_what_it_worked_on(vllm: VllmUnderTest) -> None:
    async with httpx.AsyncClient() as client:
        before, began_s = make("vllm").load((await client.get(f"{vllm.url}/metrics")).content, None), time.time()
        body = {"model": ALIAS, "prompt": [1, 2, 3, 4, 5], "max_tokens": 1}
        assert (await client.post(f"{vllm.url}/v1/completions", json=body)).status_code == 200
        after = make("vllm").load((await client.get(f"{vllm.url}/metrics")).content, None)
    assert before.started_s is not None
    assert before.started_s < began_s
    assert after.started_s == before.started_s
    assert before.prompt_tokens is not None
    assert after.prompt_tokens == before.prompt_tokens + 5


async def test_a_limit_that_nobody_set_is_what_the_context_leaves(vllm: VllmUnderTest) -> None:
    body = {"model": "m", "messages": ASK, "stream": True, "logit_bias": {str(END): -100}}
    shown = 0
    async with in_front(vllm) as served, served.client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            shown += '"content":"' in line
            if shown > 20:  # vLLM's own limit is 16 tokens
                break
    assert shown > 20


async def test_a_stop_id_ends_the_turn_and_is_no_content(vllm: VllmUnderTest) -> None:
    async with in_front(vllm) as served:
        answer = (await served.chat(messages=ASK, max_tokens=8, logit_bias={str(END): 100}, return_token_ids=True)).json()
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["token_ids"]) == ("stop", [END])
    assert not choice["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 1


async def test_special_tokens_that_are_no_markers_are_text(vllm: VllmUnderTest) -> None:
    async with in_front(vllm) as served:
        answer = (await served.chat(messages=ASK, max_tokens=2, logit_bias={str(STARS): 100})).json()
    assert content(answer) == "<gh_stars><gh_stars>"
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_with_ignore_eos_the_answer_goes_on_to_its_limit(vllm: VllmUnderTest) -> None:
    body = {"messages": ASK, "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    async with in_front(vllm) as served:
        (choice,) = (await served.chat(**body, logit_bias={str(END): 100})).json()["choices"]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (6, "length")
    assert END not in choice["token_ids"]


async def test_a_stop_string_ends_the_answer_before_it(vllm: VllmUnderTest) -> None:
    body = {"messages": ASK, "temperature": 0, "max_tokens": 24}
    async with in_front(vllm) as served:
        full = content((await served.chat(**body)).json())
        stop = full[len(full) // 2 :][:3]
        cut = (await served.chat(**body, stop=[stop])).json()
    assert content(cut) == full[: full.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_required_call_is_made_with_arguments_of_its_schema(vllm: VllmUnderTest, stream: bool) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "temperature": 1, "seed": 3, "max_tokens": 200}
    async with in_front(vllm, tools="constrained") as served:
        if stream:
            events = await served.stream(**body)
            calls = [
                call for event in events[:-1] for choice in event["choices"] for call in choice["delta"].get("tool_calls", [])
            ]
            name = calls[0]["function"]["name"]
            arguments = "".join(call["function"].get("arguments", "") for call in calls)
            reasons = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]]
            assert reasons[-1] == "tool_calls"
        else:
            (choice,) = (await served.chat(**body)).json()["choices"]
            assert choice["finish_reason"] == "tool_calls"
            ((name, arguments),) = [tuple(call["function"].values()) for call in choice["message"]["tool_calls"]]
    assert name == "get_weather"
    jsonschema_rs.validate(SCHEMA, json.loads(arguments))


async def test_an_answer_is_json_of_its_schema(vllm: VllmUnderTest) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
    async with in_front(vllm) as served:
        for seed in (1, 2, 3):
            answer = (await served.chat(messages=ASK, response_format=form, temperature=1.5, seed=seed, max_tokens=100)).json()
            assert answer["choices"][0]["finish_reason"] == "stop"
            jsonschema_rs.validate(SCHEMA, json.loads(content(answer)))


async def test_a_json_object_is_one(vllm: VllmUnderTest) -> None:
    body = {"messages": ASK, "response_format": {"type": "json_object"}, "temperature": 0, "max_tokens": 300}
    async with in_front(vllm) as served:
        answer = (await served.chat(**body)).json()
    if answer["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(content(answer)), dict)
    else:
        assert content(answer).startswith("{")


async def test_what_was_cached_is_told_in_whole_blocks(vllm: VllmUnderTest) -> None:
    async with in_front(vllm) as served:
        answers = [(await served.chat(messages=LONG, max_tokens=1)).json()["usage"] for _ in range(2)]
    prompt, cached = answers[1]["prompt_tokens"], answers[1]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < prompt
    assert cached == (prompt - 1) // BLOCK_TOKENS * BLOCK_TOKENS


async def test_log_probabilities_are_the_engines(vllm: VllmUnderTest) -> None:
    body = {"messages": ASK, "temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 3, "return_token_ids": True}
    async with in_front(vllm) as served:
        (choice,) = (await served.chat(**body)).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(choice["token_ids"]) > 0
    for entry in entries:
        likeliest = entry["top_logprobs"]
        assert len(likeliest) == 3
        assert (entry["token"], entry["logprob"]) == (likeliest[0]["token"], likeliest[0]["logprob"])  # greedy
        assert likeliest == sorted(likeliest, key=lambda each: -each["logprob"])
    assert "missing_tokens" not in choice["logprobs"]
    spoken = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert spoken.removesuffix(b"<|im_end|>").decode() == choice["message"]["content"]


async def test_a_client_that_leaves_ends_the_engines_work(vllm: VllmUnderTest) -> None:
    async with in_front(vllm) as served:
        before = vllm.metric("generation_tokens_total")
        body = {"model": "m", "messages": ASK, "stream": True, "max_tokens": 1800, "ignore_eos": True}
        async with served.client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if '"content":"' in line.replace('"content":""', ""):
                    break
            assert vllm.metric("num_requests_running") == 1
        async with asyncio.timeout(60):
            while vllm.metric("num_requests_running"):
                await asyncio.sleep(0.1)
    assert vllm.metric("generation_tokens_total") - before < 1800


async def test_what_cannot_be_served_is_the_clients_error(vllm: VllmUnderTest) -> None:
    async with in_front(vllm) as served:
        refused = await served.chat(messages=ASK, max_tokens=4, logit_bias={"99999999": 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias.99999999")
        long = await served.chat(messages=[{"role": "user", "content": "word " * 3000}])
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_what_the_engine_itself_refuses_is_the_clients_error(vllm: VllmUnderTest) -> None:
    """Within a stream that began with status 200; the gateway lets no such request through."""
    bias = Sampling(logit_bias=((99999999, 1.0),))
    work = Work(GenerateRequest("m", (), sampling=bias), ids=(1, 2), max_tokens=4, model=ALIAS)
    engine = make("vllm")
    call = engine.call(work)
    async with httpx.AsyncClient(timeout=600) as client:
        answer = await client.post(vllm.url + call.path, content=call.body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    reader = engine.reader(work)
    with pytest.raises(EngineRefused, match="out-of-vocab") as caught:
        for event in SseReader().feed(answer.content):
            reader.chunk(event)
    assert caught.value.status == 400


async def test_a_thought_is_ended_at_its_budget_and_the_rest_is_what_vllm_makes_of_just_these_ids(vllm: VllmUnderTest) -> None:
    opened = [*ASK, {"role": "assistant", "content": "<think>\nThe user"}]
    greedy = {"temperature": 0, "ignore_eos": True}
    body = {"messages": opened, "continue_final_message": True, "max_tokens": 32, "reasoning_budget": 8, **greedy}
    async with in_front(vllm, format="hermes") as served:
        said = (await served.chat(return_token_ids=True, **body)).json()
    (choice,) = said["choices"]
    prompt, ids = said["prompt_token_ids"], choice["token_ids"]
    ended = 8 + len(read_model(vllm.model).tokenizer.encode("</think>"))
    assert said["usage"]["completion_tokens_details"]["reasoning_tokens"] == 8
    assert said["usage"]["prompt_tokens"] == len(prompt)
    assert said["usage"]["completion_tokens"] == len(ids) == 32
    assert choice["message"]["reasoning_content"]
    assert content(said)
    rest = {"model": ALIAS, "prompt": [*prompt, *ids[:ended]], "max_tokens": 32 - ended, "min_tokens": 32 - ended}
    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
        asked = await client.post(f"{vllm.url}/v1/completions", json={**rest, "temperature": 0, "return_token_ids": True})
    assert asked.json()["choices"][0]["token_ids"] == ids[ended:]
