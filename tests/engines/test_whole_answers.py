"""An engine's answer as one JSON value, where a stream was asked for: it says the same."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from engines.base import Chunk, Engine, Reader, TokenLogprob, Work
from engines.llamacpp import LlamaCpp
from engines.openai_compatible import OpenAiCompatible
from engines.sglang import Sglang
from engines.trtllm import TrtLlm
from engines.vllm import Vllm
from gateway.errors import EngineBroke, EngineRefused
from gateway.request import (
    ContentText,
    Delta,
    GenerateRequest,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

STOP = 3
KINDS: tuple[Engine, ...] = (LlamaCpp(), Vllm(), TrtLlm(), Sglang(), OpenAiCompatible())
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}


def reader(engine: Engine, logprobs: int | None = None) -> Reader:
    request = GenerateRequest("m", (), logprobs=logprobs)
    return engine.reader(Work(request=request, ids=(1, 2), stop_ids=frozenset({STOP}), stop_texts={STOP: "</s>"}, max_tokens=8))


def whole(engine: Engine, answer: Any, logprobs: int | None = None) -> Sequence[Chunk]:
    reading = reader(engine, logprobs)
    chunks = reading.whole(json.dumps(answer).encode())
    assert reading.done
    return chunks


def llamacpp(**changed: Any) -> dict[str, Any]:
    timings = {"cache_n": 4, "prompt_n": 1}
    said = {"index": 0, "content": "Hi</s>", "tokens": [8, 9, STOP], "stop": True, "stop_type": "eos", "stopping_word": ""}
    return {**said, "tokens_predicted": 3, "tokens_evaluated": 5, "timings": timings, "generation_settings": {}, **changed}


def completions(**changed: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "Hi", "token_ids": [8, 9, STOP], "prompt_token_ids": [1, 2], "logprobs": None, **changed}
    return {"id": "c", "object": "text_completion", "choices": [{"finish_reason": "stop", **choice}], "usage": USAGE}


def sglang(end: dict[str, Any] | None, last: int = STOP) -> dict[str, Any]:
    meta = {"id": "r", "finish_reason": end, "prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 4}
    return {"text": "Hi", "output_ids": [8, 9, last], "meta_info": meta}


def test_llamacpp_has_the_ids_too_and_the_end_without_its_text() -> None:
    first, last = whole(LlamaCpp(), llamacpp())
    assert (first.text, first.ids, first.tokens) == ("Hi", (8, 9), 3)
    assert (last.text, last.tokens, last.stop_id, last.finish, last.usage) == ("", 0, STOP, "stop", Usage(5, 3, 4))


def test_llamacpp_s_log_probabilities_come_with_it() -> None:
    likely = [{"id": token, "logprob": -0.5, "top_logprobs": [{"id": token, "logprob": -0.5}]} for token in (8, 9, STOP)]
    first, _ = whole(LlamaCpp(), llamacpp(completion_probabilities=likely), 1)
    assert first.logprobs == tuple(TokenLogprob(token, -0.5, ((token, -0.5),)) for token in (8, 9, STOP))


@pytest.mark.parametrize("engine", [Vllm(), TrtLlm()])
def test_completions_have_it_in_one_choice(engine: Engine) -> None:
    (chunk,) = whole(engine, completions())
    assert (chunk.ids, chunk.stop_id, chunk.tokens, chunk.finish, chunk.usage) == ((8, 9), STOP, 3, "stop", Usage(5, 3, 4))


def test_vllm_s_log_probabilities_come_with_it() -> None:
    said = {"token_logprobs": [-0.5] * 3, "top_logprobs": [{f"token_id:{token}": -0.5} for token in (8, 9, STOP)]}
    (chunk,) = whole(Vllm(), completions(logprobs=said), 1)
    assert chunk.logprobs == tuple(TokenLogprob(token, -0.5, ((token, -0.5),)) for token in (8, 9, STOP))


def test_sglang_has_it_as_an_event() -> None:
    (chunk,) = whole(Sglang(), sglang({"type": "stop", "matched": STOP}))
    assert (chunk.ids, chunk.stop_id, chunk.tokens, chunk.finish, chunk.usage) == ((8, 9), STOP, 3, "stop", Usage(5, 3, 4))


def test_a_chat_completion_becomes_the_events_that_would_have_said_it() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm", "tool_calls": [call]}
    choices = [
        {"index": 0, "message": message, "finish_reason": "tool_calls"},
        {"index": 1, "message": {"role": "assistant", "content": "Ho"}, "finish_reason": "stop"},
    ]
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "x", "choices": choices, "usage": USAGE}
    first, second, last = whole(OpenAiCompatible(), answer)
    said: tuple[Delta, ...] = (ReasoningText("Hm"), ContentText("Hi"), ToolCallStart(0, "c1", "f"))
    assert first.deltas == (*said, ToolCallArguments(0, '{"a":1}'), ToolCallEnd(0))
    assert (first.choice, first.finish, second.choice, second.deltas) == (0, "tool_calls", 1, (ContentText("Ho"),))
    assert (last.usage, last.finish) == (Usage(5, 3, 4), None)
    events = [json.loads(chunk.raw or b"") for chunk in (first, second, last)]
    assert [event["object"] for event in events] == ["chat.completion.chunk"] * 3
    assert events[0]["choices"] == [
        {"index": 0, "finish_reason": "tool_calls", "delta": {**message, "tool_calls": [{"index": 0, **call}]}}
    ]
    assert events[2]["choices"] == []
    assert events[2]["usage"] == USAGE


@pytest.mark.parametrize("engine", KINDS, ids=lambda engine: engine.kind)
def test_an_error_with_status_200_is_an_error(engine: Engine) -> None:
    for code, error in ((500, EngineBroke), (422, EngineRefused)):
        with pytest.raises(error):
            reader(engine).whole(json.dumps({"error": {"message": "no", "code": code}}).encode())


@pytest.mark.parametrize("engine", KINDS, ids=lambda engine: engine.kind)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"{}", b"[]", b"null", b'"ok"', b"<html>", b'{"choices": [1]}', b'{"choices": [{}]}']
)
def test_what_is_no_answer_is_a_broken_engine(engine: Engine, body: bytes) -> None:
    with pytest.raises(EngineBroke):
        reader(engine).whole(body)


@pytest.mark.parametrize(
    ("engine", "answer"),
    [
        (LlamaCpp(), llamacpp(stop=False)),
        (Vllm(), completions(finish_reason=None, token_ids=[8, 9, 10])),
        (TrtLlm(), completions(token_ids=None)),
        (Sglang(), sglang(None, 10)),
    ],
)
def test_one_that_does_not_say_why_it_ended_may_be_cut(engine: Engine, answer: Any) -> None:
    with pytest.raises(EngineBroke):
        whole(engine, answer)


@pytest.mark.parametrize(
    ("engine", "answer"),
    [(Vllm(), completions(finish_reason=None)), (TrtLlm(), completions(finish_reason=None)), (Sglang(), sglang(None))],
)
def test_the_end_of_the_turn_needs_no_reason(engine: Engine, answer: Any) -> None:
    (chunk,) = whole(engine, answer)
    assert (chunk.ids, chunk.stop_id, chunk.tokens, chunk.finish, chunk.usage) == ((8, 9), STOP, 3, "stop", Usage(5, 3, 4))
