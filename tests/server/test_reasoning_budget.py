"""Thoughts that may have so many tokens, the whole way of a request: the gateway ends them, and the engine goes on from there."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from openai import AsyncOpenAI
from support.gateway import PAIR, Served, sample, scripted, serving, settings_for, tiny_model
from support.llamacpp import EngineUnderTest
from support.scripted_engine import CLOSE, HANG, HEAD, RESET, Seen, Step, chunked, completion, event, llama_end, llama_token
from support.vocabulary import CONTROL, DEFINED, SYNTAX, small_tokenizer

from engines.gbnf import gbnf
from gateway.request import CallAnswer, ToolSpec

END, THINK, CLOSER = 2, 5, 6  # <|im_end|>, <think>, </think>
OVER = sample("interlock_reasoning_budget_reached_total", **PAIR)
DONE: list[Step] = [chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE]
GREEDY = {"temperature": 0, "ignore_eos": True}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def ids_of(text: str) -> list[int]:
    """One token a byte, whatever the text spells."""
    return [len(CONTROL) + len(DEFINED) + byte for byte in text.encode()]


def tokens(ids: Sequence[int], size: int = 1) -> list[Step]:
    """vLLM's events, each with so many tokens."""
    parts = [ids[at : at + size] for at in range(0, len(ids), size)]
    return [event({"choices": [{"index": 0, "token_ids": list(part), "finish_reason": None}]}) for part in parts]


def end(prompt: Sequence[int], made: int, finish: str = "stop") -> list[Step]:
    last = {"index": 0, "token_ids": [END] if finish == "stop" else [], "finish_reason": finish}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": made, "prompt_tokens_details": {"cached_tokens": 16}}
    return [event({"choices": [last]}), event({"choices": [], "usage": usage}), *DONE]


def thinker(thought: str, answer: str, *, size: int = 1, then: Sequence[Step] | None = None) -> Callable[[Seen], list[Step]]:
    """A vLLM that thinks for ever until its thought is ended, and answers then."""

    def script(seen: Seen) -> list[Step]:
        prompt = seen.body["prompt"]
        if CLOSER not in prompt:
            return [HEAD, *tokens([THINK, *ids_of(thought)], size), HANG]
        return [HEAD, *(then or [*tokens(ids_of(answer), size), *end(prompt, len(answer) + 1)])]

    return script


def vllm(**changed: Any) -> Any:
    return scripted(kind="vllm", source=str(tiny_model("full")), format="hermes", **changed)


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_goes_on_from_the_ids_of_the_thought_and_its_end(size: int, stream: bool) -> None:
    async with vllm() as (engine, served):
        engine.script = thinker("abcdefghij", "Done", size=size)
        fields: dict[str, Any] = {"max_tokens": 99, "reasoning_budget": 6, "return_token_ids": True}
        message, ids, usage = await (streamed(served, **fields) if stream else whole(served, **fields))
        metrics = await served.metrics()
    first, second = (call.body for call in engine.calls)
    delivered = [THINK, *ids_of("abcdef"), CLOSER]
    assert second["prompt"] == [*first["prompt"], *delivered]
    assert second["max_tokens"] == 99 - len(delivered)
    assert message == {"reasoning_content": "abcdef", "content": "Done"}
    assert ids == [*delivered, *ids_of("Done"), END]
    assert usage["prompt_tokens"] == len(first["prompt"])
    assert usage["completion_tokens"] == len(delivered) + 5
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 6
    assert metrics[OVER] == 1
    assert engine.calls[0].closed.is_set()


async def whole(served: Served, **fields: Any) -> tuple[dict[str, Any], list[int], dict[str, Any]]:
    said = (await served.chat(**fields)).json()
    (choice,) = said["choices"]
    parts = {name: choice["message"][name] for name in ("reasoning_content", "content")}
    return parts, choice["token_ids"], said["usage"]


async def streamed(served: Served, **fields: Any) -> tuple[dict[str, Any], list[int], dict[str, Any]]:
    *events, last, done = await served.stream(stream_options={"include_usage": True}, **fields)
    assert done == "[DONE]"
    choices = [choice for each in events for choice in each["choices"]]
    parts = {name: "".join(choice["delta"].get(name) or "" for choice in choices) for name in ("reasoning_content", "content")}
    return parts, [token for choice in choices for token in choice.get("token_ids") or ()], last["usage"]


async def test_a_thought_within_its_budget_is_left_alone() -> None:
    async with vllm() as (engine, served):
        ids = [THINK, *ids_of("abc"), CLOSER, *ids_of("Done")]
        engine.script = lambda seen: [HEAD, *tokens(ids), *end(seen.body["prompt"], len(ids) + 1)]
        message, _, usage = await whole(served, max_tokens=99, reasoning_budget=4, return_token_ids=True)
        metrics = await served.metrics()
    assert len(engine.calls) == 1
    assert message == {"reasoning_content": "abc", "content": "Done"}
    assert usage["prompt_tokens_details"]["cached_tokens"] == 16
    assert metrics[OVER] == 0


async def test_what_is_cached_of_an_engine_that_was_cut_before_it_said_so_is_not_known() -> None:
    """What the second call finds in the cache is what the first has left there."""
    async with vllm() as (engine, served):
        engine.script = thinker("abcdefghij", "Done")
        said = (await served.chat(max_tokens=99, reasoning_budget=6)).json()
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_without_any_tokens_for_it_a_thought_that_the_prompt_opens_is_ended_there() -> None:
    opened = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "<think>"}]
    async with vllm(control_tokens="special") as (engine, served):
        engine.script = thinker("never", "Done")
        fields: dict[str, Any] = {"continue_final_message": True, "messages": opened, "max_tokens": 99}
        said = (await served.chat(reasoning_budget=0, **fields)).json()
    (call,) = engine.calls
    assert call.body["prompt"][-2:] == [THINK, CLOSER]
    assert said["choices"][0]["message"]["content"] == "Done"
    assert said["usage"]["prompt_tokens"] == len(call.body["prompt"]) - 1
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 16


async def test_a_thought_is_ended_by_the_closer_of_the_opener_that_the_prompt_chose() -> None:
    fields: dict[str, Any] = {"continue_final_message": True, "max_tokens": 199, "reasoning_budget": 0}
    fields["messages"] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "<ifm|think_fast>"}]
    source = str(tiny_model("full"))
    async with scripted(kind="vllm", source=source, format="k2_horizon", control_tokens="special") as (engine, served):
        engine.script = lambda seen: [HEAD, *tokens(ids_of("Done")), *end(seen.body["prompt"], 5)]
        said = (await served.chat(**fields)).json()
    (call,) = engine.calls
    closer = [*small_tokenizer().encode("</ifm|think_fast>")]
    assert call.body["prompt"][-len(closer) :] == closer
    assert said["choices"][0]["message"]["content"] == "Done"


async def test_a_character_is_not_cut() -> None:
    async with vllm() as (engine, served):
        engine.script = thinker("ab🦙cdef", "Done")
        message, _, _ = await whole(served, max_tokens=99, reasoning_budget=3, return_token_ids=True)
    assert message == {"reasoning_content": "ab🦙", "content": "Done"}


async def test_where_no_token_is_left_the_answer_is_cut() -> None:
    async with vllm() as (engine, served):
        engine.script = thinker("abcdef", "never")
        said = (await served.chat(max_tokens=5, reasoning_budget=3)).json()
    assert len(engine.calls) == 1
    (choice,) = said["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"] == "abc"
    assert not choice["message"]["content"]


async def test_where_its_end_has_no_place_the_thought_is_cut() -> None:
    async with vllm() as (engine, served):
        engine.script = thinker("abcdef", "never")
        said = (await served.chat(max_tokens=4, reasoning_budget=3)).json()
        failures = await served.metrics()
    (choice,) = said["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"] == "abc"
    assert said["usage"]["completion_tokens"] == 4
    assert failures[sample("interlock_parse_failures_total", **PAIR, format="hermes", kind="truncated_reasoning")] == 1


async def test_the_token_limit_ends_a_thought_that_is_shorter_than_its_budget() -> None:
    async with vllm() as (engine, served):
        engine.script = lambda seen: [HEAD, *tokens([THINK, *ids_of("abc")]), *end(seen.body["prompt"], 4, "length")]
        said = (await served.chat(max_tokens=4, reasoning_budget=4)).json()
        failures = await served.metrics()
    assert said["choices"][0]["finish_reason"] == "length"
    assert failures[sample("interlock_parse_failures_total", **PAIR, format="hermes", kind="truncated_reasoning")] == 1
    assert failures[OVER] == 0


async def test_an_engine_that_fails_on_the_way_is_an_error_after_what_was_said() -> None:
    async with vllm() as (engine, served):
        engine.script = thinker("abcdef", "never", then=[RESET])
        *events, last = await served.stream(max_tokens=99, reasoning_budget=3)
    assert "".join(each["choices"][0]["delta"].get("reasoning_content") or "" for each in events) == "abc"
    assert "ended in the middle" in last["error"]["message"]


async def test_a_grammar_holds_from_where_the_thought_was_ended() -> None:
    opened = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "<think>"}]
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    async with vllm(control_tokens="special") as (engine, served):
        made = [*tokens(ids_of(call)), *end([], len(call) + 1)]
        engine.script = lambda seen: [HEAD, *(made if CLOSER in seen.body["prompt"] else [*tokens(ids_of("abcdef")), HANG])]
        fields: dict[str, Any] = {"continue_final_message": True, "messages": opened, "tools": TOOLS, "tool_choice": "required"}
        said = (await served.chat(reasoning_budget=3, max_tokens=99, **fields)).json()
        await served.chat(reasoning_budget=0, max_tokens=99, **fields)
    first, second, third = (each.body["structured_outputs"]["grammar"] for each in engine.calls)
    assert first != second == third
    constraint = CallAnswer((ToolSpec("f"),), **asdict(SYNTAX), or_text=False, max_calls=8)
    assert second == gbnf(constraint)
    assert said["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"


async def test_the_least_tokens_are_those_of_the_whole_answer() -> None:
    async with vllm() as (engine, served):
        engine.script = thinker("abcdef", "Done")
        await served.chat(max_tokens=99, reasoning_budget=3, min_tokens=20)
    assert [call.body["min_tokens"] for call in engine.calls] == [20, 15]


async def test_of_characters_whose_ids_were_lost_the_vocabularys_are_taken() -> None:
    """llama.cpp tells of a character in several tokens the last id only."""
    steps = [llama_token("<think>", 1, THINK), llama_token("a", 2, *ids_of("a")), llama_token("é", 4, ids_of("é")[-1])]

    def script(seen: Seen) -> list[Step]:
        if CLOSER not in seen.body["prompt"]:
            return [HEAD, *map(event, steps), HANG]
        return [HEAD, event(llama_token("Done", 1)), event(llama_end(1)), b"0\r\n\r\n", CLOSE]

    async with scripted(source=str(tiny_model("full")), format="hermes") as (engine, served):
        engine.script = script
        said = (await served.chat(max_tokens=99, reasoning_budget=3)).json()
    first, second = (call.body["prompt"] for call in engine.calls)
    assert second == [*first, THINK, *ids_of("aé"), CLOSER]
    assert said["choices"][0]["message"]["content"] == "Done"
    assert said["choices"][0]["message"]["reasoning_content"] == "aé"


async def test_a_turn_that_ends_with_the_budget_is_not_gone_on_from_its_end() -> None:
    """llama.cpp's stop token is known before the event that says that it ended the turn."""
    steps = [llama_token("<think>", 1, THINK), llama_token("a", 2, *ids_of("a")), llama_token("", 3, END)]

    def script(seen: Seen) -> list[Step]:
        if CLOSER not in seen.body["prompt"]:
            return [HEAD, *map(event, steps), HANG]
        return [HEAD, event(llama_token("Done", 1)), event(llama_end(1)), b"0\r\n\r\n", CLOSE]

    async with scripted(source=str(tiny_model("full")), format="hermes") as (engine, served):
        engine.script = script
        said = (await served.chat(max_tokens=99, reasoning_budget=2)).json()
    first, second = (call.body["prompt"] for call in engine.calls)
    assert second == [*first, THINK, *ids_of("a"), CLOSER]
    assert said["choices"][0]["message"]["content"] == "Done"


async def test_each_choice_has_a_budget_of_its_own() -> None:
    async with vllm() as (engine, served):
        engine.script = thinker("abcdef", "Done")
        said = (await served.chat(max_tokens=99, reasoning_budget=3, n=2)).json()
        metrics = await served.metrics()
    assert [choice["message"]["content"] for choice in said["choices"]] == ["Done", "Done"]
    assert len(engine.calls) == 4
    assert metrics[OVER] == 2


async def test_a_model_without_thoughts_has_none_to_end() -> None:
    async with scripted(format="plain") as (engine, served):
        engine.script = lambda seen: completion("<think>", "Hi")
        said = (await served.chat(reasoning_budget=0)).json()
    assert said["choices"][0]["message"]["content"] == "<think>Hi"
    assert len(engine.calls) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_budget": -1}, "reasoning_budget"),
        ({"reasoning_budget": "many"}, "reasoning_budget"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"reasoning_budget": 1, "thinking_token_budget": 2}, "thinking_token_budget"),
    ],
)
async def test_what_is_no_budget_is_refused(fields: dict[str, Any], param: str) -> None:
    async with scripted() as (engine, served):
        response = await served.chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert engine.calls == []


@pytest.mark.engine
@pytest.mark.parametrize("stream", [False, True])
async def test_a_real_engine_goes_on(local_engine: EngineUnderTest, stream: bool) -> None:
    """SmolLM2 never ends a thought by itself: it was not trained to. What it writes after the end is an answer."""
    opened = [{"role": "user", "content": "Say hello."}, {"role": "assistant", "content": "<think>\nThe user"}]
    settings = settings_for(local_engine.url, source=str(local_engine.model), format="hermes")
    async with serving(settings) as served:
        fields = {"messages": opened, "continue_final_message": True, "max_tokens": 24, "reasoning_budget": 8, **GREEDY}
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="-") as sdk:
            said = await sdk.with_options(max_retries=0).chat.completions.create(model="m", messages=[], extra_body=fields)
        events = await served.stream(**fields) if stream else []
        metrics = await served.metrics()
    message, usage = said.choices[0].message, said.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 8
    assert message.content
    assert len(message.content.split()) > 2
    thought = message.model_extra and message.model_extra["reasoning_content"]
    assert thought
    assert metrics[OVER] == 1 + stream
    if stream:
        deltas = [choice["delta"] for each in events[:-1] for choice in each["choices"]]
        assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == thought
        assert "".join(delta.get("content") or "" for delta in deltas) == message.content


def test_ids_here_are_the_vocabularys() -> None:
    assert small_tokenizer().encode("<think></think>é") == (THINK, CLOSER, *ids_of("é"))
