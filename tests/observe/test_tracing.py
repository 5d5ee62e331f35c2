"""The observer: what it records, what it keeps meanwhile, and the spans that it makes of the events."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace
from support.events import DONE

from engines.base import Chunk
from gateway.events import (
    AttemptFailed,
    AttemptServed,
    AttemptStarted,
    CacheTold,
    ClientGone,
    FirstToken,
    NotRetried,
    Prefilled,
    Received,
)
from gateway.observe import genai
from gateway.observe.spans import MAX_TEXT_CHARS, Place, Span, Story, cleaned
from gateway.observe.tracing import Tracing
from gateway.request import Sampling
from gateway.routing.view import Forecast, Terms

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = [(b"traceparent", f"00-{TRACE}-{CALLER}-01".encode()), (b"tracestate", b"a=1")]
NS = 10**9


class Clock:
    """The loop's clock; Unix time is 1,000 s more."""

    def __init__(self) -> None:
        self.now_s = 10.0

    def __call__(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + 1000


class Bits:
    """Ids that count, but for the first."""

    def __init__(self, first: int | None = None) -> None:
        self.next = 0x100
        self.first = first

    def __call__(self, bits: int) -> int:
        if self.first is not None:
            given, self.first = self.first, None
            return given
        self.next += 0x100
        return self.next


class Traced:
    """An observer with what it gave."""

    def __init__(self, ratio: float = 1.0, bits: Callable[[int], int] | None = None) -> None:
        self.spans: list[Span] = []
        self.clock = Clock()
        self.tracing = Tracing(
            ratio,
            self.spans.extend,
            place=lambda engine: Place("vllm", "host", 8000) if engine == "a" else None,
            clock_s=self.clock,
            wall_s=self.clock.wall,
            bits=bits or Bits(),
        )

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def forecast() -> Forecast:
    return Forecast(100, 60, 0.5, Terms(*[0.0] * len(Terms._fields)))


def tell(traced: Traced, *events: object, at_s: float = 0.5) -> None:
    for event in events:
        traced.clock.now_s += at_s
        traced.tracing(event)  # type: ignore[arg-type]  # each is one of the union


@pytest.mark.parametrize(
    ("ratio", "low", "sampled"),
    [
        (1.0, 0, True),
        (0.0, (1 << 56) - 1, False),
        (0.25, (3 << 54) - 1, False),
        (0.25, 3 << 54, True),
        (1e-9, (1 << 56) - 1, True),
    ],
)
def test_the_share_is_of_the_trace_ids_as_other_samplers_take_it(ratio: float, low: int, sampled: bool) -> None:
    traced = Traced(ratio, Bits(first=0xABC << 116 | low))
    trace = traced.tracing.begin("r", [], 1.0)
    assert trace.context is not None
    assert (trace.context.sampled, trace.context.flags & 2) == (sampled, 2)
    assert trace.headers(1)["traceparent"].startswith(f"00-{0xABC << 116 | low:032x}-")
    traced.tracing(replace(DONE, request_id="r"))
    assert bool(traced.spans) == sampled


def test_ids_of_nothing_but_zeros_are_never_given() -> None:
    traced = Traced(bits=lambda bits: 0)
    trace = traced.tracing.begin("r", [], 1.0)
    assert trace.headers(1)["traceparent"] == f"00-{1:032x}-{2:016x}-03"
    assert Story("t", (1 << 64) - 1, None, 0.0).attempt_id(1) == 1 << 63


def test_what_is_not_recorded_costs_no_memory_and_what_is_over_is_forgotten() -> None:
    traced = Traced(0.0)
    for number in range(100):
        traced.tracing.begin(f"r{number}", [], 1.0)
    assert not traced.tracing.recording()
    traced.tracing.begin("kept", PARENT, 1.0)
    assert traced.tracing.recording() == 1
    tell(traced, replace(DONE, request_id="kept"), Received("kept", "openai_chat", 1.0))
    assert not traced.tracing.recording()


def test_a_parse_is_timed_only_where_it_is_recorded() -> None:
    def take(chunks: Sequence[Chunk]) -> bool:
        traced.clock.now_s += 0.25
        return True

    traced = Traced(0.0)
    assert traced.tracing.begin("no", [], 1.0).timed(1, take) is take
    trace = traced.tracing.begin("r", PARENT, 1.0)
    tell(traced, AttemptStarted("r", 1, "a", "m", 10.0))
    timed = trace.timed(1, take)
    assert trace.timed(2, take) is take
    assert timed([])
    traced.clock.now_s = 20.0
    assert timed([])
    tell(traced, replace(DONE, request_id="r"))
    (parse,) = traced.named("parse")
    assert (parse.begin_ns, parse.end_ns) == (int(1010.5 * NS), int(1020.25 * NS))
    assert parse.attributes == {genai.PARSE_S: 0.5, genai.PARSE_STEPS: 2}


def test_every_event_finds_its_place() -> None:
    traced = Traced()
    trace = traced.tracing.begin("r", PARENT, 10.0)
    told = [trace.headers(number)["traceparent"].split("-")[2] for number in (1, 2)]
    tell(
        traced,
        Received("r", "openai_chat", 10.25),
        AttemptStarted("r", 1, "a", "m", 11.0, "cheapest"),
        Prefilled("r", 1, "a", "m", 0.125),
        FirstToken("r", 1, "a", "m", 0.25),
        AttemptFailed("r", 1, "a", "broke", "m"),
        AttemptStarted("r", 2, "b", "m", 12.75, "resume", retry=True),
        NotRetried("r", 2, "resume_refused", "penalties", "m"),
        AttemptFailed("r", 9, "b", "unknown", "m"),
        replace(
            DONE,
            request_id="r",
            outcome="upstream_error",
            reason="broke",
            arrived_s=10.0,
            rendered=(10.25, 10.5),
            entered_s=10.5,
            queue_s=0.25,
            sampling=Sampling(temperature=0.0),
            session="s" * 500,
            trace_id=TRACE,
        ),
    )
    root, render, queue, route, first, again, second = traced.spans
    assert [span.name for span in traced.spans] == ["chat m", "render", "queue", "route", "attempt", "route", "attempt"]
    assert {(span.trace_id, span.state) for span in traced.spans} == {(TRACE, "a=1")}
    assert (root.parent_id, root.remote, root.failed) == (int(CALLER, 16), True, True)
    assert {span.parent_id for span in traced.spans[1:]} == {root.span_id}
    assert not any(span.remote for span in traced.spans[1:])
    assert [f"{span.span_id:016x}" for span in (first, second)] == told
    times = {span.name: (span.begin_ns / NS - 1000, span.end_ns / NS - 1000) for span in (render, queue, root)}
    assert times == {"render": (10.25, 10.5), "queue": (10.5, 10.75), "chat m": (10.0, 14.5)}
    assert [(span.begin_ns / NS - 1000, span.end_ns / NS - 1000) for span in (route, first, again, second)] == [
        (10.75, 11.0),
        (11.0, 12.5),
        (12.5, 12.75),
        (12.75, 14.5),
    ]
    assert first.attributes[genai.PROVIDER_NAME] == "vllm"
    assert genai.PROVIDER_NAME not in second.attributes
    assert (root.attributes[genai.NOT_RETRIED], root.attributes[genai.OBJECTION]) == ("resume_refused", "penalties")
    assert root.attributes[genai.REQUEST_TEMPERATURE] == 0.0
    assert root.attributes[genai.CONVERSATION_ID] == "s" * MAX_TEXT_CHARS
    assert root.attributes[genai.PARSE_FAILURES] == ("invalid_json", "stray_marker")


def test_attempts_end_when_they_end_and_not_with_the_request() -> None:
    traced = Traced()
    traced.tracing.begin("r", [], 10.0)
    tell(
        traced,
        AttemptStarted("r", 1, "a", "m", 10.5),
        AttemptServed("r", 1, "a", "m"),
        AttemptStarted("r", 2, "a", "m", 11.5),
        CacheTold("r", 2, "a", "m", 40, forecast()),
        AttemptStarted("r", 3, "a", "m", 12.5, forecast=forecast()),
        ClientGone("r", 3, "a"),
        replace(DONE, request_id="r", outcome="client_gone", reason="streaming", arrived_s=10.0),
    )
    assert [span.end_ns / NS - 1000 for span in traced.named("attempt")] == [11.0, 12.0, 13.0]
    assert [span.attributes.get(genai.ERROR_TYPE) for span in traced.named("attempt")] == [None, None, "client_gone"]
    assert traced.named("attempt")[1].attributes[genai.USAGE_CACHED_TOKENS] == 40
    assert not any(span.failed for span in traced.spans)
    last = traced.named("route")[2].attributes
    assert (last[genai.PREDICTED_TTFT_S], last[genai.PREDICTED_CACHED_TOKENS]) == (0.5, 60)


def test_every_attribute_is_one_of_the_pinned_names() -> None:
    known = {value for name, value in vars(genai).items() if name.isupper()}
    test_every_event_finds_its_place()
    traced = Traced()
    traced.tracing.begin("r", [], 10.0)
    tell(traced, AttemptStarted("r", 1, "a", "m", 10.5, forecast=forecast()), replace(DONE, request_id="r"))
    assert {name for span in traced.spans for name in span.attributes} <= known


def test_a_clients_text_is_cut_and_holds_nothing_that_cannot_be_shown() -> None:
    assert cleaned("a\x00b\u202ec\ud800d é" + "x" * 500) == ("a\ufffdb\ufffdc\ufffdd é" + "x" * 500)[:MAX_TEXT_CHARS]
    cleaned("\udfff").encode()
