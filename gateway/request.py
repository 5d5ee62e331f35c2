"""The internal language between dialects, prompts, formats and engines. Values only: frozen, no behaviour, no I/O.

What a client asked is a `GenerateRequest`, whatever its dialect. What a model answered is a stream of `Delta`s; the streamed
answer, the whole answer and the metrics are three folds over that one stream.

What is made for each request or token is a msgspec struct: a frozen dataclass costs many times as much to create.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the model may call. `parameters` is its JSON Schema, or None where the client gave none."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in the history. `arguments` is text as the client sent it: not always JSON, and that never fails a request."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `content` is text, None, or the client's list of parts as plain JSON objects."""

    role: Role
    content: str | tuple[Mapping[str, Any], ...] | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """`named` allows only the tools in `names`, one of which must be called; `required` any, at least one."""

    mode: Literal["none", "auto", "required", "named"] = "auto"
    names: tuple[str, ...] = ()


class Sampling(msgspec.Struct, frozen=True):
    """Sampling settings that the client gave; None where it gave none, so that the engine's own default holds."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    min_tokens: int | None = None


class JsonAnswer(msgspec.Struct, frozen=True):
    """The whole answer is one JSON value that satisfies `schema` (any object where it is None).

    With a `thought_closer` the model is in an open thought: any text up to the closer comes first.
    """

    schema: Mapping[str, Any] | None = None
    thought_closer: str | None = None


class CallAnswer(msgspec.Struct, frozen=True):
    """The answer is tool calls in a given syntax, each `opener + JSON object + closer`, with the object's two keys as named.

    `tools` are the functions allowed. With `or_text` the model may write text that does not begin with the opener instead.
    `max_calls` is 1 where the client forbade parallel calls. With a `thought_closer` the model is in an open thought: any text up
    to the closer comes first.
    """

    tools: tuple[ToolSpec, ...]
    opener: str
    closer: str
    separator: str
    name_key: str
    arguments_key: str
    or_text: bool
    max_calls: int | None = None
    thought_closer: str | None = None


Constraint = JsonAnswer | CallAnswer


class GenerateRequest(msgspec.Struct, frozen=True):
    """What a client asked, in no dialect. `body` holds its own bytes, for engines that template and parse themselves.

    The names in `template_kwargs` are identifiers of at most 64 characters, none of them the gateway's own. `logprobs` is how
    many alternatives each token's log probability shall have, None where none is wanted. `reasoning_budget` is how many tokens
    the thoughts of one answer may have. `continue_final_message`: the model goes on where the last message, an assistant's, ends;
    `add_generation_prompt` is then False. `affinity` is the client's word for what its requests share.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    answer: JsonAnswer | None = None
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    logprobs: int | None = None
    return_token_ids: bool = False
    reasoning_budget: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    affinity: str | None = None
    ignored: tuple[str, ...] = ()
    body: bytes = b""

    @property
    def offered(self) -> tuple[ToolSpec, ...]:
        """The tools that the model may call: none where `tool_choice` forbids calls."""
        return () if self.tool_choice.mode == "none" else self.tools


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt. `text` and `ids` say the same; `stop_ids` end the turn.

    `tail` is the end of the text from the last turn's header on. `notes` are the mappings made on the way ("developer message
    given as system"), for the log: few, and without a client's text; `constraint` is what the engine must enforce; `max_tokens`
    is the client's limit, within what the context leaves; `tokenize_s` is how long it took to make the ids, in seconds.
    """

    text: str
    ids: tuple[int, ...]
    stop_ids: frozenset[int] = frozenset()
    tail: str = ""
    constraint: Constraint | None = None
    max_tokens: int | None = None
    notes: tuple[str, ...] = ()
    tokenize_s: float | None = field(default=None, compare=False)


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer. `reasoning_tokens` are part of `completion_tokens`, `cached_tokens` of `prompt_tokens`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


FailureKind = Literal[
    "truncated_call",
    "truncated_reasoning",
    "unterminated_call",
    "invalid_json",
    "not_an_object",
    "missing_name",
    "unknown_tool",
    "duplicate_key",
    "schema_mismatch",
    "double_encoded",
    "bad_header",
    "stray_marker",
    "missing_opener",
    "missing_closer",
    "implicit_reasoning_end",
    "call_in_reasoning",
    "special_tokens_missing",
    "stop_leak",
    "unknown_token",
    "bad_usage",
    "value_too_large",
    "internal",
]


class ReasoningText(msgspec.Struct, frozen=True, gc=False):
    """A piece of the model's thought."""

    text: str


class ContentText(msgspec.Struct, frozen=True, gc=False):
    """A piece of the visible answer."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True, gc=False):
    """Call number `index` of this answer begins; its id and name are final."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    """The next piece of the arguments' JSON text of call `index`; the pieces concatenate to the exact text."""

    index: int
    text: str


class ToolCallEnd(msgspec.Struct, frozen=True, gc=False):
    """Call `index` is whole."""

    index: int


class TokenShown(msgspec.Struct, frozen=True, gc=False):
    """A generated token: its id (-1 where the engine tells none), its bytes, its log probability (None where it was not asked
    for), and the likeliest tokens in its place."""

    id: int
    data: bytes
    logprob: float | None = None
    top: tuple["TokenShown", ...] = ()


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """The tokens that the deltas after it were made from, the one that ended the turn among them. Only for requests that ask.

    `missing` counts tokens that the engine generated and never named.
    """

    tokens: tuple[TokenShown, ...]
    missing: int = 0


class ParseFailure(msgspec.Struct, frozen=True, gc=False):
    """Something in the model's output was not as its format says. Counted; never silent.

    `offset` is in code points of the raw output; `index` the call concerned. `recovered` means that nothing was lost by it: the
    call or the text still reached the client in its proper place.
    """

    kind: FailureKind
    index: int | None
    offset: int
    recovered: bool


@dataclass(frozen=True, slots=True)
class Fault:
    """A `ParseFailure` with the raw output around it. `at` is its place in `text`, `offset` that in the whole output (None: it
    has none). `cut`: there was more before `text`."""

    kind: FailureKind
    offset: int | None
    recovered: bool
    text: str
    at: int
    cut: bool


class Finish(msgspec.Struct, frozen=True, gc=False):
    """The answer is complete. Always the last delta, exactly once."""

    reason: FinishReason
    usage: Usage


Delta = ReasoningText | ContentText | ToolCallStart | ToolCallArguments | ToolCallEnd | Tokens | ParseFailure | Finish
