"""Checks that every dialect makes of a request: what is refused by name, what is bounded, and how a bad value is reported.

Invariant: a check returns nothing, or raises BadRequest whose `param` is the path of the field.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.dialects.base import Limits
from gateway.errors import BadRequest, shown
from gateway.wire.jsonio import JsonError, Raw

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KWARG_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_NOT_IN_HEADER = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_NULL = Raw(b"null")
_MAX_IGNORED = 32

_TEMPLATE = "templates come from the model's files, never from a client"
_ENGINE = "it changes how the engine runs, which is the operator's to set"
_GRAMMAR = "constraints in an engine's own language are not taken; use `response_format` or `tool_choice`"
_REFUSED: Mapping[str, str] = {
    "chat_template": _TEMPLATE,
    **dict.fromkeys(
        (
            *("custom_logit_processor", "custom_params", "logits_processors", "kv_transfer_params", "vllm_xargs", "priority"),
            *("lora", "lora_path", "lora_request", "session_params", "data_parallel_rank", "cache_salt", "extra_key"),
            *("mm_processor_kwargs", "media_io_kwargs", "prompt_embeds", "input_embeds", "input_ids", "id_slot"),
        ),
        _ENGINE,
    ),
    **dict.fromkeys(
        (
            *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "structural_tag"),
            *("regex", "ebnf", "grammar", "json_schema", "stop_regex"),
        ),
        _GRAMMAR,
    ),
}

# Names of the gateway's own, of those that render templates and of the sandbox.
RESERVED_KWARGS = frozenset(
    (
        *("messages", "conversation", "tools", "functions", "documents", "chat_template", "template", "tokenize"),
        *("add_generation_prompt", "continue_final_message", "return_dict", "return_tensors", "return_assistant_tokens_mask"),
        *("padding", "truncation", "max_length", "tokenizer_kwargs", "additional_special_tokens"),
        *("raise_exception", "strftime_now", "range", "dict", "lipsum", "cycler", "joiner", "namespace"),
        *("self", "loop", "caller", "varargs", "kwargs"),
    )
)
_RESERVED_ENDS = ("_token", "tools", "functions", "documents")  # special tokens, and by which templates list tools another way


def invalid(param: str, why: str) -> BadRequest:
    """The error for a field with an impossible value; `why` completes the sentence."""
    return BadRequest(f"Invalid value for '{param}': {why}.", param=param)


def unreadable(error: JsonError) -> BadRequest:
    """The error for a body, or a part of it, that is not JSON or has a wrong type."""
    return invalid(error.path, error.message) if error.path else BadRequest(f"The request body: {error.message}.")


def given(fields: Mapping[str, Raw]) -> list[str]:
    """The names of the fields that say something: null says the same as leaving the field out."""
    return [name for name, value in fields.items() if value != _NULL]


def refuse(names: Iterable[str]) -> None:
    """Refuses fields that a client may not set."""
    for name in names:
        if why := _REFUSED.get(name):
            raise BadRequest(f"'{name}' is not accepted: {why}.", param=name)


def between(param: str, value: float | None, low: float, high: float, words: str) -> None:
    """Refuses a number outside `low` to `high`, which `words` say."""
    if value is not None and not low <= value <= high:
        raise invalid(param, f"must be {words}")


def at_most(param: str, count: int, limit: int, what: str) -> None:
    """Refuses more than `limit` of something."""
    if count > limit:
        raise invalid(param, f"at most {limit} {what}, got {count}")


def tool_name(param: str, name: str) -> None:
    """Refuses a name that a tool cannot have."""
    if not _TOOL_NAME.fullmatch(name):
        raise invalid(param, f"{shown(name)} is no tool name: 1 to 64 letters, digits, underscores or hyphens")


def object_schema(param: str, schema: Mapping[str, Any], limits: Limits) -> None:
    """Refuses a schema that no arguments, which are an object, could satisfy, and one that is too large."""
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise invalid(f"{param}.type", "the arguments of a tool are an object, so its type must be 'object'")
    bounded_schema(param, schema, limits)


def bounded_schema(param: str, schema: Mapping[str, Any], limits: Limits) -> None:
    """Refuses a schema with too many values or too deep a nesting; visits each value once, without recursion."""
    level: list[Any] = [schema]
    values = depth = 0
    while level:
        depth += 1
        values += sum(map(len, level))
        if depth > limits.schema_depth:
            raise invalid(param, f"the schema is nested more than {limits.schema_depth} deep")
        at_most(param, values, limits.schema_values, "values in one schema")
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]


def template_kwargs(param: str, kwargs: Mapping[str, Any], limits: Limits) -> None:
    """Refuses template arguments that are not plain values, or that would take the place of what the gateway passes."""
    at_most(param, len(kwargs), limits.template_kwargs, "entries")
    for name, value in kwargs.items():
        if not _KWARG_NAME.fullmatch(name):
            raise invalid(param, f"{shown(name)} is no name for a template argument")
        if name in RESERVED_KWARGS or name.endswith(_RESERVED_ENDS):
            raise BadRequest(f"'{param}.{name}' is not accepted: the gateway sets it.", param=f"{param}.{name}")
        if isinstance(value, (dict, list)):
            raise invalid(f"{param}.{name}", "must be a string, a number, a boolean or null")


def fit_for_header(names: Iterable[str]) -> tuple[str, ...]:
    """Names of a client's fields, sorted, cut and cleaned so that they can stand in a header; more than 32 are counted."""
    clean = sorted({_NOT_IN_HEADER.sub("_", name[:64]) or "_" for name in names})
    rest = len(clean) - _MAX_IGNORED
    return (*clean[:_MAX_IGNORED], f"and-{rest}-more") if rest > 0 else tuple(clean)
