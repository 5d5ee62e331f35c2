"""The life of a request as values: what observers see. A union, nothing else.

Each request emits exactly one `Finished` and, once its body was read, one `Received` before it. Between them, each
`AttemptStarted` is closed by exactly one of `AttemptFailed`, `AttemptServed`, `ClientGone` or `Finished` (which closes the
attempt that served the only answer), so that counts of running work are a fold over this stream. Times are seconds of the
monotonic clock; durations are seconds.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from gateway.made import Made
from gateway.request import FailureKind, FinishReason, Sampling, Usage
from gateway.routing.view import EngineView, Forecast

Outcome = Literal["ok", "client_error", "rejected", "upstream_error", "timeout", "client_gone", "drained"]
NO_ENGINE = "none"  # the engine's name before a request was routed
NO_MODEL = "unknown"  # the model's name where the client named none that is served: labels never hold a client's text


class Received(msgspec.Struct, frozen=True):
    """The last byte of the body was read."""

    request_id: str
    dialect: str
    at_s: float


class AttemptStarted(msgspec.Struct, frozen=True):
    """Attempt number `attempt` of this request goes to `engine`: `why`, out of which engines as they were then, and what is
    expected of it. `retry`: it follows a failure. `choice`: it makes this one of the request's, the first being 0, or all."""

    request_id: str
    attempt: int
    engine: str
    model: str
    at_s: float
    why: str = ""
    considered: tuple[EngineView, ...] = ()
    retry: bool = False
    forecast: Forecast | None = None
    choice: int = 0


class Prefilled(msgspec.Struct, frozen=True):
    """The engine has made the attempt's prompt: its first token came, so long after the attempt began."""

    request_id: str
    attempt: int
    engine: str
    model: str
    ttft_s: float
    forecast: Forecast | None = None


class CacheTold(msgspec.Struct, frozen=True):
    """What an attempt that served had in the engine's cache, as the engine says (None: it does not say), beside what was
    expected."""

    request_id: str
    attempt: int
    engine: str
    model: str
    cached_tokens: int | None
    forecast: Forecast


class FirstToken(msgspec.Struct, frozen=True):
    """When the first reasoning, content or tool delta was handed to `send` (or was ready: told once a whole answer is)."""

    request_id: str
    attempt: int
    engine: str
    model: str
    ttft_s: float


class Generated(msgspec.Struct, frozen=True):
    """What its engine made in an attempt that is over, whatever became of that; told just before it is closed. Nothing is told
    where no token came and the answer was not whole.

    `prompt_tokens` are 0 and `cached_tokens` None where it went on with another's answer; the latter also where the engine does
    not say. `finish_reasons` are those of the answers that it served whole. `inter_token_s` holds one pair for each gap between
    token-bearing chunks: seconds per token, and how many tokens came; `per_token_s` is of an answer that it served, over its
    tokens but the first. `ttft_s` and `first_output_s` are the request's, where this attempt gave them. `recorded` is the id of
    the trace where it is to be found by that.
    """

    request_id: str
    attempt: int
    engine: str
    model: str
    format: str
    made: Made
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    finish_reasons: tuple[FinishReason, ...] = ()
    inter_token_s: Sequence[tuple[float, int]] = ()
    per_token_s: float | None = None
    ttft_s: float | None = None
    first_output_s: float | None = None
    recorded: str | None = None


class AttemptFailed(msgspec.Struct, frozen=True):
    """The attempt ended without an answer that was given; `reason` is the error's word, or one of `routing.retry.EXCUSED`."""

    request_id: str
    attempt: int
    engine: str
    reason: str
    model: str = NO_MODEL


class AttemptServed(msgspec.Struct, frozen=True):
    """The attempt served one of several answers: its engine is free, and the request goes on."""

    request_id: str
    attempt: int
    engine: str
    model: str


class NotRetried(msgspec.Struct, frozen=True):
    """No other engine is asked after this attempt: `why`, and what spoke against going on with its answer."""

    request_id: str
    attempt: int
    why: str
    objection: str | None = None
    model: str = NO_MODEL


class ClientGone(msgspec.Struct, frozen=True):
    """The client left while this attempt ran; the engine's connection is closed."""

    request_id: str
    attempt: int
    engine: str


class Finished(msgspec.Struct, frozen=True):
    """The request is over: its own numbers, which the access log is made from. What each engine made of it was told before, as
    `Generated`.

    `engine` is the one that ended last. `first_output_s` is as `ttft_s`, to the first delta that is no thought. `prefill_s` and
    `decode_s` are of its attempt: to the first token, and from there to its end, but for the time that the client made it wait.
    `finish_reasons` are those of the answers that came to their end.
    `ended_thoughts` are those that the gateway ended, as they had all the tokens that the request allows. `retries` are the
    attempts that followed a failure, `resumes` those of them that went on with a broken answer. `trace_id` is the trace's that it
    is a part of, where that is known, and `sampled` whether that is recorded. `arrived_s` is when its first byte came, `rendered`
    when its prompt began and ended to be made, `tokenize_s` the part of that which made ids of text; `entered_s` is when it came
    to where it may have to wait. `sampling`, `max_tokens`, `choices` and `session` are the
    client's; `as_json`: it wants JSON.
    """

    request_id: str
    dialect: str
    model: str
    engine: str
    format: str
    outcome: Outcome
    reason: str | None
    status: int
    streamed: bool
    attempts: int
    duration_s: float
    ttft_s: float | None = None
    first_output_s: float | None = None
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    client_stall_s: float = 0.0
    usage: Usage = Usage()
    finish_reasons: tuple[FinishReason, ...] = ()
    with_tools: bool = False
    tool_calls: int = 0
    ended_thoughts: int = 0
    retries: int = 0
    resumes: int = 0
    failures: tuple[tuple[FailureKind, int], ...] = ()
    notes: tuple[str, ...] = ()
    trace_id: str | None = None
    sampled: bool = False
    arrived_s: float = 0.0
    rendered: tuple[float, float] | None = None
    tokenize_s: float | None = None
    entered_s: float | None = None
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    choices: int = 1
    as_json: bool = False
    session: str | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first of its answers ended."""
        return self.finish_reasons[0] if self.finish_reasons else None

    @property
    def recorded(self) -> str | None:
        """The trace's id, where there is a trace to be found by it."""
        return self.trace_id if self.sampled else None


Event = (
    Received
    | AttemptStarted
    | Prefilled
    | CacheTold
    | FirstToken
    | Generated
    | AttemptFailed
    | AttemptServed
    | NotRetried
    | ClientGone
    | Finished
)
