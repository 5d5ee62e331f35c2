"""What tests with the `openai` SDK share: how they ask, how they fold a stream, and what the engine behind is doing."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

MODEL = "smollm2"
_DEFAULTS = {"model": MODEL, "max_tokens": 16, "temperature": 0, "seed": 1}


@dataclass(frozen=True, slots=True)
class Said:
    """One choice, streamed or not. A call is its name and its arguments' text."""

    content: str
    calls: tuple[tuple[str, str], ...]
    finish_reason: str | None


def new_client(url: str) -> OpenAI:
    """A client that tries once."""
    return OpenAI(base_url=f"{url}/v1", api_key="sk-canary-client", max_retries=0, timeout=40)


def new_async_client(url: str) -> AsyncOpenAI:
    """The same on asyncio."""
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-canary-client", max_retries=0, timeout=40)


def fields(asked: str | list[Any], **changed: Any) -> dict[str, Any]:
    """A short greedy request: one user message, or these messages."""
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return {**_DEFAULTS, "messages": messages, **changed}


def ask(client: OpenAI, asked: str | list[Any], **changed: Any) -> ChatCompletion:
    """A whole answer."""
    answer = client.chat.completions.create(**fields(asked, **changed))
    assert isinstance(answer, ChatCompletion)
    return answer


def stream(client: OpenAI, asked: str | list[Any], **changed: Any) -> list[ChatCompletionChunk]:
    """All chunks of a streamed answer."""
    with client.chat.completions.create(**fields(asked, stream=True, **changed)) as chunks:
        return list(chunks)


def warm(client: OpenAI, asked: str | list[Any], **changed: Any) -> None:
    """Puts the prompt into the engine's cache. An engine computes a cached prompt's last token in a batch of another size, which
    may round differently: answers that are compared must start alike."""
    ask(client, asked, **{**changed, "max_tokens": 1})


def said(answer: ChatCompletion) -> Said:
    """The first choice of a whole answer."""
    choice = answer.choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or () if call.type == "function"]
    return Said(choice.message.content or "", tuple(calls), choice.finish_reason)


def folded(chunks: Iterable[ChatCompletionChunk]) -> Said:
    """The first choice of a streamed answer: its fragments joined."""
    content = ""
    calls: dict[int, tuple[str, str]] = {}
    finish_reason: str | None = None
    for choice in (choice for chunk in chunks for choice in chunk.choices if choice.index == 0):
        assert finish_reason is None, "a chunk after the end"
        finish_reason = choice.finish_reason
        content += choice.delta.content or ""
        for piece in choice.delta.tool_calls or ():
            assert piece.function is not None
            name, arguments = calls.get(piece.index, ("", ""))
            calls[piece.index] = (name + (piece.function.name or ""), arguments + (piece.function.arguments or ""))
    return Said(content, tuple(calls[index] for index in sorted(calls)), finish_reason)


def function(name: str, properties: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A tool whose properties are all required."""
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False, **more}
    return {"type": "function", "function": {"name": name, "description": name.replace("_", " "), "parameters": schema}}


def schema_of(tool: Mapping[str, Any]) -> Any:
    """What a tool's arguments must satisfy."""
    return tool["function"]["parameters"]


def busy_slots(engine_url: str) -> int:
    """How many answers the engine is making now."""
    with urllib.request.urlopen(f"{engine_url}/slots", timeout=5) as answer:
        return sum(bool(slot["is_processing"]) for slot in json.load(answer))


def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Waits for something that happens in another process."""
    limit_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < limit_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)
