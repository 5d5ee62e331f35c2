"""The shape of an OpenAI Chat Completions request: names and JSON types, nothing more.

Invariant: a field that is null is as good as absent, wherever OpenAI's API lets it be absent.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.wire.jsonio import Raw


class CalledFunction(msgspec.Struct):
    """What a call in the history calls. `arguments` is any JSON value, untouched."""

    name: str
    arguments: Raw = Raw(b"null")


class Call(msgspec.Struct):
    """A tool call in the history."""

    id: str
    type: str | None = None
    function: CalledFunction | None = None


class WireMessage(msgspec.Struct):
    """One message of any role."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: Sequence[Call] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class Function(msgspec.Struct):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """An entry of `tools`."""

    type: str | None = None
    function: Function | None = None


class NamedFunction(msgspec.Struct):
    """A reference to a function."""

    name: str


class NamedTool(msgspec.Struct):
    """A reference to a tool."""

    function: NamedFunction


class AllowedTools(msgspec.Struct):
    """The tools that may be called, and whether one must."""

    mode: str
    tools: list[NamedTool]


class NamedChoice(msgspec.Struct):
    """`tool_choice` where it is an object."""

    type: str | None = None
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class AnswerSchema(msgspec.Struct):
    """`response_format.json_schema`."""

    schema: dict[str, Any]


class ResponseFormat(msgspec.Struct):
    """What the answer must be. `schema` beside `json_object` is how llama.cpp takes a schema."""

    type: str
    json_schema: AnswerSchema | None = None
    schema: dict[str, Any] | None = None


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class ChatBody(msgspec.Struct, kw_only=True):
    """The whole body: each field that the gateway uses."""

    model: str
    messages: Sequence[WireMessage]
    tools: Sequence[Tool] | None = None
    functions: Sequence[Function] | None = None
    tool_choice: str | NamedChoice | None = None
    function_call: str | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_token_ids: bool | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    thinking_token_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, Any] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    prompt_cache_key: str | None = None


class OnlyCalledFunction(CalledFunction, forbid_unknown_fields=True):
    """Without other fields, as all of these `Only`."""


class OnlyCall(Call, forbid_unknown_fields=True):
    """A call."""

    function: OnlyCalledFunction | None = None


class OnlyMessage(WireMessage, forbid_unknown_fields=True):
    """A message."""

    tool_calls: Sequence[OnlyCall] | None = None
    function_call: OnlyCalledFunction | None = None


class OnlyFunction(Function, forbid_unknown_fields=True):
    """A function."""


class OnlyTool(Tool, forbid_unknown_fields=True):
    """A tool."""

    function: OnlyFunction | None = None


class OnlyBody(ChatBody, kw_only=True):
    """A body whose messages and tools have no field that the gateway does not use: told as it is decoded, a look at each item
    afterwards costs a fourth more."""

    messages: Sequence[OnlyMessage]
    tools: Sequence[OnlyTool] | None = None
    functions: Sequence[OnlyFunction] | None = None
