"""An engine that streams ids, the whole way of a request: vLLM's events in, the client's answer out."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.gateway import scripted, tiny_model
from support.scripted_engine import CLOSE, HEAD, Step, chunked, event
from support.vocabulary import CONTROL, DEFINED

END, OPENER, CLOSER = 2, 7, 8  # <|im_end|>, <tool_call>, </tool_call>
DONE: list[Step] = [chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE]
USAGE = {"prompt_tokens": 70, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '\n{"name": "f", "arguments": {}}\n'


def ids_of(text: str) -> list[int]:
    """One token a byte, whatever the text spells."""
    return [len(CONTROL) + len(DEFINED) + byte for byte in text.encode()]


def token(*ids: int, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": "", "token_ids": ids, "finish_reason": finish, "stop_reason": None}]})


def answer(ids: Sequence[int], end: int = END) -> list[Step]:
    tokens = [token(each) for each in ids]
    return [HEAD, *tokens, token(end, finish="stop"), event({"choices": [], "usage": USAGE}), *DONE]


async def asked(steps: list[Step], *, source: str = "echo", mode: str = "native", **fields: Any) -> Any:
    """Status and body of the answer to a chat."""
    async with scripted(kind="vllm", source=str(tiny_model(source)), format="hermes", tools=mode) as (engine, served):
        engine.script = lambda seen: steps
        response = await served.chat(**{"max_tokens": 99, **fields})
        return response.status_code, response.json()


async def test_the_text_is_made_of_the_ids_and_ends_before_the_stop() -> None:
    status, said = await asked(answer(ids_of("é🦙")), return_token_ids=True)
    (choice,) = said["choices"]
    assert status == 200
    assert choice["message"]["content"] == "é🦙"
    assert choice["token_ids"] == [*ids_of("é🦙"), END]
    assert choice["finish_reason"] == "stop"
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


def called(said: Any) -> list[str]:
    return [call["function"]["name"] for call in said["choices"][0]["message"].get("tool_calls") or []]


def marked(spelled: bool) -> list[Step]:
    """A call with its markers as the tokens that they are, or in bytes."""
    opener, closer = (ids_of("<tool_call>"), ids_of("</tool_call>")) if spelled else ([OPENER], [CLOSER])
    return answer([*opener, *ids_of(CALL), *closer])


async def test_a_call_that_is_only_spelled_is_text() -> None:
    _, said = await asked(marked(spelled=False), source="full", tools=TOOLS)
    assert called(said) == ["f"]
    _, said = await asked(marked(spelled=True), source="full", tools=TOOLS)
    assert called(said) == []
    assert said["choices"][0]["message"]["content"] == f"<tool_call>{CALL}</tool_call>"


@pytest.mark.parametrize("spelled", [False, True])
async def test_a_call_that_a_grammar_made_may_be_spelled(spelled: bool) -> None:
    _, said = await asked(marked(spelled), source="full", tools=TOOLS, tool_choice="required")
    assert called(said) == ["f"]
    _, said = await asked(marked(spelled), mode="constrained", tools=TOOLS)
    assert called(said) == ["f"]


async def test_a_refusal_in_the_stream_is_a_plain_error() -> None:
    error = {"message": "Token id 999999 is out of vocabulary", "type": "BadRequestError", "param": None, "code": 400}
    status, said = await asked([HEAD, event({"error": error}), *DONE])
    assert status == 400
    assert "out of vocabulary" in said["error"]["message"]


async def test_a_stream_that_closes_before_it_says_why_is_broken() -> None:
    status, _ = await asked([HEAD, token(*ids_of("a")), b"0\r\n\r\n", CLOSE])
    assert status == 502


async def test_one_that_said_why_it_ended_needs_no_end_mark() -> None:
    status, said = await asked([HEAD, token(*ids_of("a")), token(END, finish="stop"), b"0\r\n\r\n", CLOSE])
    assert (status, said["choices"][0]["message"]["content"]) == (200, "a")
