"""What is timed of an answer: thoughts and what is none, each answer of several, prompts here and apart."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.gateway import PAIR, Served, sample, scripted, tiny_model
from support.scripted_engine import CLOSE, HEAD, Step, chat, chunked, completion, event, llama_token
from support.vocabulary import CONTROL, DEFINED, fixed_clock, model_files

from gateway.prompt.renderer import Draft, Renderer

END, THINK, CLOSER = 2, 5, 6  # <|im_end|>, <think>, </think>
PAUSE_S = 0.3


def spoken(text: str) -> list[int]:
    """One token a byte."""
    return [len(CONTROL) + len(DEFINED) + byte for byte in text.encode()]


def parts(*ids_or_pauses: Sequence[int] | float) -> list[Step]:
    """A vLLM's answer, in these parts."""
    steps: list[Step] = [HEAD]
    for part in ids_or_pauses:
        choice = {"index": 0, "token_ids": part, "finish_reason": None}
        steps.append(part if isinstance(part, float) else event({"choices": [choice]}))
    end = {"index": 0, "token_ids": [END], "finish_reason": "stop"}
    return [*steps, event({"choices": [end]}), chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE]


def vllm(**changed: Any) -> Any:
    return scripted(kind="vllm", source=str(tiny_model("full")), format="hermes", **changed)


async def value(served: Served, name: str, **labels: str) -> float | None:
    return (await served.metrics()).get(sample(f"interlock_{name}", **(labels or PAIR)))


@pytest.mark.parametrize("stream", [True, False])
async def test_the_first_output_is_no_thought(stream: bool) -> None:
    async with vllm() as (engine, served):
        engine.script = lambda seen: parts([THINK], spoken("ab"), PAUSE_S, [CLOSER], spoken("Hi"))
        assert (await served.chat(stream=stream)).status_code == 200
        ttft_s = await value(served, "time_to_first_token_seconds_sum")
        output_s = await value(served, "time_to_first_output_seconds_sum")
        assert ttft_s is not None
        assert output_s is not None
        assert output_s - ttft_s > PAUSE_S / 2  # of which a late look at the first takes some away
        assert await value(served, "reasoning_tokens_total") == 2


async def test_an_answer_of_thoughts_alone_has_no_first_output() -> None:
    async with vllm() as (engine, served):
        engine.script = lambda seen: parts([THINK], spoken("ab"))
        await served.chat(stream=True)
        assert await value(served, "time_to_first_token_seconds_count") == 1
        assert await value(served, "time_to_first_output_seconds_count") is None


async def test_a_call_is_output() -> None:
    async with vllm() as (engine, served):
        engine.script = lambda seen: parts(spoken('<tool_call>{"name": "f", "arguments": {}}</tool_call>'))
        await served.chat(stream=True, tools=[{"type": "function", "function": {"name": "f"}}])
        assert await value(served, "time_to_first_output_seconds_count") == 1


async def test_an_engine_that_parses_itself_has_both() -> None:
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: chat("Hi", " there")
        await served.chat(stream=True)
        assert await value(served, "time_to_first_output_seconds_count") == 1
        assert await value(served, "time_per_output_token_seconds_count") == 1


async def test_each_answer_given_has_its_time_per_token_and_why_it_ended() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion(*"abcd", pause_s=0.02)
        await served.chat(n=3)
        engine.script = lambda seen: completion("a")  # no token follows the first
        await served.chat()
        engine.script = lambda seen: completion("a", "b", stop_type="limit")
        await served.chat(max_tokens=2)
        assert await value(served, "time_per_output_token_seconds_count") == 4
        seconds = await value(served, "time_per_output_token_seconds_sum") or 0
        assert seconds >= 3 * 0.02
        ended = [
            await value(served, "answers_total", **PAIR, format="plain", finish_reason=reason)
            for reason in ("stop", "length", "tool_calls", "content_filter")
        ]
        assert ended == [4, 1, 0, 0]


async def test_an_answer_that_was_cut_is_not_counted_as_given() -> None:
    async with scripted(failures={"attempts": 1}) as (engine, served):
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), event(llama_token("b", 2)), CLOSE]
        assert (await served.chat()).status_code == 502
        metrics = await served.metrics()
    assert sum(count for name, count in metrics.items() if name.startswith("interlock_answers_total")) == 0
    assert sample("interlock_time_per_output_token_seconds_count", **PAIR) not in metrics


@pytest.mark.parametrize("workers", [0, 1])
async def test_prompts_are_timed_where_they_are_made(workers: int) -> None:
    async with scripted(limits={"render_workers": workers}) as (_, served):
        long = [{"role": "user", "content": "word " * 1_000}]
        assert (await served.chat(messages=long)).status_code == 200
        render_s = await value(served, "render_seconds_sum", model="m")
        tokenize_s = await value(served, "tokenize_seconds_sum", model="m")
        counts = [await value(served, f"{name}_seconds_count", model="m") for name in ("render", "tokenize")]
    assert counts == [1, 1]
    assert render_s is not None
    assert tokenize_s is not None
    assert 0 < tokenize_s < render_s


async def test_a_model_whose_engine_makes_the_prompt_has_no_time_of_it() -> None:
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: chat("Hi")
        await served.chat()
        assert await value(served, "render_seconds_count", model="m") is None
        assert await value(served, "tokenize_seconds_count", model="m") is None


@pytest.mark.parametrize("content", ["Hello", "<|im_end|> is a token"])
def test_ids_are_timed_by_the_clock_given_and_take_no_time_without_one(content: str) -> None:
    ticks = iter(range(100))
    files = model_files("full")
    draft = Draft("default", {"messages": [{"role": "user", "content": content}], "add_generation_prompt": True})
    timed = Renderer(files, clock=fixed_clock, timer=lambda: float(next(ticks))).render(draft)
    untimed = Renderer(files, clock=fixed_clock).render(draft)
    assert (timed.tokenize_s, untimed.tokenize_s) == (1.0, None)
    assert timed == untimed
