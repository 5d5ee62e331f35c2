"""What happened to one request, for its operator: each attempt, why it went where it did, and why none followed.

Invariant: numbers, configured names and our own words only, never what a client or an engine said; and bounded, whatever is
asked: so many requests, so many attempts of one, and so many engines of one attempt.

What is made for each request is not frozen, which would cost three times as much; nobody changes it but this module.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Annotated, Literal

from pydantic import PlainSerializer

from gateway.events import (
    AttemptFailed,
    AttemptServed,
    AttemptStarted,
    CacheTold,
    ClientGone,
    Event,
    Finished,
    FirstToken,
    NotRetried,
    Prefilled,
    Received,
)
from gateway.routing.view import EngineView, Forecast

KEPT_REQUESTS = 1_000
_RUNNING_REQUESTS = 4_000
_ATTEMPTS = 16
_ENGINES = 16
_ENGINES_IN_ALL = 64  # of one request

Rounded = Annotated[float, PlainSerializer(lambda value: round(value, 6), return_type=float)]
"""A number that a program is told: seconds to the microsecond, without the noise of sums."""

AttemptOutcome = Literal["running", "served", "failed", "client_gone"]


@dataclass(slots=True)
class Considered:
    """One engine as it was then, but for what it says of itself. Fields as in `EngineView`. `cost_s`: what the request would have
    cost there, as it was compared; None: it was not."""

    id: str
    ready: bool
    running: int
    most_running: int | None
    draining: bool
    ejected: bool
    rests_s: Rounded
    share: Rounded
    failing: Rounded
    cost_s: Rounded | None = None


@dataclass(slots=True)
class Expected:
    """What the router believed of an attempt. Fields as in `Forecast` and `Terms`."""

    prompt_tokens: int
    cached_tokens: int
    ttft_s: Rounded
    wait_s: Rounded
    memory_s: Rounded
    prefill_s: Rounded
    eviction_s: Rounded
    standing_s: Rounded
    kappa: Rounded
    shared_s: Rounded


@dataclass(slots=True)
class AttemptStory:
    """One attempt, at choice number `choice` of the request, or at all of them. `started_s` is since the request's body was read,
    `lasted_s` None while it runs. `considered` are the engines as they were when it was chosen, that one first and then the
    cheapest; `left_out` counts those that are not shown. `stopped` says why no attempt followed a failure, and `objection` what
    spoke against going on with its answer. `forecast` is what was expected of it, `ttft_s` and `cached_tokens` what came; None:
    it did not come, or the engine does not say."""

    attempt: int
    engine: str
    why: str
    started_s: Rounded
    choice: int = 0
    considered: tuple[Considered, ...] = ()
    left_out: int = 0
    outcome: AttemptOutcome = "running"
    reason: str | None = None
    lasted_s: Rounded | None = None
    stopped: str | None = None
    objection: str | None = None
    forecast: Expected | None = None
    ttft_s: Rounded | None = None
    cached_tokens: int | None = None


@dataclass(slots=True)
class Timings:
    """Seconds of a request that is over: of all of it, in the gateway's queue, to the first token, and for the client to read."""

    duration_s: Rounded
    queue_s: Rounded
    ttft_s: Rounded | None
    client_stall_s: Rounded


@dataclass(slots=True)
class RequestStory:
    """One request. What is None is not known before its end. `attempts_left_out` counts those that are not shown."""

    request_id: str
    model: str | None = None
    outcome: str | None = None
    reason: str | None = None
    status: int | None = None
    streamed: bool | None = None
    finish_reason: str | None = None
    timings: Timings | None = None
    retries: int = 0
    resumes: int = 0
    attempts: list[AttemptStory] = field(default_factory=list)
    attempts_left_out: int = 0


class Explain:
    """An observer that remembers requests that run, and the last that are over. `clock` is that of the events."""

    def __init__(self, clock: Callable[[], float], kept: int = KEPT_REQUESTS) -> None:
        self._clock = clock
        self._kept = kept
        self._running: OrderedDict[str, _Record] = OrderedDict()
        self._over: OrderedDict[str, RequestStory] = OrderedDict()

    def __call__(self, event: Event) -> None:
        """Takes one event."""
        match event:
            case Received():
                self._record(event.request_id).received_s = event.at_s
            case AttemptStarted():
                self._started(event)
            case Prefilled():
                if (attempt := self._attempt(event.request_id, event.attempt)) is not None:
                    attempt.ttft_s = event.ttft_s
            case CacheTold():
                if (attempt := self._attempt(event.request_id, event.attempt)) is not None:
                    attempt.cached_tokens = event.cached_tokens
            case AttemptFailed() | AttemptServed() | ClientGone():
                self._ended(event)
            case NotRetried():
                self._stopped(event)
            case Finished():
                self._finished(event)
            case FirstToken():
                pass  # its time is in Finished

    def story(self, request_id: str) -> RequestStory | None:
        """One request; None where it is not known, or no more."""
        if (record := self._running.get(request_id)) is not None:
            return record.story
        return self._over.get(request_id)

    def last(self, count: int) -> Iterator[RequestStory]:
        """The last that are over, newest first."""
        return islice(reversed(self._over.values()), count)

    def _record(self, request_id: str) -> "_Record":
        record = self._running.get(request_id)
        if record is None:
            record = self._running[request_id] = _Record(RequestStory(request_id), self._clock())
            if len(self._running) > _RUNNING_REQUESTS:
                self._running.popitem(last=False)
        return record

    def _started(self, event: AttemptStarted) -> None:
        if event.request_id in self._over:
            return
        record = self._record(event.request_id)
        story = record.story
        story.model = event.model
        story.retries += event.retry
        story.resumes += event.why == "resume"
        if len(story.attempts) >= _ATTEMPTS:
            story.attempts_left_out += 1
            return
        shown = _shown(event, min(_ENGINES, _ENGINES_IN_ALL - record.engines))
        record.engines += len(shown)
        left_out = len(event.considered) - len(shown)
        started_s = event.at_s - record.received_s
        attempt = AttemptStory(event.attempt, event.engine, event.why, started_s, event.choice, shown, left_out)
        attempt.forecast = _expected(event.forecast) if event.forecast is not None else None
        story.attempts.append(attempt)

    def _ended(self, event: AttemptFailed | AttemptServed | ClientGone) -> None:
        if (attempt := self._attempt(event.request_id, event.attempt)) is None:
            return
        attempt.lasted_s = self._since(event.request_id) - attempt.started_s
        if isinstance(event, AttemptFailed):
            attempt.outcome, attempt.reason = "failed", event.reason
        else:
            attempt.outcome = "served" if isinstance(event, AttemptServed) else "client_gone"

    def _stopped(self, event: NotRetried) -> None:
        if (attempt := self._attempt(event.request_id, event.attempt)) is not None:
            attempt.stopped, attempt.objection = event.why, event.objection

    def _finished(self, event: Finished) -> None:
        since_s = self._since(event.request_id)
        record = self._running.pop(event.request_id, None)
        story = record.story if record is not None else RequestStory(event.request_id)
        for attempt in story.attempts:
            if attempt.outcome == "running":
                attempt.outcome, attempt.lasted_s = "served", since_s - attempt.started_s
        timings = Timings(event.duration_s, event.queue_s, event.ttft_s, event.client_stall_s)
        story.model, story.outcome, story.reason, story.status = event.model, event.outcome, event.reason, event.status
        story.streamed, story.finish_reason, story.timings = event.streamed, event.finish_reason, timings
        story.retries, story.resumes = event.retries, event.resumes
        self._over[event.request_id] = story
        if len(self._over) > self._kept:
            self._over.popitem(last=False)

    def _attempt(self, request_id: str, number: int) -> AttemptStory | None:
        record = self._running.get(request_id)
        if record is None:
            return None
        return next((each for each in record.story.attempts if each.attempt == number), None)

    def _since(self, request_id: str) -> float:
        record = self._running.get(request_id)
        return 0.0 if record is None else self._clock() - record.received_s


@dataclass(slots=True)
class _Record:
    """A request that runs. `engines` counts those that its attempts show."""

    story: RequestStory
    received_s: float
    engines: int = 0


def _expected(forecast: Forecast) -> Expected:
    return Expected(forecast.prompt_tokens, forecast.cached_tokens, forecast.ttft_s, *forecast.terms)


def _shown(event: AttemptStarted, most: int) -> tuple[Considered, ...]:
    """The engine that was chosen, then those that were compared, the cheapest first, then the others in their order."""
    costs = dict(event.forecast.costs) if event.forecast is not None else {}
    ordered = sorted(event.considered, key=lambda view: (view.id != event.engine, costs.get(view.id, inf)))
    return tuple(_considered(view, costs.get(view.id)) for view in ordered[:most])


def _considered(view: EngineView, cost_s: float | None) -> Considered:
    return Considered(
        id=view.id,
        ready=view.ready,
        running=view.running,
        most_running=view.most_running,
        draining=view.draining,
        ejected=view.ejected,
        rests_s=view.rests_s,
        share=view.share,
        failing=view.failing,
        cost_s=cost_s,
    )
