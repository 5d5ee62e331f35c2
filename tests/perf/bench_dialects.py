"""Microseconds that the Chat Completions dialect takes: to read a request, and to write one chunk.

Run it by hand: `python tests/perf/bench_dialects.py`.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.dialects.base import Answer, Limits
from gateway.dialects.openai_chat import OpenAIChat
from gateway.dialects.openai_stream import StreamEncoder
from gateway.request import ContentText, ToolCallArguments

_ANSWER = Answer(id="chatcmpl-0123456789abcdef01234567", created_s=1_764_400_000, model="qwen3-coder-30b")
_EVENT = (
    b'{"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1764400000,'
    b'"model":"engine/its-own-name","choices":[{"index":0,"delta":{"content":" hello"},"logprobs":null,"finish_reason":null}]}'
)


def best_us(work: Callable[[], object], runs: int) -> float:
    """The best of seven rounds, per run."""
    rounds = []
    for _ in range(7):
        began_s = time.perf_counter()
        for _ in range(runs):
            work()
        rounds.append(time.perf_counter() - began_s)
    return min(rounds) / runs * 1e6


def small_body() -> bytes:
    """About 1 KB: a system message and a question."""
    messages = [
        {"role": "system", "content": "You are a careful assistant. " * 20},
        {"role": "user", "content": "What is the boiling point of water on a mountain? " * 6},
    ]
    return json.dumps({"model": "m", "messages": messages, "stream": True, "temperature": 0.7, "max_tokens": 512}).encode()


def large_body() -> bytes:
    """About 110 KB: an agent's 60 messages and 40 tools."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Follow the rules of the repository.\n" * 250}]
    while len(messages) < 58:
        call = {"name": "tool_1", "arguments": json.dumps({"path": "src/main.py", "lines": "1-80"})}
        number = f"call_{len(messages)}"
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [{"id": number, "type": "function", "function": call}]}
        )
        messages.append({"role": "tool", "tool_call_id": number, "content": 'def main():\n    print("caf\u00e9")\n' * 50})
    messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Now the tests."}]
    return json.dumps({"model": "m", "messages": messages, "tools": _tools(), "stream": True}, ensure_ascii=False).encode()


def _tools() -> list[dict[str, Any]]:
    argument = {"type": "string", "description": "What the tool shall look at; relative to the root of the repository."}
    properties = {f"argument_{index}": argument for index in range(5)}
    schema = {"type": "object", "properties": properties, "required": ["argument_0"], "additionalProperties": False}
    text = "Looks at one part of the repository and says what it found there. " * 4
    return [
        {"type": "function", "function": {"name": f"tool_{index}", "description": text, "parameters": schema}}
        for index in range(40)
    ]


def main() -> None:
    """Prints the figures."""
    dialect, limits = OpenAIChat(), Limits()
    for body in (small_body(), large_body()):
        print(f"parse {len(body) / 1024:6.1f} KB   {best_us(partial(dialect.parse, body, limits), 300):8.1f} us")
    encoder = StreamEncoder(_ANSWER, include_usage=True)
    content, arguments = [ContentText(" hello")], [ToolCallArguments(0, '{"path":')]
    print(f"content chunk     {best_us(lambda: encoder.feed(0, content), 50_000):8.2f} us")
    print(f"arguments chunk   {best_us(lambda: encoder.feed(0, arguments), 50_000):8.2f} us")
    print(f"passed chunk      {best_us(lambda: encoder.passed(0, _EVENT, content), 50_000):8.2f} us")


if __name__ == "__main__":
    main()
