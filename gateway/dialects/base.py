"""What a client's language is: how its request is read, and how an answer is written in it.

Invariant: `parse` gives a GenerateRequest or raises a ClientError that names the field, for any bytes. Encoders are pure folds
over deltas: the same deltas give the same answer, however they were grouped; in a stream, neighbours in one group share a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.errors import GatewayError
from gateway.request import Delta, GenerateRequest, Usage


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on what one request may ask, from `limits` in the settings.

    `fields` bounds the names at the top of the body. `schema_values` and `schema_depth` bound one JSON Schema: how many values
    it holds and how deep they nest.
    """

    n: int = 8
    stop: int = 16
    stop_chars: int = 256
    logprobs: int = 20
    tools: int = 256
    messages: int = 10_000
    logit_bias: int = 1024
    template_kwargs: int = 32
    fields: int = 256
    schema_values: int = 10_000
    schema_depth: int = 64


class Answer(msgspec.Struct, frozen=True):
    """What the encoder must know of an answer beside its deltas. `model` is the name that the client used.

    `reasoning_fields` are the names under which thoughts are given. `created_s` is Unix time. `prompt_ids` are the prompt's
    tokens, for clients that ask; empty where the engine templates itself.
    """

    id: str
    created_s: int
    model: str
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning")
    prompt_ids: Sequence[int] = ()


class Encoder(Protocol):
    """Writes one answer. The one for whole answers returns nothing until `end`."""

    def feed(self, choice: int, deltas: Sequence[Delta]) -> bytes:
        """What these deltas of one choice add to the body; b"" where they add nothing."""

    def passed(self, choice: int, raw: bytes, deltas: Sequence[Delta]) -> bytes:
        """As `feed`, for an event of an engine that speaks this dialect itself: `raw` is the event's data, `deltas` say the
        same. The streamed answer is the engine's own bytes with this answer's id, time and model name in them."""

    def end(self, usage: Usage) -> bytes:
        """The end of a complete answer: usage where asked for and the dialect's terminator, or the whole body."""

    def error(self, error: GatewayError) -> bytes:
        """The failure of an answer that had begun, after which nothing follows: it must not look whole."""


class Dialect(Protocol):
    """One client language."""

    @property
    def name(self) -> str:
        """The word in metrics: `openai_chat`, …"""

    @property
    def title(self) -> str:
        """What its users call it."""

    @property
    def body(self) -> type:
        """The type that a request's body is read into."""

    @property
    def path(self) -> str:
        """Its POST path."""

    def parse(self, body: bytes, limits: Limits) -> GenerateRequest:
        """The request. Raises ClientError."""

    def encoder(self, request: GenerateRequest, answer: Answer) -> Encoder:
        """A fresh encoder: streamed or whole, as the request says."""

    def error(self, error: GatewayError) -> bytes:
        """The body of an error answer that had not begun."""


LONE_SURROGATES = "lone-surrogates"  # in `ignored` where halves of characters in the body were read as U+FFFD
STREAM_TYPE = b"text/event-stream; charset=utf-8"
JSON_TYPE = b"application/json"
PING = b": ping\n\n"  # a comment: every client's SSE reader skips it
