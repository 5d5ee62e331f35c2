"""One request's events as spans: a SERVER span, and below it render, queue, and of each attempt its route, itself (CLIENT) and
its parsing.

Invariant: no span holds what was said. Texts of clients are cut and cleaned; all others are our own words and names of the
settings. `error.type` is the word that the log and the metrics have.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gateway.events import NO_MODEL, AttemptStarted, Finished, Outcome
from gateway.observe import genai
from gateway.wire.trace_context import TraceContext

Kind = Literal["server", "client", "internal"]
Value = str | int | float | bool | tuple[str, ...]
Attributes = dict[str, Value]

MAX_TEXT_CHARS = 128
_NOT_OURS: tuple[Outcome, ...] = ("ok", "client_error", "client_gone")  # what the conventions leave unset in a server's span
GONE = "client_gone"


@dataclass(frozen=True, slots=True)
class Span:
    """One span, over. Ids as in `TraceContext`; times are Unix nanoseconds. `failed`: its status is an error."""

    name: str
    kind: Kind
    trace_id: str
    span_id: int
    parent_id: int | None
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    failed: bool = False
    state: str = ""
    remote: bool = False  # whether the parent is another process's


class Place(NamedTuple):
    """Where an engine is, and what it is."""

    kind: str
    host: str
    port: int


@dataclass(slots=True)
class Parsed:
    """The parsing of one attempt: `busy_s` of it, in so many steps, from the first to the last."""

    begin_s: float = 0.0
    end_s: float = 0.0
    busy_s: float = 0.0
    steps: int = 0


@dataclass(slots=True)
class Tried:
    """One attempt, and what came of it. `ready_s`: when the one before it had failed."""

    started: AttemptStarted
    place: Place | None
    ready_s: float | None
    end_s: float | None = None
    error: str | None = None
    ttft_s: float | None = None
    cached_tokens: int | None = None
    parsed: Parsed = field(default_factory=Parsed)


@dataclass(slots=True)
class Story:
    """What was kept of a request until it is over. Times are the loop's; `offset_s` makes them Unix time. `span_id` is the
    request's own; an attempt's is so many more."""

    trace_id: str
    span_id: int
    parent: TraceContext | None
    offset_s: float
    received_s: float | None = None
    tries: dict[int, Tried] = field(default_factory=dict)
    failed_s: float | None = None
    not_retried: str | None = None
    objection: str | None = None

    def attempt_id(self, number: int) -> int:
        """The span id of an attempt, which its engine is told before the attempt is over."""
        return (self.span_id + number) % (1 << 64) or 1 << 63


def spans_of(story: Story, done: Finished, end_s: float, new_id: Callable[[], int]) -> list[Span]:
    """All spans of a request that ended now. `new_id` gives the ids of those that no one was told of."""
    make = _Maker(story, new_id)
    name = genai.CHAT if done.model == NO_MODEL else f"{genai.CHAT} {done.model}"
    failed = done.outcome not in _NOT_OURS
    make.span(name, done.arrived_s, end_s, _of_request(story, done), kind="server", span_id=story.span_id, failed=failed)
    if done.rendered is not None:
        make.span("render", *done.rendered, {})
    waits_s = done.queue_s if done.entered_s is not None else 0.0
    ready_s = None if done.entered_s is None else done.entered_s + waits_s
    if done.entered_s is not None and ready_s is not None and waits_s:
        make.span("queue", done.entered_s, ready_s, {})
    for number, tried in story.tries.items():
        _attempt(make, number, tried, ready_s, end_s)
    return make.spans


class _Maker:
    """The spans of one request, as they are made: the request's own, a child of its caller's, and those below."""

    def __init__(self, story: Story, new_id: Callable[[], int]) -> None:
        self.spans: list[Span] = []
        self.attempt_id = story.attempt_id
        self._story = story
        self._new_id = new_id
        self._state = story.parent.state if story.parent is not None else ""
        self._caller = int(story.parent.span_id, 16) if story.parent is not None else None

    def span(
        self,
        name: str,
        begin_s: float,
        end_s: float,
        attributes: Attributes,
        *,
        kind: Kind = "internal",
        span_id: int | None = None,
        parent_id: int | None = None,
        failed: bool = False,
    ) -> None:
        """Makes one, below the request's where it names no parent. It ends no sooner than it begins."""
        story, own = self._story, kind == "server"
        outer = self._caller if own else parent_id or story.span_id
        begin_ns, end_ns = (int((at_s + story.offset_s) * 1e9) for at_s in (begin_s, max(begin_s, end_s)))
        span = Span(
            name,
            kind,
            story.trace_id,
            span_id or self._new_id(),
            outer,
            begin_ns,
            end_ns,
            attributes,
            failed,
            self._state,
            remote=own and outer is not None,
        )
        self.spans.append(span)


def _attempt(make: _Maker, number: int, tried: Tried, ready_s: float | None, end_s: float) -> None:
    """How an engine was chosen, what it did, and how its answer was read."""
    started, parsed = tried.started, tried.parsed
    from_s = tried.ready_s if tried.ready_s is not None else ready_s
    make.span("route", from_s if from_s is not None else started.at_s, started.at_s, dict(_of_route(number, started)))
    attributes = dict(_of_attempt(number, tried))
    over_s = end_s if tried.end_s is None else tried.end_s
    failed = tried.error not in (None, GONE)
    own = make.attempt_id(number)
    make.span("attempt", started.at_s, over_s, attributes, kind="client", span_id=own, failed=failed)
    if parsed.steps:
        read: Attributes = {genai.PARSE_S: round(parsed.busy_s, 6), genai.PARSE_STEPS: parsed.steps}
        make.span("parse", parsed.begin_s, parsed.end_s, read, parent_id=own)


def _of_route(number: int, started: AttemptStarted) -> Iterator[tuple[str, Value]]:
    yield genai.ATTEMPT, number
    yield genai.ENGINE, started.engine
    yield genai.WHY, started.why
    yield genai.ENGINES_CONSIDERED, len(started.considered)
    if (forecast := started.forecast) is not None:
        yield genai.PREDICTED_TTFT_S, round(forecast.ttft_s, 6)
        yield genai.PREDICTED_CACHED_TOKENS, forecast.cached_tokens


def _of_attempt(number: int, tried: Tried) -> Iterator[tuple[str, Value]]:
    started, place = tried.started, tried.place
    yield genai.OPERATION_NAME, genai.CHAT
    yield genai.REQUEST_MODEL, started.model
    yield genai.ENGINE, started.engine
    yield genai.ATTEMPT, number
    yield genai.WHY, started.why
    if place is not None:
        yield genai.PROVIDER_NAME, place.kind
        yield genai.SERVER_ADDRESS, place.host
        yield genai.SERVER_PORT, place.port
    if tried.ttft_s is not None:
        yield genai.RESPONSE_TIME_TO_FIRST_CHUNK, round(tried.ttft_s, 6)
    if tried.cached_tokens is not None:
        yield genai.USAGE_CACHED_TOKENS, tried.cached_tokens
    if tried.error is not None:
        yield genai.ERROR_TYPE, tried.error


def _of_request(story: Story, done: Finished) -> Attributes:
    usage = done.usage
    attributes: Attributes = {
        genai.OPERATION_NAME: genai.CHAT,
        genai.PROVIDER_NAME: genai.PROVIDER,
        genai.REQUEST_MODEL: done.model,
        genai.HTTP_METHOD: "POST",
        genai.HTTP_STATUS: done.status,
        genai.REQUEST_ID: done.request_id,
        genai.DIALECT: done.dialect,
        genai.ENGINE: done.engine,
        genai.FORMAT: done.format,
        genai.OUTCOME: done.outcome,
        genai.REQUEST_STREAM: done.streamed,
        genai.OUTPUT_TYPE: "json" if done.as_json else "text",
        genai.ATTEMPTS: done.attempts,
        genai.USAGE_INPUT_TOKENS: usage.prompt_tokens,
        genai.USAGE_OUTPUT_TOKENS: usage.completion_tokens,
        genai.USAGE_CACHED_TOKENS: usage.cached_tokens,
        genai.USAGE_REASONING_TOKENS: usage.reasoning_tokens,
    }
    if done.outcome != "ok":
        attributes[genai.ERROR_TYPE] = done.reason or done.outcome
    attributes.update((name, value) for name, value in _where_there(story, done) if value)
    attributes.update((name, value) for name, value in _asked(done) if value is not None)
    return attributes


def _where_there(story: Story, done: Finished) -> Iterator[tuple[str, Value | None]]:
    """What most requests have none of."""
    yield genai.REASON, done.reason
    yield genai.RETRIES, done.retries
    yield genai.RESUMES, done.resumes
    yield genai.NOT_RETRIED, story.not_retried
    yield genai.OBJECTION, story.objection
    yield genai.QUEUE_S, round(done.queue_s, 6)
    yield genai.CLIENT_STALL_S, round(done.client_stall_s, 6)
    yield genai.BODY_S, round(story.received_s - done.arrived_s, 6) if story.received_s is not None else None
    yield genai.TOOL_CALLS, done.tool_calls
    yield genai.PARSE_FAILURES, tuple(kind for kind, _ in done.failures)
    yield genai.RESPONSE_FINISH_REASONS, done.finish_reasons


def _asked(done: Finished) -> Iterator[tuple[str, Value | None]]:
    """What the client said, where it did."""
    sampling = done.sampling
    yield genai.RESPONSE_TIME_TO_FIRST_CHUNK, None if done.ttft_s is None else round(done.ttft_s, 6)
    yield genai.REQUEST_MAX_TOKENS, done.max_tokens
    yield genai.REQUEST_TEMPERATURE, sampling.temperature
    yield genai.REQUEST_TOP_P, sampling.top_p
    yield genai.REQUEST_TOP_K, sampling.top_k
    yield genai.REQUEST_SEED, sampling.seed
    yield genai.REQUEST_FREQUENCY_PENALTY, sampling.frequency_penalty
    yield genai.REQUEST_PRESENCE_PENALTY, sampling.presence_penalty
    yield genai.REQUEST_CHOICE_COUNT, done.choices if done.choices != 1 else None
    yield genai.CONVERSATION_ID, cleaned(done.session) if done.session else None


def cleaned(text: str) -> str:
    """A client's text, short and in characters that can be shown."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text[:MAX_TEXT_CHARS])
