"""Reads the body of `POST /v1/chat/completions`.

Invariant: any bytes give a GenerateRequest, or a BadRequest whose `param` is the path of the first field found wrong.

Choices where clients and engines differ:

- `temperature` is 0 to 2, as in OpenAI's API, though engines take more.
- `functions` and `function_call` are read as tools; the answer is written in terms of `tool_calls`.
- `allowed_tools` with mode `auto` hides the other tools from the model, since nothing less would hold.
- Tool calls in the history are data: whatever their `arguments` hold, text or a JSON value, is kept as it was sent.
- `continue_final_message` alone is enough: `add_generation_prompt`, true by default, is then false.
- A value in `chat_template_kwargs` wins over what `reasoning_effort` means for the template.
- An escape of half a character, which no text can hold, is read as U+FFFD and named in `ignored` as `lone-surrogates`.
- Fields that nothing uses are named in `ignored`, those of OpenAI's API too: of the body, of `stream_options`, and, each once for
  all items, of messages, their parts and calls, and of tools (`messages[].x`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gateway.dialects import checks
from gateway.dialects.base import LONE_SURROGATES, Limits
from gateway.dialects.checks import invalid
from gateway.dialects.openai_fields import (
    Call,
    CalledFunction,
    ChatBody,
    Function,
    NamedChoice,
    NamedFunction,
    OnlyBody,
    ResponseFormat,
    Tool,
    WireMessage,
)
from gateway.dialects.openai_messages import read_messages, unread_of_parts
from gateway.errors import BadRequest, shown
from gateway.request import GenerateRequest, JsonAnswer, Sampling, ToolChoice, ToolSpec
from gateway.wire.jsonio import Decoder, JsonError, Raw, without_lone_surrogates

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_BIAS_BYTES = 64  # more than one entry of `logit_bias` takes, however it is spaced
_MOST_NAMED = 256  # unknown fields of one kind of item
_TINY = 5e-324  # the smallest number above 0
_RANGES: tuple[tuple[str, float, float, str], ...] = (
    ("temperature", 0, 2, "between 0 and 2"),
    ("top_p", _TINY, 1, "above 0 and at most 1"),
    ("top_k", -1, 2**31 - 1, "a count of tokens, or 0 or -1 for all"),
    ("min_p", 0, 1, "between 0 and 1"),
    ("repetition_penalty", _TINY, 10, "above 0 and at most 10"),
    ("presence_penalty", -2, 2, "between -2 and 2"),
    ("frequency_penalty", -2, 2, "between -2 and 2"),
    ("seed", -(2**63), 2**63 - 1, "a 64-bit integer"),
    ("min_tokens", 0, 2**31 - 1, "at least 0"),
    ("reasoning_budget", 0, float("inf"), "at least 0"),
    ("thinking_token_budget", 0, float("inf"), "at least 0"),
    ("max_tokens", 1, float("inf"), "at least 1"),
    ("max_completion_tokens", 1, float("inf"), "at least 1"),
)
_USED = frozenset(ChatBody.__struct_fields__)

_outline: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])
_items: Decoder[list[Raw]] = Decoder(list[Raw])
_outlines: Decoder[list[dict[str, Raw]]] = Decoder(list[dict[str, Raw]])
_body: Decoder[ChatBody] = Decoder(ChatBody)
_only_body: Decoder[OnlyBody] = Decoder(OnlyBody)


def parse(data: bytes, limits: Limits) -> GenerateRequest:
    """The request. Raises BadRequest."""
    try:
        data.decode()  # a typed decoder skips unknown fields without a look at their UTF-8
    except UnicodeDecodeError as error:
        raise BadRequest(f"The request body: not valid UTF-8 at byte {error.start}.") from None
    try:
        return _read(data, limits)
    except JsonError as error:
        mended = without_lone_surrogates(data)
        if mended == data:
            raise checks.unreadable(error) from None
    try:
        return _read(mended, limits, (LONE_SURROGATES,))
    except JsonError as error:
        raise checks.unreadable(error) from None


def _read(data: bytes, limits: Limits, mended: Iterable[str] = ()) -> GenerateRequest:
    fields = _outline.decode(data)
    _bound_sizes(fields, limits)
    checks.refuse(checks.given(fields))
    return _request(data, fields, _decoded(data), limits, mended)


def _decoded(data: bytes) -> ChatBody:
    """An OnlyBody where it is one."""
    try:
        return _only_body.decode(data)
    except JsonError:
        return _body.decode(data)


def _bound_sizes(fields: Mapping[str, Raw], limits: Limits) -> None:
    """Refuses what is too long before its items cost anything."""
    if len(fields) > limits.fields:
        raise BadRequest(f"The request body: at most {limits.fields} fields, got {len(fields)}.")
    for name, limit, what in (
        ("messages", limits.messages, "messages"),
        ("tools", limits.tools, "tools"),
        ("functions", limits.tools, "functions"),
        ("stop", limits.stop, "stop strings"),
    ):
        value = bytes(fields.get(name, b""))
        if value.startswith(b"["):
            checks.at_most(name, len(_items.decode(value)), limit, what)
    checks.at_most("logit_bias", len(bytes(fields.get("logit_bias", b""))), _BIAS_BYTES * (limits.logit_bias + 1), "bytes")


def _request(data: bytes, fields: Mapping[str, Raw], body: ChatBody, limits: Limits, mended: Iterable[str]) -> GenerateRequest:
    if not body.model.strip():
        raise invalid("model", "must not be empty")
    for name, low, high, words in _RANGES:
        checks.between(name, getattr(body, name), low, high, words)
    tools, tool_choice = _tool_choice(body, _tools(body, limits))
    return GenerateRequest(
        model=body.model,
        messages=read_messages(body.messages),
        tools=tools,
        tool_choice=tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        sampling=_sampling(body, limits),
        max_tokens=_max_tokens(body),
        stop=_stop(body.stop, limits),
        n=_n(body.n, limits),
        stream=bool(body.stream),
        include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
        answer=_answer(body.response_format, limits),
        template_kwargs=_template_kwargs(body, limits),
        logprobs=_logprobs(body, limits),
        return_token_ids=bool(body.return_token_ids),
        reasoning_budget=_reasoning_budget(body),
        add_generation_prompt=_begins_turn(body),
        continue_final_message=bool(body.continue_final_message),
        affinity=body.prompt_cache_key or None,
        ignored=checks.fit_for_header((*mended, *_ignored(fields, body))),
        body=data,
    )


def _ignored(fields: Mapping[str, Raw], body: ChatBody) -> Iterator[str]:
    yield from (name for name in checks.given(fields) if name not in _USED)
    if body.stream_options is not None:
        if body.stream:
            options = checks.given(_outline.decode(fields["stream_options"]))
            yield from (f"stream_options.{name}" for name in options if name != "include_usage")
        else:
            yield "stream_options"
    yield from _distinct("messages[].content[]", unread_of_parts(body.messages))
    if not isinstance(body, OnlyBody):
        yield from _ignored_of_items(fields, body)


def _ignored_of_items(fields: Mapping[str, Raw], body: ChatBody) -> Iterator[str]:
    """What messages and tools have beside the fields of their shapes."""
    messages = _outlines.decode(fields["messages"])
    said = zip(messages, body.messages, strict=True)
    lists = [outline["tool_calls"] for outline, wire in said if wire.tool_calls and wire.role == "assistant"]
    calls = [call for raw in lists for call in _outlines.decode(raw)]
    tools = _outlines.decode(fields["tools"]) if body.tools else []
    for at, outlines, shape in (
        ("messages[]", messages, WireMessage),
        ("messages[].tool_calls[]", calls, Call),
        ("messages[].tool_calls[].function", [_outline.decode(call["function"]) for call in calls], CalledFunction),
        ("tools[]", tools, Tool),
        ("tools[].function", [_outline.decode(tool["function"]) for tool in tools], Function),
        ("functions[]", _outlines.decode(fields["functions"]) if body.functions else [], Function),
    ):
        used = frozenset(shape.__struct_fields__)
        yield from _distinct(at, (name for outline in outlines for name in checks.given(outline) if name not in used))


def _distinct(at: str, names: Iterable[str]) -> Iterator[str]:
    """The paths of the names, each once. A body may hold millions: no more than a few are worth a header."""
    yield from (f"{at}.{name}" for name in islice(dict.fromkeys(names), _MOST_NAMED))


def _tools(body: ChatBody, limits: Limits) -> tuple[ToolSpec, ...]:
    if body.tools and body.functions:
        raise invalid("functions", "give `tools` or `functions`, not both")
    specs: dict[str, ToolSpec] = {}
    for function, at in _functions(body):
        name, parameters = function.name, function.parameters
        checks.tool_name(f"{at}.name", name)
        if name in specs:
            raise invalid(f"{at}.name", f"a second tool with the name {shown(name)}")
        if parameters is not None:
            checks.object_schema(f"{at}.parameters", parameters, limits)
        specs[name] = ToolSpec(name, function.description, parameters, function.strict)
    return tuple(specs.values())


def _functions(body: ChatBody) -> Iterator[tuple[Function, str]]:
    """Each function offered, with its place."""
    for index, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "function"):
            raise invalid(f"tools[{index}].type", f"{shown(tool.type)} is not served; only 'function' is")
        if tool.function is None:
            raise invalid(f"tools[{index}].function", "this field is required")
        yield tool.function, f"tools[{index}].function"
    for index, function in enumerate(body.functions or ()):
        yield function, f"functions[{index}]"


def _tool_choice(body: ChatBody, tools: tuple[ToolSpec, ...]) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """The tools that the model is shown, and what it may do with them."""
    if body.tool_choice is not None or body.function_call is None:
        param, choice = "tool_choice", _chosen("tool_choice", body.tool_choice)
    else:
        param, choice = "function_call", _chosen("function_call", body.function_call)
    if choice.mode in ("required", "named") and not tools:
        raise invalid(param, "it asks for a tool call, but the request has no tools")
    known = {tool.name for tool in tools}
    for name in choice.names:
        if name not in known:
            raise invalid(param, f"{shown(name)} is not among the request's tools")
    if choice.mode == "auto" and choice.names:
        return tuple([tool for tool in tools if tool.name in choice.names]), ToolChoice()
    return tools, choice


def _chosen(param: str, choice: str | NamedChoice | NamedFunction | None) -> ToolChoice:
    """What was asked for; here `auto` may hold names, the only ones to be shown."""
    match choice:
        case None:
            return ToolChoice()
        case "none" | "auto" | "required":
            return ToolChoice(choice)
        case NamedFunction(name=name) | NamedChoice(type="function", function=NamedFunction(name=name)):
            return ToolChoice("named", (name,))
        case NamedChoice(type="allowed_tools", allowed_tools=allowed) if allowed is not None and allowed.tools:
            names = tuple(dict.fromkeys(tool.function.name for tool in allowed.tools))
            if allowed.mode in ("auto", "required"):
                return ToolChoice("auto" if allowed.mode == "auto" else "named", names)
    raise invalid(param, "must be 'none', 'auto', 'required', or name a function or the allowed tools")


def _begins_turn(body: ChatBody) -> bool:
    """Whether the prompt ends with the beginning of the model's turn: by default, unless the last message is continued."""
    if body.add_generation_prompt and body.continue_final_message:
        raise invalid("continue_final_message", "it goes on with the last message, but `add_generation_prompt` begins a new one")
    return not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt


def _logprobs(body: ChatBody, limits: Limits) -> int | None:
    """How many alternatives each token shall have; None where no log probabilities are wanted."""
    checks.between("top_logprobs", body.top_logprobs, 0, limits.logprobs, f"between 0 and {limits.logprobs}")
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise invalid("top_logprobs", "it needs `logprobs: true`")
    return None


def _sampling(body: ChatBody, limits: Limits) -> Sampling:
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=body.seed,
        logit_bias=_logit_bias(body.logit_bias or {}, limits),
        ignore_eos=bool(body.ignore_eos),
        min_tokens=body.min_tokens,
    )


def _logit_bias(biases: Mapping[str, Any], limits: Limits) -> tuple[tuple[int, float], ...]:
    checks.at_most("logit_bias", len(biases), limits.logit_bias, "entries")
    for key, value in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise invalid("logit_bias", f"{shown(key)} is no token id")
        if type(value) not in (int, float) or not -100 <= value <= 100:
            raise invalid(f"logit_bias.{key}", "must be a number between -100 and 100")
    return tuple([(int(key), float(value)) for key, value in biases.items()])


def _max_tokens(body: ChatBody) -> int | None:
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if limit is not None and body.min_tokens is not None and body.min_tokens > limit:
        raise invalid("min_tokens", f"more than the most tokens, {limit}, that the answer may have")
    return limit


def _reasoning_budget(body: ChatBody) -> int | None:
    """`thinking_token_budget` is vLLM's name for it."""
    ours, other = body.reasoning_budget, body.thinking_token_budget
    if ours is not None and other is not None and ours != other:
        raise invalid("thinking_token_budget", "it is another name of `reasoning_budget`, which says otherwise")
    return other if ours is None else ours


def _stop(stop: str | Sequence[str] | None, limits: Limits) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = {"stop": stop} if isinstance(stop, str) else {f"stop[{index}]": text for index, text in enumerate(stop)}
    for param, text in stops.items():
        checks.between(param, len(text), 1, limits.stop_chars, f"1 to {limits.stop_chars} characters long")
    return tuple(stops.values())


def _n(n: int | None, limits: Limits) -> int:
    checks.between("n", n, 1, limits.n, f"between 1 and {limits.n}")
    return 1 if n is None else n


def _answer(wanted: ResponseFormat | None, limits: Limits) -> JsonAnswer | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise invalid("response_format.json_schema", "this field is required")
        checks.bounded_schema("response_format.json_schema.schema", wanted.json_schema.schema, limits)
        return JsonAnswer(wanted.json_schema.schema)
    if wanted.type == "json_object":
        if wanted.schema is not None:
            checks.bounded_schema("response_format.schema", wanted.schema, limits)
        return JsonAnswer(wanted.schema)
    raise invalid("response_format.type", f"{shown(wanted.type)} is not one of text, json_object, json_schema")


def _template_kwargs(body: ChatBody, limits: Limits) -> Mapping[str, Any]:
    kwargs = body.chat_template_kwargs or {}
    checks.template_kwargs("chat_template_kwargs", kwargs, limits)
    effort = body.reasoning_effort
    if effort is None:
        return kwargs
    if effort not in _EFFORTS:
        raise invalid("reasoning_effort", f"{shown(effort)} is not one of {', '.join(_EFFORTS)}")
    meant: Mapping[str, Any] = {"enable_thinking": False} if effort == "none" else {}
    return {"reasoning_effort": effort, **meant, **kwargs}
