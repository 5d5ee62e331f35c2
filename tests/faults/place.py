"""One fault engine, the gateway in front of it, and clients that are counted and searched for secrets."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from faults.client import HTTP_PATH, LIMIT_S, Answer, Manner, chat, connected, misbehave, request
from faults.engine import FaultEngine
from faults.leaks import CANARIES, HEADERS, NoLeaks
from faults.proxy import FaultProxy
from faults.saying import text_of, unbroken
from faults.speech import Kind
from faults.streaming import Seen
from support.gateway import Served

QUICK = {"headers_s": 0.5, "first_token_s": 0.5, "between_tokens_s": 0.5}
PATH = f"{HTTP_PATH}?key={CANARIES['query']}"


@dataclass(slots=True)
class Place:
    """Where a test of one row happens."""

    engine: FaultEngine
    proxy: FaultProxy
    served: Served
    leaks: NoLeaks
    kind: Kind

    async def ask(self, text: str, *, limit_s: float = LIMIT_S, **fields: Any) -> Answer:
        """A request that is read to its end, which must be a whole answer or a marked error."""
        answer = Answer()
        async with asyncio.timeout(limit_s), connected(self.served.url) as client:
            await client.send(self.request(text, **fields))
            await client.read(answer)
        answer.left_s = asyncio.get_running_loop().time()
        self.leaks.shown(bytes(answer.raw))
        answer.check()
        return answer

    def request(self, text: str, **fields: Any) -> bytes:
        """The bytes of a request, which count as sent. Its prompt holds a secret, as do its headers and its query."""
        self.leaks.sent()
        return request(chat(f"{text} {CANARIES['prompt']}", **fields), *HEADERS, path=PATH)

    async def misbehave(self, manner: Manner, text: str, chance: random.Random, **fields: Any) -> Answer:
        """A request in this manner."""
        body = chat(f"{text} {CANARIES['prompt']}", **fields)
        answer = await misbehave(self.served.url, manner, body, *HEADERS, chance=chance)
        self.leaks.sent(answer.asked)
        self.leaks.shown(bytes(answer.raw))
        return answer

    @property
    def last(self) -> Seen:
        """The last request, as the engine saw it."""
        return self.engine.seen[-1]

    @property
    def record(self) -> Mapping[str, object]:
        """The access log's last record."""
        return self.leaks.records[-1]

    def whole(self, answer: Answer) -> bool:
        """Whether it is the engine's unbroken answer."""
        return answer.done and answer.text == self.unbroken()

    def unbroken(self) -> str:
        """What the engine would say to the last request's prompt."""
        return text_of(unbroken(self.last.prompt))

    async def closed(self, seen: Seen | None = None, within_s: float = 5.0) -> float:
        """When the engine saw that the gateway had closed the connection of this request, or of its last."""
        seen = seen or self.last
        async with asyncio.timeout(within_s):
            while seen.closed_s is None:
                await asyncio.sleep(0.005)
        return seen.closed_s

    async def ready(self, within_s: float = 5.0) -> None:
        """Waits until the gateway counts the engine as ready."""
        async with asyncio.timeout(within_s):
            while not self.served.gateway.registry.is_ready("e"):
                await asyncio.sleep(0.005)


@dataclass(slots=True)
class Fleet(Place):
    """The same with several engines, `a`, `b` and on; `engine` and `proxy` are those of `a`."""

    engines: dict[str, FaultEngine]

    @property
    def seen(self) -> list[Seen]:
        """What all engines saw, in the order in which it began."""
        return sorted((seen for engine in self.engines.values() for seen in engine.seen), key=lambda each: each.began_s)

    @property
    def last(self) -> Seen:
        """The last call that any engine saw."""
        return self.seen[-1]

    def unbroken(self) -> str:
        """What any of the engines would say to the prompt of the last request, of which they may have seen several calls."""
        return text_of(unbroken(min(self.since_last(), key=lambda each: len(each.prompt)).prompt))

    def since_last(self) -> list[Seen]:
        """The calls of the last request."""
        return self.seen[self._before :]

    _before: int = 0

    async def ask(self, text: str, *, limit_s: float = LIMIT_S, **fields: Any) -> Answer:
        """As there; one at a time."""
        self._before = len(self.seen)
        return await super(Fleet, self).ask(text, limit_s=limit_s, **fields)

    async def ready(self, within_s: float = 5.0) -> None:
        """Waits until the gateway counts every engine as ready."""
        async with asyncio.timeout(within_s):
            while not all(self.served.gateway.registry.is_ready(name) for name in self.engines):
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def fleet(
    leaks: NoLeaks, kind: Kind, count: int = 2, *, proxied: bool = False, engine: Mapping[str, Any] | None = None, **changed: Any
) -> AsyncIterator[Fleet]:
    """So many engines of this kind and a gateway. `proxied`: the way to `a` goes over the proxy. `engine` has settings of each;
    `changed` as for `settings_for`. Where they say nothing else, requests go to the engine with the fewest, the first of equals,
    so that a test knows which is asked first."""
    changed = {"routing": {"policy": "least_outstanding"}, **changed}
    async with contextlib.AsyncExitStack() as stack:
        names = "abcdefgh"[:count]
        engines = {name: await stack.enter_async_context(FaultEngine(name).working()) for name in names}
        proxy = await stack.enter_async_context(FaultProxy(engines["a"].url).working())
        urls = {name: proxy.url if proxied and name == "a" else each.url for name, each in engines.items()}
        settings = leaks.settings_of(urls, kind, engine or {}, **changed)
        served = await stack.enter_async_context(leaks.serving(settings, *engines.values()))
        found = Fleet(engines["a"], proxy, served, leaks, kind, engines)
        await found.ready()
        yield found


@contextlib.asynccontextmanager
async def placed(leaks: NoLeaks, kind: Kind, *, proxied: bool = False, **changed: Any) -> AsyncIterator[Place]:
    """An engine of this kind and a gateway, watched, with or without a proxy between them. `changed` as for `settings_for`."""
    async with FaultEngine().working() as engine, FaultProxy(engine.url).working() as proxy:
        settings = leaks.settings(proxy.url if proxied else engine.url, kind=kind, **changed)
        async with leaks.serving(settings, engine) as served:
            yield Place(engine, proxy, served, leaks, kind)
