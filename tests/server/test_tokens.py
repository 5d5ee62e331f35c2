"""Log probabilities and token ids, the whole way of a request: what the engine says of its tokens is what the client reads."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from support.gateway import scripted
from support.scripted_engine import CLOSE, HEAD, Step, chat_chunk, event, llama_end, llama_token
from support.vocabulary import CONTROL, DEFINED

FIRST_BYTE = len(CONTROL) + len(DEFINED)  # the id of byte 0
END, OPENER, CLOSER = 2, 7, 8  # <|im_end|>, <tool_call>, </tool_call>
CALL = '\n{"name": "f", "arguments": {}}\n'
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def ids_of(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


def answer(tokens: Sequence[tuple[str, int, int]], asked: int) -> list[Step]:
    """llama.cpp's answer of these events, each its text, its one id and the tokens that it took; the last ends the turn."""
    steps: list[Step] = [HEAD]
    predicted = 0
    for text, token, took in tokens:
        predicted += took
        top = [{"id": token, "logprob": -0.5}, {"id": FIRST_BYTE, "logprob": -3.0}][:asked]
        told = {"completion_probabilities": [{"id": token, "logprob": -0.5, "top_logprobs": top}]} if asked else {}
        steps.append(event(llama_token(text, predicted, token) | told))
    return [*steps, event(llama_end(predicted)), b"0\r\n\r\n", CLOSE]


def spoken(text: str) -> list[tuple[str, int, int]]:
    """One event a character: of those of several bytes llama.cpp names the last."""
    return [(character, ids_of(character)[-1], len(character.encode())) for character in text]


async def asked(tokens: Sequence[tuple[str, int, int]], **fields: Any) -> tuple[list[Any], list[Any], Any]:
    """The choices of the whole answer, those of the streamed one folded, and the usage."""
    async with scripted(format="hermes", tools="constrained") as (engine, served):
        engine.script = lambda seen: answer(tokens, seen.body.get("n_probs", 0))
        whole = (await served.chat(**fields)).json()
        chunks = await served.stream(**fields)
    assert chunks[-1] == "[DONE]"
    folded: dict[int, Any] = {}
    for choice in (choice for chunk in chunks[:-1] for choice in chunk["choices"]):
        told = folded.setdefault(choice["index"], {"content": "", "entries": [], "missing": 0})
        told["content"] += choice["delta"].get("content") or ""
        told["entries"] += choice.get("logprobs", {"content": []})["content"]
        told["missing"] += choice.get("logprobs", {}).get("missing_tokens", 0)
    return whole["choices"], [folded[index] for index in sorted(folded)], whole["usage"]


def entry(token: str, data: bytes, top: int) -> dict[str, Any]:
    likely = [{"token": token, "logprob": -0.5, "bytes": [*data]}, {"token": "\0", "logprob": -3.0, "bytes": [0]}]
    return likely[0] | {"top_logprobs": likely[:top]}


@pytest.mark.parametrize("top", [0, 1, 2])
async def test_each_token_has_an_entry_and_those_that_the_engine_lost_are_counted(top: int) -> None:
    tokens = [*spoken("Hé🦙!"), ("", END, 1)]
    ((whole,), (streamed,), usage) = await asked(tokens, logprobs=True, top_logprobs=top)
    expected = [
        entry("H", b"H", top),
        entry("\ufffd", b"\xa9", top),
        entry("\ufffd", b"\x99", top),
        entry("!", b"!", top),
        entry("<|im_end|>", b"<|im_end|>", top),
    ]
    assert whole["logprobs"] == {"content": expected, "refusal": None, "missing_tokens": 4}
    assert (streamed["entries"], streamed["missing"]) == (expected, 4)
    assert whole["message"]["content"] == streamed["content"] == "Hé🦙!"
    assert usage["completion_tokens"] == len(expected) + 4


async def test_tokens_of_a_call_and_its_markers_are_told() -> None:
    tokens = [("<tool_call>", OPENER, 1), *spoken(CALL), ("</tool_call>", CLOSER, 1), ("", END, 1)]
    ((whole,), (streamed,), _) = await asked(tokens, logprobs=True, tools=TOOLS)
    assert whole["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    texts = [each["token"] for each in whole["logprobs"]["content"]]
    assert texts == ["<tool_call>", *CALL, "</tool_call>", "<|im_end|>"]
    assert streamed["entries"] == whole["logprobs"]["content"]


async def test_the_tokens_of_a_stop_string_are_told_though_its_text_is_not() -> None:
    ((whole,), (streamed,), _) = await asked([*spoken("Good day"), ("", END, 1)], logprobs=True, stop="d d")
    assert whole["message"]["content"] == streamed["content"] == "Goo"
    assert "".join(each["token"] for each in whole["logprobs"]["content"]) == "Good d"
    assert streamed["entries"] == whole["logprobs"]["content"]


async def test_each_choice_has_its_own_tokens() -> None:
    whole, streamed, _ = await asked([*spoken("Hi"), ("", END, 1)], logprobs=True, n=2)
    texts = [["H", "i", "<|im_end|>"]] * 2
    assert [[each["token"] for each in choice["logprobs"]["content"]] for choice in whole] == texts
    assert [[each["token"] for each in choice["entries"]] for choice in streamed] == texts


async def test_without_the_wish_no_token_is_asked_for_or_told() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: answer([*spoken("Hi"), ("", END, 1)], 0)
        whole = (await served.chat()).json()
        chunks = await served.stream()
    assert all("n_probs" not in call.body for call in engine.calls)
    assert whole["choices"][0]["logprobs"] is None
    assert all(choice.keys() == {"index", "delta", "finish_reason"} for chunk in chunks[:-1] for choice in chunk["choices"])


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_that_the_engine_cannot_tell_are_refused(stream: bool) -> None:
    async with scripted() as (engine, served):
        refused = await served.chat(return_token_ids=True, stream=stream)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "return_token_ids")
    assert "part of a character" in refused.json()["error"]["message"]
    assert engine.calls == []


def vllm_events(ids: Sequence[int]) -> list[Any]:
    """vLLM's answer, two tokens an event; the last ends the turn."""
    pairs = [list(ids[at : at + 2]) for at in range(0, len(ids), 2)]
    events = []
    for pair in pairs:
        told = {"token_logprobs": [-0.5] * len(pair), "top_logprobs": [{f"token_id:{token}": -0.5} for token in pair]}
        finish = "stop" if pair is pairs[-1] else None
        events.append({"choices": [{"index": 0, "text": "", "token_ids": pair, "logprobs": told, "finish_reason": finish}]})
    return [*events, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(ids)}}]


@pytest.mark.parametrize("text", ["Hé🦙!", "<think>é</think>Hi", "Good day"])
async def test_every_id_and_the_prompts_are_told_where_the_engine_streams_them(text: str) -> None:
    markers = {"<think>": 5, "</think>": 6}
    ids = [token for part in re.split("(</?think>)", text) for token in ([markers[part]] if part in markers else ids_of(part))]
    wish = {"return_token_ids": True, "logprobs": True, "top_logprobs": 1, "max_tokens": 99}
    async with scripted(kind="vllm", format="hermes") as (engine, served):
        done = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        engine.script = lambda seen: [HEAD, *map(event, vllm_events([*ids, END])), done, CLOSE]
        whole = (await served.chat(**wish)).json()
        chunks = await served.stream(**wish)
        prompt = engine.calls[0].body["prompt"]
    (choice,) = whole["choices"]
    assert whole["prompt_token_ids"] == chunks[0]["prompt_token_ids"] == prompt
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:-1])
    assert choice["token_ids"] == [*ids, END]
    assert bytes(byte for each in choice["logprobs"]["content"] for byte in each["bytes"]).decode() == text + "<|im_end|>"
    assert "missing_tokens" not in choice["logprobs"]
    assert whole["usage"]["completion_tokens"] == len(ids) + 1
    streamed = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert [token for each in streamed for token in each.get("token_ids", [])] == choice["token_ids"]
    assert [entry for each in streamed if "logprobs" in each for entry in each["logprobs"]["content"]] == choice["logprobs"][
        "content"
    ]


PASSED = [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]


def passed_events() -> list[Any]:
    """What vLLM streams where tokens are asked for."""
    first, text, end = chat_chunk({"role": "assistant", "content": ""}), chat_chunk({"content": "Hi"}), chat_chunk({}, "stop")
    text["choices"][0] |= {"logprobs": {"content": PASSED}, "token_ids": [5]}  # type: ignore[index]
    end["choices"][0] |= {"token_ids": [2], "logprobs": {"content": [{**PASSED[0], "token": "", "bytes": []}]}}  # type: ignore[index]
    return [first | {"prompt_token_ids": [1, 2, 3]}, text, end]


async def test_tokens_of_an_engine_that_templates_itself_pass_streamed_and_whole() -> None:
    wish = {"logprobs": True, "top_logprobs": 0, "return_token_ids": True}
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: [HEAD, *map(event, passed_events()), b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", CLOSE]
        whole = (await served.chat(**wish)).json()
        chunks = await served.stream(**wish)
        plain = (await served.chat()).json()
    assert wish.items() <= engine.calls[0].body.items()
    (choice,) = whole["choices"]
    assert [each["token"] for each in choice["logprobs"]["content"]] == ["Hi", ""]
    assert (choice["token_ids"], whole["prompt_token_ids"]) == ([5, 2], [1, 2, 3])
    assert choice["message"]["content"] == "Hi"
    assert chunks[0]["prompt_token_ids"] == [1, 2, 3]
    assert [json.dumps(chunk["choices"]) for chunk in chunks[:-1]] == [json.dumps(each["choices"]) for each in passed_events()]
    assert plain["choices"][0]["logprobs"] is None
    assert "token_ids" not in plain["choices"][0]
    assert "prompt_token_ids" not in plain
