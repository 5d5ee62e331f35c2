"""Traces: an observer that keeps a few times of each request that is recorded, and makes its spans when it is over.

A request is recorded where its caller records the trace; where none says, for a share of the trace ids. Of others nothing is
kept: an event of theirs costs one look into a dictionary. Their engines are still told of the trace, and that it is not recorded.

Invariant: what is kept of a request is dropped with its `Finished`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engines.base import Chunk
from gateway.events import (
    AttemptFailed,
    AttemptServed,
    AttemptStarted,
    CacheTold,
    ClientGone,
    Event,
    Finished,
    NotRetried,
    Prefilled,
    Received,
)
from gateway.observe.spans import GONE, Parsed, Place, Span, Story, Tried, spans_of
from gateway.trace import Headers, Take, Trace
from gateway.wire.trace_context import RANDOM, SAMPLED, TraceContext, read

Spans = Callable[[Sequence[Span]], None]


class _Recorded(Trace):
    """A trace that this gateway has spans of."""

    __slots__ = ("_clock_s", "_story")

    def __init__(self, context: TraceContext, story: Story, clock_s: Callable[[], float]) -> None:
        super().__init__(context)
        self._story = story
        self._clock_s = clock_s

    def headers(self, attempt: int) -> Mapping[str, str]:
        """The engine's spans are below the attempt's."""
        story = self._story
        state = story.parent.state if story.parent is not None else ""
        flags = story.parent.flags if story.parent is not None else SAMPLED | RANDOM
        return TraceContext(story.trace_id, f"{story.attempt_id(attempt):016x}", flags, state).headers()

    def timed(self, attempt: int, take: Take) -> Take:
        """Two looks at the clock a read, of which several chunks may come: only where the trace is recorded."""
        tried = self._story.tries.get(attempt)
        return take if tried is None else partial(_timed, take, tried.parsed, self._clock_s)


def _timed(take: Take, parsed: Parsed, clock_s: Callable[[], float], chunks: Sequence[Chunk]) -> bool:
    begin_s = clock_s()
    try:
        return take(chunks)
    finally:
        parsed.end_s = clock_s()
        parsed.busy_s += parsed.end_s - begin_s
        parsed.begin_s = parsed.begin_s or begin_s
        parsed.steps += 1


class Tracing:
    """The observer. `ratio` is the share of the traces without a caller that are recorded; `spans` takes those of a request that
    is over; `place` says where an engine is, by its id; `clock_s` is the loop's and `wall_s` Unix time, in seconds; `bits` gives
    random bits."""

    def __init__(
        self,
        ratio: float,
        spans: Spans,
        *,
        place: Callable[[str], Place | None],
        clock_s: Callable[[], float],
        wall_s: Callable[[], float],
        bits: Callable[[int], int],
    ) -> None:
        self._from = round((1 - ratio) * (1 << 56))  # as OpenTelemetry's samplers decide, so that all of a trace decide alike
        self._spans = spans
        self._place = place
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._bits = bits
        self._stories: dict[str, Story] = {}

    def recording(self) -> int:
        """How many requests are recorded now."""
        return len(self._stories)

    def begin(self, request_id: str, headers: Headers, at_s: float) -> Trace:
        """Begins the trace of a request, or goes on with its caller's."""
        parent = read(headers)
        if parent is None:
            trace_id = f"{self._bits(128) or 1:032x}"
            sampled = int(trace_id[-14:], 16) >= self._from
            context = TraceContext(trace_id, f"{self._new_id():016x}", RANDOM | (SAMPLED if sampled else 0))
        else:
            context, sampled = parent, parent.sampled
        if not sampled:
            return Trace(context)
        offset_s = self._wall_s() - self._clock_s()
        own = self._new_id() if parent is not None else int(context.span_id, 16)
        story = self._stories[request_id] = Story(context.trace_id, own, parent, offset_s)
        return _Recorded(context, story, self._clock_s)

    def __call__(self, event: Event) -> None:
        """Keeps what the spans need; makes them of a request that is over."""
        story = self._stories.get(event.request_id)
        if story is None:
            return
        match event:
            case Finished():
                del self._stories[event.request_id]
                self._spans(spans_of(story, event, self._clock_s(), self._new_id))
            case Received():
                story.received_s = event.at_s
            case AttemptStarted():
                ready_s = story.failed_s if event.retry else None
                story.tries[event.attempt] = Tried(event, self._place(event.engine), ready_s)
            case NotRetried():
                story.not_retried, story.objection = event.why, event.objection
            case _ if (tried := story.tries.get(getattr(event, "attempt", 0))) is not None:
                self._attempt(story, tried, event)
            case _:
                pass

    def _attempt(self, story: Story, tried: Tried, event: Event) -> None:
        match event:
            case Prefilled():
                tried.ttft_s = event.ttft_s
            case CacheTold():
                tried.cached_tokens, tried.end_s = event.cached_tokens, self._clock_s()
            case AttemptServed():
                tried.end_s = self._clock_s()
            case AttemptFailed():
                tried.error, tried.end_s = event.reason, self._clock_s()
                story.failed_s = tried.end_s
            case ClientGone():
                tried.error, tried.end_s = GONE, self._clock_s()
            case _:
                pass

    def _new_id(self) -> int:
        return self._bits(64) or 1
