"""One request against an engine and a client that do anything in any order: one outcome, and nothing left behind.

The engine is a script of what its connection does, the client a script of what it does with each piece; the rest is the real
thing, from the ASGI application down.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.scripted_engine import llama_end, llama_token
from support.vocabulary import SYNTAX, fixed_clock, model_files
from support.wiring import fleet
from yarl import URL

from engines.base import Call
from gateway.admission import Admission
from gateway.answer import AnswerRules
from gateway.app import request_ids
from gateway.budget import RetryBudget
from gateway.dialects.base import Limits
from gateway.dialects.openai_chat import OpenAIChat
from gateway.errors import EngineBroke, EngineUnreachable
from gateway.events import AttemptFailed, AttemptStarted, ClientGone, Event, Finished, FirstToken, Received
from gateway.formats.registry import load
from gateway.job import Services
from gateway.model import Model, Rendered
from gateway.observe.bus import Bus
from gateway.prompt.prompter import Prompter
from gateway.route import Guides
from gateway.routing.choice import Tuning
from gateway.routing.queue import QueueRules
from gateway.routing.retry import RetryRules
from gateway.server.completions import Completions, ServeOptions
from gateway.timer import StageLimits, Watchdog
from gateway.upstream import Upstream

FORMATS = load()
PROMPTER = Prompter(replace(model_files("echo"), context_tokens=4096), tools="constrained", syntax=SYNTAX, clock=fixed_clock)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}
SHORT = StageLimits(connect_s=0.02, headers_s=0.02, first_token_s=0.02, between_tokens_s=0.02, client_s=5, total_s=0.08)
SLOW_S = 3.0  # no request may take longer: its limits are a fraction of it


class FakeExchange:
    """An engine's answer, a step at a time."""

    content_type = "text/event-stream"

    def __init__(self, steps: list[str]) -> None:
        self._steps = iter(steps)
        self._tokens = 0
        self.status = 500 if steps[:1] == ["refuse"] else 200
        self.ends = 0

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        match next(self._steps, "close"):
            case "text":
                return self._token("word ")
            case "call":
                return self._token(CALL)
            case "half":
                return self._token("ab")[:-20]
            case "comment":
                return b": alive\n\n"
            case "stop":
                return self._token("<|im_end|>", 2)
            case "end":
                return b"data: %s\n\n" % json.dumps(llama_end(self._tokens)).encode()
            case "error":
                return b'data: {"error": {"message": "slot", "code": 500}}\n\n'
            case "garbage":
                return b"data: [1, {\n\n"
            case "stall":
                await asyncio.sleep(60)
            case "reset":
                raise EngineBroke("The engine closed the connection before its answer was complete.")
            case "bug":
                raise ValueError("a bug of ours")
        return b""

    def _token(self, text: str, token: int = 500) -> bytes:
        self._tokens += 1
        return b"data: %s\n\n" % json.dumps(llama_token(text, self._tokens, token)).encode()

    async def read_error(self) -> bytes:
        return b'{"error": {"message": "no", "code": 500}}'

    def release(self) -> None:
        self.ends += 1

    def close(self) -> None:
        self.ends += 1


class FakeUpstream:
    """Gives each attempt the next script."""

    def __init__(self, scripts: list[list[str]]) -> None:
        self._scripts = scripts
        self.calls = 0
        self.opened: list[FakeExchange] = []

    async def open(self, url: URL, call: Call, *, api_key: str | None, connect_s: float) -> FakeExchange:
        steps = self._scripts[self.calls % len(self._scripts)]
        self.calls += 1
        await asyncio.sleep(0)
        if steps == ["unreachable"]:
            raise EngineUnreachable("No connection to the engine could be made.")
        if steps == ["hang"]:
            await asyncio.sleep(60)
        self.opened.append(FakeExchange(steps))
        return self.opened[-1]


@dataclass
class FakeClient:
    """Its body comes in pieces; then it takes `takes` pieces of the answer and does what `then` says."""

    body: bytes
    takes: int
    then: str
    parts: list[Mapping[str, Any]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    sent: bool = False

    async def receive(self) -> MutableMapping[str, Any]:
        if not self.sent:
            self.sent = True
            if self.then == "leave in body":
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": self.body, "more_body": False}
        if self.takes == 0 and self.then == "leave":
            await asyncio.sleep(0.005)
            self.left.set()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if len(self.parts) >= self.takes:
            if self.then == "leave":
                self.left.set()
            if self.then in ("leave", "stop reading"):
                await asyncio.sleep(0 if self.left.is_set() else 60)
                return
        assert not self.complete, "something was sent after the end"
        if self.then == "is slow":
            await asyncio.sleep(0.001)
        self.parts.append(message)

    @property
    def complete(self) -> bool:
        return bool(self.parts) and self.parts[-1].get("more_body") is False

    @property
    def answer(self) -> bytes:
        return b"".join(part.get("body", b"") for part in self.parts)


def served(upstream: FakeUpstream, events: list[Event], on_schema_miss: str) -> Completions:
    registry = fleet("e")
    registry.set_ready("e", True)
    rules = AnswerRules(on_schema_miss=cast(Any, on_schema_miss))
    model = Model("m", Rendered(PROMPTER, FORMATS["plain"], FORMATS["hermes"]), rules, 0)
    services = Services(
        registry=registry,
        upstream=cast(Upstream, upstream),
        bus=Bus([registry.running.apply, events.append]),
        limits=SHORT,
        watchdog=Watchdog(),
        new_call_id=lambda: "call_1",
        retries=RetryBudget(RetryRules(), lambda: 1),
        guides=Guides(["m"], Tuning(), time.monotonic, random.Random(1)),
    )
    return Completions(
        OpenAIChat(),
        {"m": model},
        services=services,
        admission=Admission(registry, QueueRules(2, 0.02), Watchdog()),
        options=ServeOptions(Limits(), 1 << 20, 0.01),
        unix_time=lambda: 0.0,
        new_id=request_ids(),
    )


async def play(app: Completions, client: FakeClient) -> None:
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    async with asyncio.timeout(SLOW_S):
        await app(scope, client.receive, client.send)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


STEPS = ["text", "text", "text", "call", "half", "comment", "stop", "end", "error", "garbage", "stall", "reset", "close", "bug"]
ANSWER = st.one_of(
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=6),
    st.lists(st.sampled_from(["text", "call", "comment"]), max_size=4).map(lambda steps: [*steps, "end"]),
    st.sampled_from([["refuse"], ["unreachable"], ["hang"]]),
)


@dataclass(frozen=True)
class Case:
    """One scenario."""

    scripts: list[list[str]]
    stream: bool = False
    n: int = 1
    tools: bool = False
    retry: str = "count"
    takes: int = 99
    then: str = "read"


CASES = st.builds(
    Case,
    scripts=st.lists(ANSWER, min_size=1, max_size=3),
    stream=st.booleans(),
    n=st.sampled_from([1, 1, 1, 2]),
    tools=st.booleans(),
    retry=st.sampled_from(["count", "retry", "refuse"]),
    takes=st.integers(0, 6),
    then=st.sampled_from(["read", "read", "is slow", "leave", "stop reading", "leave in body"]),
)


@given(CASES)
@example(Case([["text", "end"]], stream=True, takes=2, then="stop reading"))
@example(Case([["text", "end"]], stream=True, takes=0, then="stop reading"))
@example(Case([["text", "stall"]], stream=True, takes=2, then="stop reading"))
@example(Case([["text", "stall"]], takes=0, then="leave"))
@example(Case([["text", "bug"]], stream=True, n=2))
@example(Case([["bug"]], n=2))
@example(Case([["call", "end"], ["text", "end"]], tools=True, retry="retry"))
@example(Case([["call", "stall"], ["stall"]], tools=True, retry="retry", takes=0, then="leave"))
@example(Case([["text", "text", "stop", "text", "end"]], stream=True, then="is slow"))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_outcome_and_nothing_left(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr("gateway.timer.TICK_S", 0.003)
    monkeypatch.setattr("gateway.server.completions.TELL_S", 0.3)
    upstream, events = FakeUpstream(case.scripts), list[Event]()
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": case.n, "stream": case.stream}
    if case.tools:
        body["tools"] = [TOOL]

    async def run() -> FakeClient:
        client = FakeClient(json.dumps(body).encode(), case.takes if case.then in ("leave", "stop reading") else 99, case.then)
        app = served(upstream, events, case.retry)
        await play(app, client)
        assert app.services.registry.view("m").engines[0].running == 0
        return client

    with capture_logs() as logs:
        client = asyncio.run(run())
    finished = check_events(events)
    assert [exchange.ends for exchange in upstream.opened] == [1] * len(upstream.opened)
    check_answer(case, client, finished)
    assert any("exc_info" in record for record in logs) is (finished.reason == "internal")


def check_events(events: list[Event]) -> Finished:
    """The life of one request: one end, and each attempt is closed once."""
    kinds = [type(event) for event in events]
    assert kinds.count(Finished) == 1
    assert kinds[-1] is Finished
    assert kinds.count(Received) <= 1
    finished = events[-1]
    assert isinstance(finished, Finished)
    started = {event.attempt for event in events if isinstance(event, AttemptStarted)}
    closed = [event.attempt for event in events if isinstance(event, AttemptFailed | ClientGone)]
    assert len(closed) == len(set(closed))
    assert set(closed) <= started
    assert len(started) == finished.attempts
    assert kinds.count(FirstToken) <= 1
    return finished


def check_answer(case: Case, client: FakeClient, finished: Finished) -> None:
    """What the client got says the same as the outcome."""
    told = client.complete
    if case.then == "leave in body":
        assert (finished.outcome, finished.status, client.parts) == ("client_gone", 499, [])
    elif finished.outcome == "client_gone":
        assert case.then == "leave"
        assert not told
    elif finished.outcome == "ok":
        if told:
            assert client.parts[0]["status"] == 200
            assert (b"[DONE]" in client.answer) is case.stream
    else:
        assert b"[DONE]" not in client.answer or case.then in ("leave", "stop reading")
        if told:
            assert b'"error"' in client.answer
            assert finished.reason is not None
        else:
            assert case.then in ("leave", "stop reading")


def test_a_failure_of_an_answer_that_was_thrown_away_stays_counted() -> None:
    upstream, events = FakeUpstream([["call", "end"], ["text", "end"]]), list[Event]()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    asyncio.run(play(served(upstream, events, "retry"), FakeClient(json.dumps(body).encode(), 99, "read")))
    finished = check_events(events)
    assert (finished.outcome, finished.attempts, dict(finished.failures)) == ("ok", 2, {"schema_mismatch": 1})


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bug_is_told_as_one_and_logged(n: int, stream: bool) -> None:
    events: list[Event] = []
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": n, "stream": stream}
    client = FakeClient(json.dumps(body).encode(), 99, "read")

    async def run() -> None:
        await play(served(FakeUpstream([["text", "bug"]]), events, "count"), client)

    with capture_logs() as logs:
        asyncio.run(run())
    finished = check_events(events)
    assert (finished.outcome, finished.reason, finished.status) == ("upstream_error", "internal", 200 if stream else 500)
    assert json.loads(client.answer.rpartition(b"data: ")[2])["error"]["code"] == "internal_error"
    assert [record["event"] for record in logs if record.get("exc_info")] == ["request failed"]
