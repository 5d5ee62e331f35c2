import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.dialects.base import Limits
from gateway.dialects.openai_request import parse
from gateway.errors import BadRequest
from gateway.request import GenerateRequest, JsonAnswer, Message, Sampling, ToolCall, ToolChoice, ToolSpec

HI = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [HI]} | fields).encode()


def read(**fields: Any) -> GenerateRequest:
    return parse(body(**fields), Limits())


def history(*messages: Mapping[str, Any]) -> tuple[Message, ...]:
    return read(messages=[HI, *messages]).messages[1:]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BAD: list[tuple[dict[str, Any], str, str]] = [
    # the frame
    ({"model": None}, "model", "expected a string, got null"),
    ({"model": 7}, "model", "expected a string, got an integer"),
    ({"model": ""}, "model", "must not be empty"),
    ({"model": " \t\n"}, "model", "must not be empty"),
    ({"messages": None}, "messages", "expected an array, got null"),
    ({"messages": {}}, "messages", "expected an array, got an object"),
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": [HI] * 10_001}, "messages", "at most 10000 messages, got 10001"),
    ({"messages": [HI, 3]}, "messages[1]", "expected an object"),
    ({"stream": "yes"}, "stream", "expected a boolean or null, got a string"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "expected a boolean"),
    # messages
    ({"messages": [HI, {"content": "x"}]}, "messages[1].role", "this field is required"),
    ({"messages": [HI, HI, HI, {"role": 5, "content": "x"}]}, "messages[3].role", "expected a string"),
    ({"messages": [HI, {"role": "robot", "content": "x"}]}, "messages[1].role", "'robot' is not one of system, developer"),
    ({"messages": [HI, HI, {"role": "user", "content": 5}]}, "messages[2].content", "expected a string or an array or null"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "role 'user' needs content"),
    ({"messages": [{"role": "system", "content": None}]}, "messages[0].content", "role 'system' needs content"),
    ({"messages": [{"role": "user", "content": [{"type": "input_text"}]}]}, "messages[0].content[0].text", "expected a string"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", "expected an object, got a string"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type", "'None' is not one of text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "film"}]}]},
        "messages[0].content[1].type",
        "'film'",
    ),
    ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "messages[0].content[0].type", "is not one of"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "expected a string"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}]},
        "messages[0].content[0].image_url",
        "an object",
    ),
    ({"messages": [HI, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id", "which call it answers"),
    ({"messages": [HI, {"role": "tool", "content": "x", "tool_call_id": 3}]}, "messages[1].tool_call_id", "expected a string"),
    (
        {"messages": [HI, {"role": "assistant", "tool_calls": [CALL, {"function": {"name": "f"}}]}]},
        "messages[1].tool_calls[1].id",
        "required",
    ),
    ({"messages": [HI, {"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[1].tool_calls[0].function", "required"),
    (
        {"messages": [HI, {"role": "assistant", "tool_calls": [{"id": "c", "function": {}}]}]},
        "messages[1].tool_calls[0].function.name",
        "required",
    ),
    (
        {"messages": [HI, {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}]},
        "messages[1].tool_calls[0].type",
        "'custom'",
    ),
    # numbers
    ({"temperature": "warm"}, "temperature", "expected a number or null, got a string"),
    ({"temperature": True}, "temperature", "expected a number or null, got a boolean"),
    ({"temperature": 2.1}, "temperature", "must be between 0 and 2"),
    ({"temperature": -0.1}, "temperature", "must be between 0 and 2"),
    ({"top_p": 0}, "top_p", "above 0 and at most 1"),
    ({"top_p": 1.01}, "top_p", "above 0 and at most 1"),
    ({"top_k": -2}, "top_k", "a count of tokens"),
    ({"top_k": 1.5}, "top_k", "expected an integer or null, got a number"),
    ({"min_p": 1.5}, "min_p", "between 0 and 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
    ({"presence_penalty": 3}, "presence_penalty", "between -2 and 2"),
    ({"frequency_penalty": -3}, "frequency_penalty", "between -2 and 2"),
    ({"seed": 2**63}, "seed", "a 64-bit integer"),
    ({"seed": 10**4000}, "seed", "a 64-bit integer"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": -1}, "max_tokens", "at least 1"),
    ({"max_tokens": "many"}, "max_tokens", "expected an integer or null, got a string"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
    ({"min_tokens": -1}, "min_tokens", "at least 0"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "more than the most tokens, 8"),
    ({"n": 0}, "n", "between 1 and 8"),
    ({"n": 9}, "n", "between 1 and 8"),
    ({"n": "2"}, "n", "expected an integer"),
    # stop
    ({"stop": ""}, "stop", "1 to 256 characters"),
    ({"stop": ["a", ""]}, "stop[1]", "1 to 256 characters"),
    ({"stop": ["x" * 257]}, "stop[0]", "1 to 256 characters"),
    ({"stop": ["a"] * 17}, "stop", "at most 16 stop strings, got 17"),
    ({"stop": ["a", 1]}, "stop[1]", "expected a string"),
    # logprobs, logit_bias
    ({"logprobs": 5}, "logprobs", "expected a boolean"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
    ({"top_logprobs": -1}, "top_logprobs", "between 0 and 20"),
    ({"top_logprobs": 2}, "top_logprobs", "needs `logprobs: true`"),
    ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", "needs `logprobs: true`"),
    ({"return_token_ids": 1}, "return_token_ids", "expected a boolean"),
    # how the prompt ends
    ({"add_generation_prompt": 0}, "add_generation_prompt", "expected a boolean"),
    ({"continue_final_message": "yes"}, "continue_final_message", "expected a boolean"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "begins a new one"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "'a' is no token id"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "'-1' is no token id"),
    ({"logit_bias": {"٣": 1}}, "logit_bias", "is no token id"),
    ({"logit_bias": {"7": 101}}, "logit_bias.7", "between -100 and 100"),
    ({"logit_bias": {"7": True}}, "logit_bias.7", "between -100 and 100"),
    ({"logit_bias": {"7": "1"}}, "logit_bias.7", "between -100 and 100"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024 entries"),
    ({"logit_bias": {str(i): 1 for i in range(10_000)}}, "logit_bias", "at most 65600 bytes"),
    # tools
    ({"tools": {}}, "tools", "expected an array"),
    ({"tools": [tool(f"f{i}") for i in range(257)]}, "tools", "at most 256 tools, got 257"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "this field is required"),
    ({"tools": [tool(), {"type": "custom", "custom": {}}]}, "tools[1].type", "'custom' is not served"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "this field is required"),
    ({"tools": [tool(), tool("no spaces")]}, "tools[1].function.name", "'no spaces' is no tool name"),
    ({"tools": [tool("")]}, "tools[0].function.name", "is no tool name"),
    ({"tools": [tool("a\n")]}, "tools[0].function.name", "is no tool name"),
    ({"tools": [tool("x" * 65)]}, "tools[0].function.name", "is no tool name"),
    ({"tools": [tool("a"), tool("b"), tool("a")]}, "tools[2].function.name", "a second tool with the name 'a'"),
    ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "expected an object or null, got an array"),
    ({"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters.type", "must be 'object'"),
    ({"tools": [tool(parameters={"type": ["null"]})]}, "tools[0].function.parameters.type", "must be 'object'"),
    ({"tools": [tool(parameters=nested(40))]}, "tools[0].function.parameters", "nested more than 64 deep"),
    ({"tools": [tool(parameters={"enum": list(range(10_001))})]}, "tools[0].function.parameters", "at most 10000 values"),
    ({"functions": [{"name": "?"}]}, "functions[0].name", "is no tool name"),
    ({"functions": [{"name": "f"}] * 300}, "functions", "at most 256 functions"),
    ({"tools": [tool()], "functions": [{"name": "g"}]}, "functions", "not both"),
    # tool_choice
    ({"tool_choice": "required"}, "tool_choice", "the request has no tools"),
    ({"tool_choice": "always", "tools": [tool()]}, "tool_choice", "must be 'none', 'auto', 'required'"),
    ({"tool_choice": 1}, "tool_choice", "expected a string or an object or null"),
    ({"tool_choice": {}, "tools": [tool()]}, "tool_choice", "name a function"),
    ({"tool_choice": {"type": "function"}, "tools": [tool()]}, "tool_choice", "name a function"),
    ({"tool_choice": {"type": "function", "function": {}}, "tools": [tool()]}, "tool_choice.function.name", "required"),
    ({"tool_choice": tool("g"), "tools": [tool()]}, "tool_choice", "'g' is not among the request's tools"),
    ({"tool_choice": {"type": "allowed_tools"}, "tools": [tool()]}, "tool_choice", "the allowed tools"),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice",
        "the allowed tools",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "no", "tools": [tool()]}}, "tools": [tool()]},
        "tool_choice",
        "the allowed tools",
    ),
    ({"function_call": {"name": "g"}, "functions": [{"name": "f"}]}, "function_call", "'g' is not among"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "expected a boolean"),
    # the answer
    ({"response_format": "json"}, "response_format", "expected an object"),
    ({"response_format": {}}, "response_format.type", "this field is required"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "'xml' is not one of text, json_object, json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "this field is required"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "required",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": nested(40)}}},
        "response_format.json_schema.schema",
        "64 deep",
    ),
    ({"response_format": {"type": "json_object", "schema": nested(40)}}, "response_format.schema", "64 deep"),
    # templates and engines
    ({"reasoning_effort": "wild"}, "reasoning_effort", "'wild' is not one of none, minimal"),
    ({"chat_template": "{{ 7 * 7 }}"}, "chat_template", "never from a client"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "expected an object"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize", "the gateway sets it"),
    ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages", "the gateway sets it"),
    ({"chat_template_kwargs": {"loop": "x"}}, "chat_template_kwargs.loop", "the gateway sets it"),
    ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token", "the gateway sets it"),
    ({"chat_template_kwargs": {"custom_tools": ""}}, "chat_template_kwargs.custom_tools", "the gateway sets it"),
    ({"chat_template_kwargs": {"available_tools": True}}, "chat_template_kwargs.available_tools", "the gateway sets it"),
    ({"chat_template_kwargs": {"image_token": "x"}}, "chat_template_kwargs.image_token", "the gateway sets it"),
    ({"chat_template_kwargs": {"a b\n": 1}}, "chat_template_kwargs", "is no name for a template argument"),
    ({"chat_template_kwargs": {"docs": ["x"]}}, "chat_template_kwargs.docs", "must be a string, a number"),
    ({"chat_template_kwargs": {"docs": {}}}, "chat_template_kwargs.docs", "must be a string, a number"),
    ({"chat_template_kwargs": {"__class__": 1}}, "chat_template_kwargs", "is no name for a template argument"),
    ({"chat_template_kwargs": {f"k{i}": 1 for i in range(33)}}, "chat_template_kwargs", "at most 32 entries"),
    ({"priority": 1}, "priority", "the operator's to set"),
    ({"kv_transfer_params": {}}, "kv_transfer_params", "the operator's to set"),
    ({"custom_logit_processor": "x"}, "custom_logit_processor", "the operator's to set"),
    ({"lora_path": "x"}, "lora_path", "the operator's to set"),
    ({"session_params": {}}, "session_params", "the operator's to set"),
    ({"data_parallel_rank": 0}, "data_parallel_rank", "the operator's to set"),
    ({"mm_processor_kwargs": {}}, "mm_processor_kwargs", "the operator's to set"),
    ({"media_io_kwargs": {}}, "media_io_kwargs", "the operator's to set"),
    ({"prompt_embeds": "x"}, "prompt_embeds", "the operator's to set"),
    ({"cache_salt": "x"}, "cache_salt", "the operator's to set"),
    ({"vllm_xargs": {}}, "vllm_xargs", "the operator's to set"),
    ({"guided_regex": "(a+)+$"}, "guided_regex", "use `response_format`"),
    ({"grammar": "root ::= x"}, "grammar", "use `response_format`"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD, ids=lambda value: value[:40] if isinstance(value, str) else "")
def test_a_bad_field_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert words in caught.value.message
    assert param in caught.value.message
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not valid JSON"),
        (b"[]", "expected an object, got an array"),
        (body(**{f"field{i}": i for i in range(255)}), "at most 256 fields, got 257"),
        (b"hello", "not valid JSON"),
        (b'{"model":"m","messages":[', "not valid JSON"),
        (b"\xef\xbb\xbf" + body(), "not valid JSON"),
        (body().decode().encode("utf-16"), "not valid UTF-8 at byte 0"),
        (body(user="?").replace(b"?", b"\xff"), "not valid UTF-8"),
        (body(**{"?": 1}).replace(b"?", b"\\ud800\xed\xa0\x80"), "not valid UTF-8"),
        (body(**{"?": 1}).replace(b"?", b"\\ud800\\x"), "not valid JSON"),
        (body(user=1).replace(b"1", b"NaN"), "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"messages":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_not_json(data: bytes, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(data, Limits())
    assert caught.value.param is None
    assert words in caught.value.message


def test_missing_fields_are_named() -> None:
    for data, param in ((b"{}", "model"), (b'{"model":"m"}', "messages")):
        with pytest.raises(BadRequest, match=f"Invalid value for '{param}': this field is required") as caught:
            parse(data, Limits())
        assert caught.value.param == param


def test_limits_are_settings() -> None:
    limits = Limits(
        n=1, stop=1, stop_chars=2, tools=1, messages=2, logit_bias=0, template_kwargs=0, schema_values=2, schema_depth=1
    )
    for fields, param in (
        ({"n": 2}, "n"),
        ({"stop": ["a", "b"]}, "stop"),
        ({"stop": "abc"}, "stop"),
        ({"tools": [tool("a"), tool("b")]}, "tools"),
        ({"messages": [HI] * 3}, "messages"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"tools": [tool(parameters={"a": 1, "b": 1, "c": 1})]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"a": {}})]}, "tools[0].function.parameters"),
    ):
        with pytest.raises(BadRequest) as caught:
            parse(body(**fields), limits)
        assert caught.value.param == param


# --- what is read


def test_a_plain_request() -> None:
    data = body()
    assert parse(data, Limits()) == GenerateRequest("m", (Message("user", "hi"),), body=data)


def test_null_is_as_good_as_absent() -> None:
    with_nulls = read(
        **dict.fromkeys(
            (
                *("tools", "functions", "tool_choice", "function_call", "parallel_tool_calls", "response_format", "n", "stop"),
                *("stream", "stream_options", "logprobs", "top_logprobs", "return_token_ids", "reasoning_effort"),
                *(
                    "temperature",
                    "top_p",
                    "top_k",
                    "min_p",
                    "repetition_penalty",
                    "presence_penalty",
                    "frequency_penalty",
                    "seed",
                ),
                *("logit_bias", "min_tokens", "ignore_eos", "max_tokens", "max_completion_tokens", "chat_template", "user"),
                *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
            )
        )
    )
    assert replace(with_nulls, body=b"") == replace(read(), body=b"")


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities(fields: dict[str, Any], logprobs: int | None) -> None:
    request = read(**fields)
    assert (request.logprobs, request.ignored) == (logprobs, ())


@pytest.mark.parametrize(
    ("fields", "begins", "continues"),
    [
        ({}, True, False),
        ({"add_generation_prompt": True, "continue_final_message": False}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"add_generation_prompt": False, "continue_final_message": True}, False, True),
    ],
)
def test_how_the_prompt_ends(fields: dict[str, Any], begins: bool, continues: bool) -> None:
    request = read(**fields)
    assert (request.add_generation_prompt, request.continue_final_message) == (begins, continues)
    assert request.ignored == ()


def test_token_ids() -> None:
    request = read(return_token_ids=True)
    assert (request.return_token_ids, request.ignored) == (True, ())
    assert not read(return_token_ids=False).return_token_ids


def test_sampling() -> None:
    assert read(
        temperature=0,
        top_p=1,
        top_k=-1,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=-1,
        logit_bias={"7": -100, "8": 1.5},
        min_tokens=3,
        ignore_eos=True,
    ).sampling == Sampling(0.0, 1.0, -1, 0.05, 1.1, -2.0, 2.0, -1, ((7, -100.0), (8, 1.5)), True, 3)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 10**12}, 10**12),
        ({"max_tokens": 5, "min_tokens": 5}, 5),
    ],
)
def test_max_completion_tokens_wins(fields: dict[str, int], expected: int | None) -> None:
    assert read(**fields).max_tokens == expected


@pytest.mark.parametrize(
    ("stop", "expected"), [("\n\n", ("\n\n",)), (["a", "b"], ("a", "b")), ([], ()), ("x" * 256, ("x" * 256,))]
)
def test_stop(stop: str | list[str], expected: tuple[str, ...]) -> None:
    assert read(stop=stop).stop == expected


@pytest.mark.parametrize(
    ("fields", "stream", "include_usage", "ignored"),
    [
        ({}, False, False, ()),
        ({"stream": True}, True, False, ()),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True, ()),
        ({"stream": True, "stream_options": {"include_usage": False, "include_obfuscation": None}}, True, False, ()),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True, "include_usage": True}},
            *(True, True, ("stream_options.continuous_usage_stats",)),
        ),
        ({"stream_options": {"include_usage": True}}, False, False, ("stream_options",)),
    ],
)
def test_stream_options(fields: dict[str, Any], stream: bool, include_usage: bool, ignored: tuple[str, ...]) -> None:
    request = read(**fields)
    assert (request.stream, request.include_usage, request.ignored) == (stream, include_usage, ignored)


def test_what_is_ignored_is_named() -> None:
    request = read(user="u", metadata={}, store=False, service_tier="x", zeta=1, **{"évil\r\nx-a: b": 1, "": 2, "x" * 100: 3})
    assert request.ignored == ("_", "_vil__x-a__b", "metadata", "service_tier", "store", "user", "x" * 64, "zeta")


def test_what_is_ignored_inside_messages_and_tools_is_named_once() -> None:
    part = {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}, "nothing": None}
    call = {**CALL, "index": 0, "function": {"name": "f", "arguments": "{}", "x": 1}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    request = read(
        messages=[
            HI | {"bar": 1, "baz": None},
            HI | {"bar": 2, "content": [part, part, {"type": "input_text", "text": "t", "input_text": "u"}]},
            HI | {"tool_calls": [{"id": "c", "nobody": "reads this"}]},
            answer,
        ],
        tools=[tool(), tool("g", examples=[]) | {"zz": 1}],
    )
    assert request.ignored == (
        *("messages[].bar", "messages[].content[].cache_control"),
        *("messages[].tool_calls[].function.x", "messages[].tool_calls[].index", "tools[].function.examples", "tools[].zz"),
    )
    assert read(functions=[{"name": "f", "zz": 1}]).ignored == ("functions[].zz",)


def test_of_unknown_names_inside_messages_no_more_are_looked_at_than_a_header_is_worth() -> None:
    request = read(messages=[HI | {f"m{number}": 1} for number in range(1000)])
    assert request.ignored[-1] == "and-224-more"


def test_many_ignored_names_are_counted() -> None:
    request = read(**{f"field{i:03}": i for i in range(100)})
    assert len(request.ignored) == 33
    assert request.ignored[-1] == "and-68-more"


@pytest.mark.parametrize(
    ("effort", "kwargs", "expected"),
    [
        (None, {"a": "x", "b": 1, "c": 1.5, "d": True, "e": None}, {"a": "x", "b": 1, "c": 1.5, "d": True, "e": None}),
        ("high", None, {"reasoning_effort": "high"}),
        ("none", None, {"reasoning_effort": "none", "enable_thinking": False}),
        ("none", {"enable_thinking": True}, {"reasoning_effort": "none", "enable_thinking": True}),
    ],
)
def test_template_kwargs(effort: str | None, kwargs: dict[str, Any] | None, expected: dict[str, Any]) -> None:
    assert read(reasoning_effort=effort, chat_template_kwargs=kwargs).template_kwargs == expected


@pytest.mark.parametrize(
    ("response_format", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonAnswer()),
        ({"type": "json_object", "schema": {"type": "array"}}, JsonAnswer({"type": "array"})),
        ({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": nested(2)}}, JsonAnswer(nested(2))),
    ],
)
def test_response_format(response_format: dict[str, Any], expected: JsonAnswer | None) -> None:
    assert read(response_format=response_format).answer == expected


# --- messages


def test_every_role() -> None:
    assert history(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d", "name": "dev"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}, "more": 1}]},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": [{"type": "text", "text": "r"}], "tool_call_id": "c"},
        {"role": "tool", "content": None, "tool_call_id": "c"},
        {"role": "function", "content": None, "name": "f"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": []},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b", "more": 1}]},
    ) == (
        Message("system", "s"),
        Message("developer", "d", name="dev"),
        Message("user", ({"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}, "more": 1})),
        Message("assistant", ""),
        Message("tool", ({"type": "text", "text": "r"},), tool_call_id="c"),
        Message("tool", "", tool_call_id="c"),
        Message("function", "", name="f"),
        Message("assistant", ""),
        Message("assistant", ""),
        Message("user", ()),
        Message("user", ({"type": "text", "text": "a"}, {"type": "text", "text": "b", "more": 1})),
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (b'"{\\"a\\": 1}"', '{"a": 1}'),
        (b'"{\\"a\\": "', '{"a": '),
        (b'"not json \\u00e9 \\ud83d\\ude00"', "not json é 😀"),
        (b'""', ""),
        (b'{"a": 1.50,"b":[1e2]}', '{"a": 1.50,"b":[1e2]}'),
        (b"[1]", "[1]"),
        (b"7", "7"),
        (b"null", "{}"),
        ('{"a":"é"}'.encode(), '{"a":"é"}'),
        (b'{"a":' * 200 + b"1" + b"}" * 200, '{"a":' * 200 + "1" + "}" * 200),
    ],
)
def test_arguments_in_the_history_are_kept_as_sent(arguments: bytes, expected: str) -> None:
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments": ' + arguments + b" }}"
    messages = b'[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[' + call + b"]}]"
    request = parse(b'{"model":"m","messages":' + messages + b"}", Limits())
    assert request.messages[1] == Message("assistant", None, tool_calls=(ToolCall("c", "f", expected),))


def test_calls_without_type_or_arguments_are_read() -> None:
    (message,) = history({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]})
    assert message.tool_calls == (ToolCall("c", "f", "{}"),)


def test_a_legacy_call_is_a_tool_call() -> None:
    (message,) = history({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}})
    assert message == Message("assistant", None, tool_calls=(ToolCall("call_1", "f", "{}"),))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reasoning": "r"}, "r"),
        ({"reasoning_content": "r"}, "r"),
        ({"reasoning": "r", "reasoning_content": "c"}, "c"),
        ({"reasoning": "r", "reasoning_content": ""}, "r"),
    ],
)
def test_reasoning_in_the_history(fields: dict[str, str], expected: str) -> None:
    assert history({"role": "assistant", **fields}) == (Message("assistant", None, expected),)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no"),
        ("", "no"),
        ("a", ({"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"})),
        ([{"type": "text", "text": "a"}], ({"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"})),
    ],
)
def test_a_refusal_in_the_history_is_kept(content: Any, expected: Any) -> None:
    assert history({"role": "assistant", "content": content, "refusal": "no"}) == (Message("assistant", expected),)


HALF = b"\\ud83d"


@pytest.mark.parametrize(
    ("messages", "read_as"),
    [
        ([{"role": "user", "content": "cut ?"}], Message("user", "cut \ufffd")),
        ([{"role": "user", "content": [{"type": "text", "text": "?"}]}], Message("user", ({"type": "text", "text": "\ufffd"},))),
        ([{"role": "tool", "content": "?", "tool_call_id": "c"}], Message("tool", "\ufffd", tool_call_id="c")),
        (
            [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{?"}}]}],
            Message("assistant", None, tool_calls=(ToolCall("c", "f", "{\ufffd"),)),
        ),
    ],
)
def test_half_an_emoji_is_read_as_the_replacement_character(messages: list[dict[str, Any]], read_as: Message) -> None:
    sent = body(messages=messages, user="u", emoji="\U0001f600")
    request = parse(sent.replace(b"?", HALF), Limits())
    assert request.messages == (read_as,)
    assert request.ignored == ("emoji", "lone-surrogates", "user")
    assert request.body == sent.replace(b"?", b"\\ufffd"), "an engine that templates itself gets what it can read"


def test_half_an_emoji_in_arguments_that_are_a_json_value() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {"a": "?"}}}
    data = body(messages=[{"role": "assistant", "tool_calls": [call]}]).replace(b"?", HALF)
    request = parse(data, Limits())
    assert request.messages[0].tool_calls[0].arguments == r'{"a": "\ufffd"}'
    assert request.ignored == ("lone-surrogates",)


def test_text_that_only_holds_the_escape_is_left_as_it_is() -> None:
    arguments = r'{"a":"\ud83d"}'  # what JavaScript's JSON.stringify makes of half an emoji
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    data = body(messages=[{"role": "assistant", "tool_calls": [call]}])
    request = parse(data, Limits())
    assert request.messages[0].tool_calls[0].arguments == arguments
    assert (request.ignored, request.body) == ((), data)


def test_a_fault_beside_half_an_emoji_is_named() -> None:
    with pytest.raises(BadRequest) as caught:
        parse(body(messages=[{"role": "user", "content": "?"}], n="?").replace(b"?", HALF), Limits())
    assert caught.value.param == "n"


# --- tools


def test_tools() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}
    request = read(
        tools=[
            tool("a", description="d", parameters=schema, strict=True),
            tool("b"),
            {"function": {"name": "c", "parameters": {}}},
            tool("d", parameters={"type": ["object", "null"]}),
        ],
        parallel_tool_calls=False,
    )
    assert request.tools == (
        ToolSpec("a", "d", schema, True),
        ToolSpec("b"),
        ToolSpec("c", parameters={}),
        ToolSpec("d", parameters={"type": ["object", "null"]}),
    )
    assert request.tools[0].parameters is not None
    assert list(request.tools[0].parameters["properties"]) == ["b", "a"], "the client's order"
    assert not request.parallel_tool_calls


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool(name) for name in names]}}


@pytest.mark.parametrize(
    ("choice", "shown", "expected"),
    [
        (None, "abc", ToolChoice()),
        ("auto", "abc", ToolChoice()),
        ("none", "abc", ToolChoice("none")),
        ("required", "abc", ToolChoice("required")),
        (tool("b"), "abc", ToolChoice("named", ("b",))),
        (allowed("required", "c", "a", "c"), "abc", ToolChoice("named", ("c", "a"))),
        (allowed("auto", "c", "a"), "ac", ToolChoice()),
    ],
)
def test_tool_choice(choice: Any, shown: str, expected: ToolChoice) -> None:
    request = read(tools=[tool("a"), tool("b"), tool("c")], tool_choice=choice)
    assert request.tool_choice == expected
    assert "".join(spec.name for spec in request.tools) == shown


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_choice_that_asks_for_no_call_needs_no_tools(choice: str) -> None:
    assert read(tool_choice=choice).tools == ()


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("auto", ToolChoice()), ("none", ToolChoice("none")), ({"name": "f"}, ToolChoice("named", ("f",)))],
)
def test_legacy_functions_are_tools(choice: Any, expected: ToolChoice) -> None:
    request = read(functions=[{"name": "f", "description": "d", "parameters": {"type": "object"}}], function_call=choice)
    assert request.tools == (ToolSpec("f", "d", {"type": "object"}),)
    assert request.tool_choice == expected
    assert request.ignored == ()


# --- properties

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
names = st.sampled_from(
    [
        *(
            "model",
            "messages",
            "tools",
            "function",
            "type",
            "role",
            "content",
            "name",
            "tool_calls",
            "id",
            "arguments",
            "n",
            "stop",
        ),
        *(
            "tool_choice",
            "response_format",
            "temperature",
            "logit_bias",
            "chat_template_kwargs",
            "stream",
            "stream_options",
            "text",
        ),
        *("json_schema", "schema", "allowed_tools", "mode", "parameters", "functions", "function_call", "max_tokens"),
    ]
)
words = st.sampled_from(
    ["user", "assistant", "tool", "function", "text", "auto", "required", "allowed_tools", "json_schema", "f"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(names | texts, anything, max_size=6), st.booleans())
def test_any_json_gives_a_request_or_names_the_fault(fields: dict[str, Any], whole: bool) -> None:
    data = json.dumps({"model": "m", "messages": [HI]} | fields if whole else fields).encode()
    try:
        request = parse(data, Limits())
    except BadRequest as error:
        named = error
    else:
        assert request.messages
        assert request.body == data
        return
    assert named.message.endswith(".")
    assert named.param


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.integers(min_value=0), st.binary(max_size=3))
def test_any_bytes_give_a_request_or_a_client_error(noise: bytes, place: int, patch: bytes) -> None:
    good = body(tools=[tool()], temperature=0.5, messages=[HI, {"role": "assistant", "tool_calls": [CALL]}])
    at = place % len(good)
    for data in (noise, good[:at] + patch + good[at + 1 :]):
        try:
            request = parse(data, Limits())
        except BadRequest:
            continue
        assert request.body == data


calls = st.builds(ToolCall, texts, texts, texts)
parts = st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), max_size=2).map(tuple)
messages = st.one_of(
    st.builds(Message, st.sampled_from(["system", "developer", "user"]), texts | parts, name=st.none() | texts),
    st.builds(Message, st.just("tool"), texts | parts, tool_call_id=texts),
    st.builds(Message, st.just("assistant"), texts, st.none() | texts.filter(bool), st.lists(calls, max_size=2).map(tuple)),
)
tool_names = st.text("abcXYZ019_-", min_size=1, max_size=8)
specs = st.builds(ToolSpec, tool_names, st.none() | texts, st.none() | st.just({"type": "object"}), st.none() | st.booleans())
samplings = st.builds(
    Sampling,
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0.01, 1),
    top_k=st.none() | st.integers(-1, 100),
    min_p=st.none() | st.floats(0, 1),
    repetition_penalty=st.none() | st.floats(0.1, 2),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    logit_bias=st.dictionaries(st.integers(0, 10**6), st.floats(-100, 100), max_size=3).map(lambda bias: tuple(bias.items())),
    ignore_eos=st.booleans(),
    min_tokens=st.none() | st.just(0),
)
requests = st.builds(
    GenerateRequest,
    texts.filter(str.strip),
    st.lists(messages, min_size=1, max_size=4).map(tuple),
    tools=st.lists(specs, max_size=3, unique_by=lambda spec: spec.name).map(tuple),
    tool_choice=st.sampled_from([ToolChoice(), ToolChoice("none")]),
    parallel_tool_calls=st.booleans(),
    sampling=samplings,
    max_tokens=st.none() | st.integers(1, 10**6),
    stop=st.lists(texts.filter(bool), max_size=3).map(tuple),
    n=st.integers(1, 8),
    stream=st.booleans(),
    answer=st.sampled_from([None, JsonAnswer(), JsonAnswer({"type": "object"})]),
    template_kwargs=st.dictionaries(st.sampled_from(["enable_thinking", "x"]), st.booleans() | texts, max_size=2),
)


def written(request: GenerateRequest) -> bytes:
    """The request as a client of OpenAI's API writes it."""
    s = request.sampling
    fields: dict[str, Any] = {
        "model": request.model,
        "messages": [_written(message) for message in request.messages],
        "tools": [
            tool(spec.name, description=spec.description, parameters=spec.parameters, strict=spec.strict)
            for spec in request.tools
        ],
        "tool_choice": request.tool_choice.mode,
        "parallel_tool_calls": request.parallel_tool_calls,
        "max_completion_tokens": request.max_tokens,
        "stop": request.stop,
        "n": request.n,
        "stream": request.stream,
        "response_format": {"type": "json_object", "schema": request.answer.schema} if request.answer else {"type": "text"},
        "chat_template_kwargs": request.template_kwargs,
        "logit_bias": {str(token): bias for token, bias in s.logit_bias},
    }
    single = (
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        *("seed", "ignore_eos", "min_tokens"),
    )
    return json.dumps(fields | {name: getattr(s, name) for name in single}).encode()


def _written(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "reasoning_content": message.reasoning,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ],
    }


@settings(max_examples=200, deadline=None)
@given(requests)
def test_what_is_written_is_read(request: GenerateRequest) -> None:
    assert replace(parse(written(request), Limits()), body=b"") == request


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [HI] * 100_000}, "messages"),
        ({"tools": [tool(f"f{i}") for i in range(10_000)]}, "tools"),
        ({"stop": ["x"] * 100_000}, "stop"),
        ({"logit_bias": {str(i): 1 for i in range(1_000_000)}}, "logit_bias"),
    ],
)
def test_oversized_lists_cost_little(fields: dict[str, Any], param: str) -> None:
    data = body(**fields)
    spent_s = []
    for _ in range(3):
        began_s = time.process_time()
        with pytest.raises(BadRequest) as caught:
            parse(data, Limits())
        spent_s.append(time.process_time() - began_s)
    assert caught.value.param == param
    assert min(spent_s) < 0.1
