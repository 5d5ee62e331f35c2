"""The `openai` SDK against a real engine, through the gateway as its operator runs it.

The model is small and says odd things: what is tested is the interface, and what the engine is made to say by a constraint.
"""

import asyncio
import itertools
import json
import time
import urllib.request
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionTokenLogprob
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from support.llamacpp import EngineUnderTest
from support.process import ServeProcess, serve_process
from support.sdk import (
    MODEL,
    ask,
    busy_slots,
    fields,
    folded,
    function,
    new_async_client,
    new_client,
    said,
    schema_of,
    stream,
    until,
    warm,
)

pytestmark = pytest.mark.engine

FREE_WITHIN_S = 1.0
COLOURS = "Name three colours."
WEATHER = function("get_weather", {"city": {"type": "string", "maxLength": 12}})
ALARM = function("set_alarm", {"hour": {"type": "integer", "minimum": 0, "maximum": 23}, "daily": {"type": "boolean"}})
_LINE = {
    "type": "object",
    "properties": {
        "fruit": {"enum": ["apple", "pear"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "ripe": {"type": "boolean"},
    },
    "required": ["fruit", "count", "ripe"],
    "additionalProperties": False,
}
_LINES = {"type": "array", "items": _LINE, "minItems": 1, "maxItems": 2}
ORDER = function("place_order", {"lines": _LINES, "gift": {"type": "boolean"}})


def settings_of(engine: EngineUnderTest) -> dict[str, Any]:
    engines = [{"id": "local", "url": engine.url, "kind": "llamacpp"}]
    return {"models": [{"name": MODEL, "source": str(engine.model), "tools": "constrained", "engines": engines}]}


@pytest.fixture(scope="module")
def gateway(local_engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with serve_process(settings_of(local_engine), tmp_path_factory.mktemp("gateway")) as process:
        yield process


@pytest.fixture(scope="module")
def client(gateway: ServeProcess) -> Iterator[OpenAI]:
    with new_client(gateway.url) as client:
        yield client


def called(arguments: str, call_id: str = "call_1") -> dict[str, Any]:
    """An assistant's message with one call of `get_weather`."""
    call = {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


# Plain answers


def test_a_streamed_answer_is_the_whole_one(client: OpenAI) -> None:
    warm(client, COLOURS)
    whole = ask(client, COLOURS, max_tokens=24)
    chunks = stream(client, COLOURS, max_tokens=24)
    assert folded(chunks) == said(whole)
    assert len(said(whole).content) > 20
    assert len(chunks) > 20
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert {(chunk.model, chunk.object) for chunk in chunks} == {(MODEL, "chat.completion.chunk")}
    assert len({chunk.id for chunk in chunks}) == 1
    assert (whole.model, whole.object, whole.choices[0].message.role) == (MODEL, "chat.completion", "assistant")


def test_usage_adds_up_and_is_streamed_where_it_is_asked_for(client: OpenAI) -> None:
    whole = ask(client, COLOURS, max_completion_tokens=5).usage
    *chunks, last = stream(client, COLOURS, max_completion_tokens=5, stream_options={"include_usage": True})
    assert whole is not None
    assert last.usage is not None
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.prompt_tokens, whole.completion_tokens)
    assert whole.total_tokens == whole.prompt_tokens + whole.completion_tokens
    assert all(chunk.usage is None for chunk in (*chunks, *stream(client, COLOURS, max_tokens=2)))


def test_the_token_limit_ends_an_answer(client: OpenAI) -> None:
    answer = ask(client, COLOURS, max_completion_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_a_repeated_prefix_is_cached(client: OpenAI) -> None:
    story = "The fox went to the river and counted the stones: " + ", ".join(str(number) for number in range(60))
    first = ask(client, story, max_tokens=4)
    turn: list[Any] = [{"role": "user", "content": story}, first.choices[0].message, {"role": "user", "content": "Go on."}]
    second = ask(client, turn, max_tokens=4)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens > 150
    assert first.usage.prompt_tokens - 1 <= (second.usage.prompt_tokens_details.cached_tokens or 0) < second.usage.prompt_tokens


def test_several_choices_come_apart(client: OpenAI) -> None:
    whole = ask(client, COLOURS, n=2, temperature=1, max_tokens=10)
    chunks = stream(client, COLOURS, n=2, temperature=1, max_tokens=10)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert len({choice.message.content for choice in whole.choices}) == 2
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 20
    for index in (0, 1):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert [choice.delta.role for choice in own].count("assistant") == 1
        assert [choice.finish_reason for choice in own] == [None] * (len(own) - 1) + ["length"]
        assert "".join(choice.delta.content or "" for choice in own)


def test_a_stop_string_over_two_tokens_ends_the_answer_before_it(client: OpenAI) -> None:
    warm(client, COLOURS)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream(client, COLOURS, max_tokens=24)]
    text = "".join(pieces)
    joints = [end for end in itertools.accumulate(map(len, pieces)) if 8 < end < len(text) - 2]
    at = next(end - 2 for end in joints if text.find(text[end - 2 : end + 2]) == end - 2)
    stop = text[at : at + 4]
    whole = said(ask(client, COLOURS, max_tokens=24, stop=[stop]))
    streamed = folded(stream(client, COLOURS, max_tokens=24, stop=stop))
    assert (whole.content, whole.finish_reason) == (text[:at], "stop")
    assert streamed == whole


def test_a_seed_repeats_an_answer(client: OpenAI) -> None:
    warm(client, COLOURS)
    first, again, other = (said(ask(client, COLOURS, temperature=1, seed=seed)).content for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_a_developer_message_is_a_system_message(client: OpenAI) -> None:
    user = {"role": "user", "content": "Who are you?"}
    answers = []
    for role in ("system", "developer"):
        messages = [{"role": role, "content": "You are a pirate."}, user]
        warm(client, messages)
        answer = ask(client, messages)
        assert answer.usage is not None
        answers.append((said(answer), answer.usage.prompt_tokens))
    assert answers[0] == answers[1]
    assert answers[0][0] != said(ask(client, [user]))


def test_content_in_parts_is_content(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "Name three"}, {"type": "text", "text": "colours."}]
    warm(client, "Name three\ncolours.")
    plain, listed = ask(client, "Name three\ncolours."), ask(client, [{"role": "user", "content": parts}])
    assert said(plain) == said(listed)
    assert plain.usage is not None
    assert listed.usage is not None
    assert plain.usage.prompt_tokens == listed.usage.prompt_tokens


# Tools


@pytest.mark.parametrize("streamed", [False, True])
def test_a_required_call_satisfies_its_nested_schema(client: OpenAI, streamed: bool) -> None:
    asked = "Order three ripe apples."
    options = {"tools": [ORDER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 120}
    answer = folded(stream(client, asked, **options)) if streamed else said(ask(client, asked, **options))
    ((name, arguments),) = answer.calls
    assert (name, answer.content, answer.finish_reason) == ("place_order", "", "tool_calls")
    jsonschema_rs.validate(schema_of(ORDER), json.loads(arguments))


def test_a_call_is_streamed_in_the_sdks_own_types(client: OpenAI) -> None:
    request = fields("Wake me at seven.", tools=[ALARM], tool_choice="required", parallel_tool_calls=False, max_tokens=60)
    with client.chat.completions.with_streaming_response.create(**request, stream=True) as response:
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    chunks = [ChatCompletionChunk.model_validate_json(each, strict=True) for each in data]
    assert [name for chunk in chunks for name in beyond_types(chunk)] == []
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]
    assert [piece.index for piece in pieces] == [0] * len(pieces)
    assert [bool(piece.id) for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert pieces[0].function is not None
    assert (pieces[0].type, pieces[0].function.name) == ("function", "set_alarm")
    assert len(pieces) > 3
    jsonschema_rs.validate(schema_of(ALARM), json.loads(folded(chunks).calls[0][1]))


def beyond_types(value: object) -> list[str]:
    """The names of fields that the SDK's types do not have."""
    if isinstance(value, list):
        return [name for each in value for name in beyond_types(each)]
    if not isinstance(value, BaseModel):
        return []
    return [*(value.model_extra or ()), *(name for _, own in value for name in beyond_types(own) if own is not value)]


@pytest.mark.parametrize("options", [{}, {"parallel_tool_calls": True}, {"parallel_tool_calls": False}])
def test_a_model_not_trained_for_tools_makes_one_call_an_answer(client: OpenAI, options: dict[str, Any]) -> None:
    rome, paris = called('{"city": "Rome"}', "call_1"), called('{"city": "Paris"}', "call_2")
    both = {**rome, "tool_calls": rome["tool_calls"] + paris["tool_calls"]}
    results = [{"role": "tool", "tool_call_id": f"call_{number}", "content": f"{20 + number} degrees"} for number in (2, 1)]
    messages = [{"role": "user", "content": "Rome and Paris?"}, both, *results, {"role": "user", "content": "Again, both."}]
    answer = said(ask(client, messages, tools=[WEATHER, ALARM], tool_choice="required", max_tokens=60, **options))
    assert (len(answer.calls), answer.content, answer.finish_reason) == (1, "", "tool_calls")


@pytest.mark.parametrize(("max_tokens", "named"), [(12, False), (24, True)])
def test_a_call_that_the_token_limit_cuts_is_no_call(client: OpenAI, gateway: ServeProcess, max_tokens: int, named: bool) -> None:
    options = {"tools": [ALARM], "tool_choice": "required", "max_tokens": max_tokens}
    before = truncated_calls(gateway)
    whole = said(ask(client, "Wake me at seven.", **options))
    streamed = folded(stream(client, "Wake me at seven.", **options))
    assert (whole.calls, whole.finish_reason, streamed.finish_reason) == ((), "length", "length")
    assert [name for name, _ in streamed.calls] == (["set_alarm"] if named else [])
    assert whole.content.startswith("<tool_call>")
    assert streamed.content == ("" if named else whole.content)
    assert truncated_calls(gateway) == before + 2


def truncated_calls(gateway: ServeProcess) -> float:
    with urllib.request.urlopen(f"{gateway.admin_url}/metrics", timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples if sample.name == "interlock_parse_failures_total"]
    return sum(sample.value for sample in samples if sample.labels["kind"] == "truncated_call")


@pytest.mark.parametrize(("tool", "other"), [(ALARM, WEATHER), (WEATHER, ALARM)])
def test_a_named_function_is_the_one_that_is_called(client: OpenAI, tool: dict[str, Any], other: dict[str, Any]) -> None:
    name = tool["function"]["name"]
    choice = {"type": "function", "function": {"name": name}}
    answer = said(ask(client, "Good morning.", tools=[other, tool], tool_choice=choice, max_tokens=60))
    ((called_name, arguments),) = answer.calls
    assert (called_name, answer.finish_reason) == (name, "tool_calls")
    jsonschema_rs.validate(schema_of(tool), json.loads(arguments))


def test_the_model_may_choose_between_text_and_a_call(client: OpenAI) -> None:
    options = {"tools": [WEATHER], "tool_choice": "auto", "parallel_tool_calls": False, "max_tokens": 50}
    turns = [(f"Weather in {city}?", called(f'{{"city": "{city}"}}', f"call_{city}")) for city in ("Paris", "Rome", "Lima")]
    examples = [message for asked, call in turns for message in ({"role": "user", "content": asked}, call)]
    text = said(ask(client, "Hello.", **options))
    call = said(ask(client, [*examples, {"role": "user", "content": "Weather in Oslo?"}], **options))
    assert (text.calls, text.finish_reason) == ((), "stop")
    assert text.content
    assert (call.calls, call.content, call.finish_reason) == ((("get_weather", '{"city": "Oslo"}'),), "", "tool_calls")


def test_without_a_choice_of_tools_they_are_not_shown(client: OpenAI) -> None:
    warm(client, COLOURS)
    without, none = ask(client, COLOURS), ask(client, COLOURS, tools=[WEATHER], tool_choice="none")
    assert said(none) == said(without)
    assert none.usage is not None
    assert without.usage is not None
    assert none.usage.prompt_tokens == without.usage.prompt_tokens


def test_a_tools_result_is_read_in_the_next_turn(client: OpenAI) -> None:
    tools = [function("get_weather", {"city": {"enum": ["Paris"]}}), ALARM]
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = ask(client, messages, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=40)
    calls = first.choices[0].message.tool_calls
    assert calls is not None
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "Sunny, 21 degrees"}
    second = ask(client, [*messages, first.choices[0].message, result], tools=tools, max_tokens=40)
    assert "21" in said(second).content
    assert said(second).finish_reason == "stop"
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.prompt_tokens - 1


def test_broken_arguments_in_the_history_fail_nothing_and_stay_in_the_prompt(client: OpenAI) -> None:
    prompt_tokens = {}
    for arguments in ("", '{"city": ', "[1]", '"{\\"city\\": \\"Paris\\"}"'):
        result = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees"}
        messages = [{"role": "user", "content": "What is the weather in Paris?"}, called(arguments), result]
        answer = ask(client, messages, tools=[WEATHER, ALARM], max_tokens=8)
        assert said(answer).content
        assert answer.usage is not None
        prompt_tokens[arguments] = answer.usage.prompt_tokens
    empty = prompt_tokens.pop("")
    assert all(tokens > empty for tokens in prompt_tokens.values()), prompt_tokens


# Tokens

COUNT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "é🦙"}}}


def text_of(tokens: Iterable[ChatCompletionTokenLogprob]) -> str:
    return b"".join(bytes(token.bytes or ()) for token in tokens).decode()


def whole_tokens(answer: ChatCompletion) -> list[ChatCompletionTokenLogprob]:
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    return told.content


def streamed_tokens(chunks: Iterable[ChatCompletionChunk]) -> list[ChatCompletionTokenLogprob]:
    told = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs is not None]
    return [token for each in told for token in each.content or ()]


def test_log_probabilities_are_the_models_streamed_and_whole(client: OpenAI) -> None:
    warm(client, COLOURS)
    whole = ask(client, COLOURS, max_tokens=12, logprobs=True, top_logprobs=3)
    chunks = stream(client, COLOURS, max_tokens=12, logprobs=True, top_logprobs=3)
    tokens = whole_tokens(whole)
    assert len(tokens) == 12
    assert text_of(tokens) == said(whole).content == folded(chunks).content
    assert streamed_tokens(chunks) == tokens
    for token in tokens:  # a greedy model says the likeliest
        assert [other.logprob for other in token.top_logprobs] == sorted([o.logprob for o in token.top_logprobs], reverse=True)
        assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)
        assert (len(token.top_logprobs), token.logprob < 0) == (3, True)
    for chunk in (choice for each in chunks for choice in each.choices if choice.delta.content):
        assert chunk.logprobs is not None
        assert text_of(chunk.logprobs.content or ()) == chunk.delta.content


def test_the_end_of_the_turn_has_a_log_probability_too(client: OpenAI) -> None:
    answer = ask(client, "Hello.", max_tokens=60, logprobs=True)
    tokens = whole_tokens(answer)
    assert answer.choices[0].finish_reason == "stop"
    assert tokens[-1].token == "<|im_end|>"
    assert text_of(tokens[:-1]) == said(answer).content
    assert all(token.top_logprobs == [] for token in tokens)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(tokens)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_calls_tokens_are_told(client: OpenAI, streamed: bool) -> None:
    options = {"tools": [ALARM], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60, "logprobs": True}
    if streamed:
        chunks = stream(client, "Wake me at seven.", **options)
        answer, tokens = folded(chunks), streamed_tokens(chunks)
    else:
        whole = ask(client, "Wake me at seven.", **options)
        answer, tokens = said(whole), whole_tokens(whole)
    ((_, arguments),) = answer.calls
    assert text_of(tokens).startswith("<tool_call>")
    assert arguments in text_of(tokens)


def test_tokens_that_the_engine_loses_at_split_characters_are_counted(client: OpenAI) -> None:
    whole = ask(client, COLOURS, max_tokens=20, response_format=COUNT, logprobs=True)
    told = whole.choices[0].logprobs
    assert said(whole).content == '"é🦙"'
    assert whole.usage is not None
    assert told is not None
    assert (told.model_extra or {})["missing_tokens"] == 3
    assert len(told.content or ()) + 3 == whole.usage.completion_tokens


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"extra_body": {"return_token_ids": True}}, "return_token_ids"),
    ],
)
def test_what_cannot_be_told_is_refused(client: OpenAI, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, COLOURS, **options)
    assert caught.value.param == param


# Answers in a given shape


class Fruit(Enum):
    APPLE = "apple"
    PEAR = "pear"


class Line(BaseModel):
    fruit: Fruit
    ripe: bool


class Order(BaseModel):
    line: Line
    gift: bool


def test_the_sdk_parses_answers_and_calls_into_the_clients_classes(client: OpenAI) -> None:
    request = fields("Order a fruit.", max_tokens=60)
    answer = client.chat.completions.parse(**request, response_format=Order).choices[0]
    tools = [openai.pydantic_function_tool(Order)]
    with client.chat.completions.stream(**request, tools=tools, tool_choice="required", parallel_tool_calls=False) as events:
        call = events.get_final_completion().choices[0]
    assert isinstance(answer.message.parsed, Order)
    assert answer.finish_reason == "stop"
    assert call.message.tool_calls is not None
    assert isinstance(call.message.tool_calls[0].function.parsed_arguments, Order)
    assert call.finish_reason == "tool_calls"


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_satisfies_the_schema_that_it_was_given(client: OpenAI, streamed: bool) -> None:
    schema = schema_of(ORDER)
    options = {"response_format": {"type": "json_schema", "json_schema": {"name": "order", "schema": schema}}, "max_tokens": 100}
    answer = folded(stream(client, "Order pears.", **options)) if streamed else said(ask(client, "Order pears.", **options))
    assert answer.finish_reason == "stop"
    jsonschema_rs.validate(schema, json.loads(answer.content))


def test_a_json_object_is_one(client: OpenAI) -> None:
    asked = 'Write a JSON object with the key "name" of a person.'
    answer = said(ask(client, asked, response_format={"type": "json_object"}, max_tokens=120))
    assert answer.finish_reason == "stop"
    assert isinstance(json.loads(answer.content), dict)


def test_characters_of_many_tokens_come_whole(client: OpenAI) -> None:
    text = 'Größe 🦙🏽 漢字 "\\\n'
    shape = {"type": "json_schema", "json_schema": {"name": "text", "schema": {"enum": [text]}}}
    chunks = stream(client, f"Say {text}", response_format=shape, max_tokens=60)
    assert json.loads(folded(chunks).content) == text
    assert not any("\ufffd" in (choice.delta.content or "") for chunk in chunks for choice in chunk.choices)


# Leaving


def endless(**changed: Any) -> dict[str, Any]:
    """A request that would keep a slot for many seconds."""
    return fields(COLOURS, max_tokens=1500, extra_body={"ignore_eos": True}, **changed)


def free_within(engine: EngineUnderTest, left_s: float) -> None:
    until(lambda: busy_slots(engine.url) == 0, FREE_WITHIN_S - (time.monotonic() - left_s), "the engine's slots are free")


def test_a_client_that_leaves_a_stream_frees_the_engine(client: OpenAI, local_engine: EngineUnderTest) -> None:
    with client.chat.completions.create(**endless(), stream=True) as chunks:
        assert len(list(itertools.islice(chunks, 4))) == 4
        assert busy_slots(local_engine.url) >= 1
        left_s = time.monotonic()
    free_within(local_engine, left_s)


@pytest.mark.parametrize(("timeout_s", "raised"), [(40, asyncio.CancelledError), (2, openai.APITimeoutError)])
async def test_a_client_that_leaves_before_its_answer_frees_the_engine(
    gateway: ServeProcess, local_engine: EngineUnderTest, timeout_s: float, raised: type[BaseException]
) -> None:
    async with new_async_client(gateway.url) as client:
        waiting = asyncio.create_task(client.chat.completions.create(**endless(), timeout=timeout_s))
        await asyncio.to_thread(until, lambda: busy_slots(local_engine.url) > 0, timeout_s, "the engine works")
        if raised is asyncio.CancelledError:
            waiting.cancel()
        with pytest.raises(raised):
            await waiting
        await asyncio.to_thread(free_within, local_engine, time.monotonic())


async def test_more_streams_than_slots_all_come_complete_and_unmixed(gateway: ServeProcess) -> None:
    async with new_async_client(gateway.url) as client:

        async def one(number: int) -> tuple[str, set[str], str | None]:
            schema = {"enum": [f"{number} green bottles"]}
            request = fields("Go.", response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
            chunks = [chunk async for chunk in await client.chat.completions.create(**request, stream=True)]
            answer = folded(chunks)
            return answer.content, {chunk.id for chunk in chunks}, answer.finish_reason

        answers = await asyncio.gather(*map(one, range(6)))
    assert [json.loads(content) for content, _, _ in answers] == [f"{number} green bottles" for number in range(6)]
    assert len(set().union(*(ids for _, ids, _ in answers))) == 6
    assert {reason for _, _, reason in answers} == {"stop"}


# Errors, and what is beside the answers


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"n": 99}, "n"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"extra_body": {"chat_template": "{{ messages }}"}}, "chat_template"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_bad_request_names_its_field(client: OpenAI, changed: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**fields("Hello", **changed))
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
    assert param.rpartition(".")[2] in caught.value.message
    assert caught.value.request_id


def test_an_unknown_model_is_named(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "Hello", model="no-such-model")
    assert "no-such-model" in caught.value.message
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.models.retrieve("no-such-model")


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_over_the_context_is_told_by_its_code(client: OpenAI, streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as caught:
        client.chat.completions.create(**fields("word " * 4200), stream=streamed)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"


def test_an_answer_says_its_id_and_what_was_ignored(client: OpenAI) -> None:
    request = fields("Hello", max_tokens=2, extra_body={"frobnicate": 1})
    answers = [client.chat.completions.with_raw_response.create(**request) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == 2
    assert answers[0].parse().id == f"chatcmpl-{ids[0]}"
    assert answers[0].headers["x-interlock-ignored"] == "frobnicate"


def test_the_command_ends_cleanly_and_has_logged_each_request_once(local_engine: EngineUnderTest, tmp_path: Path) -> None:
    ids: list[str | None] = []
    with serve_process(settings_of(local_engine), tmp_path) as process, new_client(process.url) as client:
        raw = client.chat.completions.with_raw_response
        ids.append(raw.create(**fields("Tell nobody: canary.", max_tokens=2)).headers["x-request-id"])
        answer = raw.create(**fields("Hello", max_tokens=2), stream=True)
        ids.append(answer.headers["x-request-id"])
        assert len(list(answer.parse())) > 1
        for changed in ({"n": 99}, {"model": "no-such-model"}):
            with pytest.raises(openai.APIStatusError) as caught:
                ask(client, "Hello", **changed)
            ids.append(caught.value.request_id)
        with client.chat.completions.create(**endless(), stream=True) as chunks:
            next(iter(chunks))
            ids.append(chunks.response.headers["x-request-id"])
        until(lambda: busy_slots(local_engine.url) == 0, FREE_WITHIN_S, "the engine's slot is free")
    assert [record["request_id"] for record in process.access_log] == ids
    assert [record["outcome"] for record in process.access_log] == ["ok", "ok", "client_error", "client_error", "client_gone"]
    assert [record["status"] for record in process.access_log] == [200, 200, 400, 404, 499]
    assert "canary" not in json.dumps(process.log)
