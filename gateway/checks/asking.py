"""One request to one engine, as the gateway makes it: for live checks."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from yarl import URL

from engines.base import Engine
from gateway.answer import AnswerRules
from gateway.checks.base import Subject
from gateway.errors import EngineBroke, GatewayError
from gateway.model import Rendered, fitted
from gateway.reading import reader_for, work_for
from gateway.request import (
    ContentText,
    Delta,
    FailureKind,
    Finish,
    FinishReason,
    GenerateRequest,
    ReasoningText,
    ToolCallEnd,
)
from gateway.upstream import Exchange, Upstream
from gateway.wire.sse import SseError, SseReader

ASK_S = 300.0  # one answer
_CONNECT_S = 5.0
_REACH_S = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """A running engine: its adapter, its root, the model's name there, and its key."""

    id: str
    engine: Engine
    root: URL
    model: str | None = None
    api_key: str | None = None

    def url(self, path: str) -> URL:
        """A path below the root."""
        return self.root.with_path(self.root.path.rstrip("/") + path)


@dataclass(frozen=True, slots=True)
class Told:
    """A whole answer: what was read of it, and what it cost."""

    reasoning: str
    content: str
    calls: int
    failures: Counter[FailureKind]
    reason: FinishReason
    tokens: int
    seconds: float


class Asker:
    """Puts requests to the engine, as the gateway does."""

    def __init__(self, upstream: Upstream, target: Target, subject: Subject) -> None:
        self._upstream = upstream
        self.target = target
        self._rendered = Rendered(subject.prompter, subject.format, subject.call_format)

    async def reach(self) -> None:
        """Raises an EngineError where the engine does not say that it can serve."""
        url, key = self.target.url(self.target.engine.health_path), self.target.api_key
        status, _ = await self._upstream.get(url, api_key=key, limit_s=_REACH_S)
        if status != 200:
            raise EngineBroke(f"Its {self.target.engine.health_path} answers {status}.")

    async def ids(self, text: str) -> tuple[int, ...] | None:
        """The engine's own ids of a text; None where it has no way to tell them."""
        call = self.target.engine.tokenize(text, self.target.model)
        if call is None:
            return None
        status, body = await self._upstream.post(
            self.target.url(call.path), call, api_key=self.target.api_key, limit_s=ASK_S, max_bytes=1 << 24
        )
        if status != 200:
            raise self.target.engine.error(status, body).without(self.target.api_key)
        return self.target.engine.token_ids(body)

    async def ask(self, request: GenerateRequest, stop_ids: frozenset[int] | None = None) -> Told:
        """One answer. Raises a GatewayError."""
        prompter, engine = self._rendered.prompter, self.target.engine
        prompt = fitted(prompter.prompt(request), request.max_tokens, prompter.context_tokens)
        if stop_ids is not None:
            prompt = replace(prompt, stop_ids=stop_ids)
        work = work_for(self._rendered, request, prompt, model=self.target.model)
        answer = reader_for(
            self._rendered,
            request,
            prompt,
            rules=AnswerRules(),
            by_ids=engine.traits.streams_ids,
            hold_arguments=True,
            new_call_id=lambda: "call_0",
        )
        call = engine.call(work)
        deltas: list[Delta] = []
        began = time.monotonic()
        async with asyncio.timeout(ASK_S):
            exchange = await self._upstream.open(
                self.target.url(call.path), call, api_key=self.target.api_key, connect_s=_CONNECT_S
            )
            try:
                await self._check(exchange)
                reader, events = engine.reader(work), SseReader()
                while not (reader.done or answer.ended):
                    data = await exchange.read()
                    if not data:
                        raise EngineBroke("The engine's answer ended in the middle.")
                    for event in events.feed(data):
                        if (chunk := reader.chunk(event)) is not None:
                            deltas += answer.read(chunk)
            except SseError as error:
                raise EngineBroke(f"The engine's answer is not a valid event stream: {error}.") from None
            except GatewayError as error:
                raise error.without(self.target.api_key) from None
            finally:
                exchange.close()
        return _told(deltas, answer.tally.failures, answer.tally.tokens, time.monotonic() - began)

    async def _check(self, exchange: Exchange) -> None:
        if exchange.status != 200:
            raise self.target.engine.error(exchange.status, await exchange.read_error())


def _told(deltas: Sequence[Delta], failures: Counter[FailureKind], tokens: int, seconds: float) -> Told:
    return Told(
        reasoning="".join(delta.text for delta in deltas if isinstance(delta, ReasoningText)),
        content="".join(delta.text for delta in deltas if isinstance(delta, ContentText)),
        calls=sum(isinstance(delta, ToolCallEnd) for delta in deltas),
        failures=failures,
        reason=next(delta.reason for delta in deltas if isinstance(delta, Finish)),
        tokens=tokens,
        seconds=seconds,
    )
