"""What engines tell of their caches, brought to the routers: live where it is whole, else the shadow that routing draws itself.

Each engine that publishes has a thread of its own that reads, decodes and makes keys; the loop is handed what changed, in order,
and never more than a bounded number of pieces at once. Invariant: a router believes an engine's word only between a `trust` that
says so, followed by all that the engine holds, and the next that does not.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Literal, Protocol

import structlog
import zmq

from engines.base import Call
from gateway.apart import apart
from gateway.errors import GatewayError
from gateway.fleet.following import Following
from gateway.fleet.kv_mirror import Mirror, News, Reason
from gateway.fleet.kv_socket import Context, Subscription
from gateway.fleet.kv_source import KvSource
from gateway.fleet.registry import Member, Registry
from gateway.observe.group import Group
from gateway.observe.series import PAIR, Counter, Gauge
from gateway.routing.blocks import Blocks
from gateway.upstream import Upstream
from gateway.wire.kv import BadEvents, KvBatch

_log = structlog.get_logger("interlock.fleet")

State = Literal["off", "live", "shadow"]
"""`off`: its settings name no events. `live`: routing goes by what it tells. `shadow`: by what was sent there."""

_MOST_WAITING = 64  # pieces that wait for the loop
_AT_ONCE = 8  # that it takes before it turns to something else
_LOOK_S, _AGAIN_S, _END_S = 1.0, 5.0, 2.0
_LIMIT_S, _MOST_BYTES = 5.0, 1 << 24


class KvIndex(Protocol):
    """The routers of all models, as told what their engines hold. Keys are those of gateway.routing.chain."""

    @property
    def chunk_tokens(self) -> int:
        """Of a key."""

    def root(self, model: str) -> int:
        """Of a model's keys."""

    def trust(self, model: str, engine: str, live: bool, block_tokens: int) -> None:
        """Whether the engine's word counts from now on: what follows is all that it holds. See Router."""

    def stored(self, model: str, engine: str, after: int | None, keys: tuple[int, ...]) -> None:
        """It holds these, which go on from each other, and from `after`, which was told before; None: from the root."""

    def removed(self, model: str, engine: str, keys: tuple[int, ...]) -> None:
        """It holds none of these."""

    def cleared(self, model: str, engine: str) -> None:
        """It holds nothing."""

    def agrees(self, model: str, engine: str) -> bool:
        """False: it told of nothing in prompts that it answered."""


class KvEvents:
    """Follows the engines of a registry that tell what they hold, those that come later too, until its task is cancelled."""

    def __init__(self, registry: Registry, upstream: Upstream, index: KvIndex) -> None:
        self._registry = registry
        self._upstream = upstream
        self._index = index
        self._book = _Book()

    async def run(self) -> None:
        """For ever."""
        context: Context = zmq.Context()
        ending: set[Subscription] = set()
        try:
            feed = partial(self._feed, context, ending)
            await Following(self._registry, feed, lambda member: member.kv_events).run()
        finally:
            left = list(ending)
            if all(await asyncio.shield(apart(lambda: [each.join(_END_S) for each in left]))):
                context.term()

    def state(self, model: str, engine: str) -> tuple[State, Reason]:
        """How one engine's word counts."""
        return self._book.state_of((model, engine))

    def states(self) -> Mapping[tuple[str, str], tuple[State, Reason]]:
        """How each engine's word counts, by model and engine."""
        members = self._registry.members.values()
        return {(each.model, each.id): self._book.state_of((each.model, each.id)) for each in members}

    def metrics(self) -> Group:
        """Which engines with such events are live, and what was counted of them."""
        live = Gauge(
            "interlock_engine_kv_events_live",
            "1: routing goes by what the engine tells of its cache. 0: by what was sent there.",
            PAIR,
            lambda: [(pair, float(state == "live")) for pair, (state, _) in self.states().items() if state != "off"],
        )
        return Group("Events of engines' caches", (live, self._book.events, self._book.gaps))

    def _feed(self, context: Context, ending: "set[Subscription]", member: Member) -> Coroutine[None, None, None] | None:
        source, reader = member.kv_events, member.engine.kv_reader()
        if source is None or reader is None:
            return None
        feed = _Feed(
            member,
            source,
            registry=self._registry,
            upstream=self._upstream,
            index=self._index,
            book=self._book,
            context=context,
            ending=ending,
        )
        return feed.run()


class _Book:
    """The state of each engine that is followed, and what was counted of it."""

    def __init__(self) -> None:
        self.events = Counter("interlock_kv_events_total", "Events of engines' caches, by kind.", (*PAIR, "kind"))
        self.gaps = Counter("interlock_kv_event_gaps_total", "How often such events were missed.", PAIR)
        self._states: dict[tuple[str, str], tuple[State, Reason]] = {}

    def state_of(self, pair: tuple[str, str]) -> tuple[State, Reason]:
        """Of one engine."""
        return self._states.get(pair, ("off", ""))

    def set(self, member: Member, state: State, reason: Reason) -> None:
        """Records it, and tells it where it is new."""
        pair = (member.model, member.id)
        if self._states.get(pair) == (state, reason):
            return
        self._states[pair] = (state, reason)
        self.gaps.start([pair])
        if state == "live":
            _log.info("the engine tells what its cache holds", engine=member.id, model=member.model)
        elif reason != "starting":
            _log.warning("what the engine tells of its cache is not used", engine=member.id, model=member.model, why=reason)

    def count(self, member: Member, news: News) -> None:
        """Adds what was counted."""
        pair = (member.model, member.id)
        for kind, count in news.kinds.items():
            self.events.add((*pair, kind), count)
        if news.gaps:
            self.gaps.add(pair, news.gaps)

    def drop(self, member: Member) -> None:
        """It is not followed any more."""
        pair = (member.model, member.id)
        self._states.pop(pair, None)
        self.events.drop(lambda labels: labels[:2] == pair)
        self.gaps.drop(lambda labels: labels == pair)


class _Line:
    """The way from a thread to the loop: a bounded number of pieces, in order."""

    def __init__(self, take: Callable[[News], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._waiting: deque[News] = deque()
        self._closed = False
        self._more = False  # whether the loop comes back by itself

    def say(self, news: list[News]) -> bool:
        """On the thread. False: the loop is behind, and is told that instead. All that an engine holds is always taken."""
        full = len(self._waiting) >= _MOST_WAITING and not (news and news[0].reason == "")
        self._waiting.extend([News("behind")] if full else news)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._arrive)
        return not full

    def idle(self) -> bool:
        """Whether the loop has taken all."""
        return not self._waiting

    def close(self) -> None:
        """Nothing more is taken."""
        self._closed = True

    def _arrive(self) -> None:
        if not self._more:
            self._some()

    def _some(self) -> None:
        self._more = False
        for _ in range(_AT_ONCE):
            if self._closed or not self._waiting:
                return
            self._take(self._waiting.popleft())
        self._more = True
        self._loop.call_soon(self._some)


class _Feed:
    """One engine's."""

    def __init__(
        self,
        member: Member,
        source: KvSource,
        *,
        registry: Registry,
        upstream: Upstream,
        index: KvIndex,
        book: _Book,
        context: Context,
        ending: "set[Subscription]",
    ) -> None:
        self._member = member
        self._source = source
        self._registry = registry
        self._upstream = upstream
        self._index = index
        self._book = book
        self._context = context
        self._ending = ending
        self._live = False
        self._disputed: int | None = None  # the life in which its word was found wrong
        self._life = 0  # of its events
        self._lives = 0  # of the engine, as last seen: see Registry

    async def run(self) -> None:
        """While the engine can serve, again each time it comes back."""
        engine, away = self._member.id, False
        self._shadow("starting")
        try:
            while True:
                if not self._registry.is_ready(engine):
                    await self._registry.changed()
                    continue
                losses, self._lives = self._registry.losses(engine), self._registry.life(engine)
                if away:
                    self._index.cleared(self._member.model, engine)
                    self._disputed = None
                    self._shadow("starting")
                await (self._asked(losses) if self._source.way == "poll" else self._subscribed(losses))
                if not self._same(losses):
                    away = True
                    self._shadow("starting" if self._there(losses) else "unreachable")
        finally:
            self._live = False
            self._index.trust(self._member.model, engine, False, 0)
            self._book.drop(self._member)

    def _same(self, losses: int) -> bool:
        """Whether it has been there all the time, and is the process that it was, as far as anything beside its events tells."""
        return self._there(losses) and self._registry.life(self._member.id) == self._lives

    def _there(self, losses: int) -> bool:
        return self._registry.is_ready(self._member.id) and self._registry.losses(self._member.id) == losses

    def _mirror(self) -> Mirror:
        reader = self._member.engine.kv_reader()
        if reader is None:
            raise TypeError("an engine that tells nothing is not followed")
        # The loop waits for what a thread computes, up to 5 ms at a time, unless that gives way by itself.
        give_way = partial(time.sleep, 0)
        root, chunk_tokens = self._index.root(self._member.model), self._index.chunk_tokens
        blocks = Blocks(root, chunk_tokens, self._member.engine_model, breathe=give_way)
        return Mirror(reader, blocks, self._member.rank)

    async def _subscribed(self, losses: int) -> None:
        """Follows what it publishes until it is gone, or the endpoint cannot be used."""
        source, member, line = self._source, self._member, _Line(self._take)
        host = member.root.host or ""
        follow = Subscription(
            self._context,
            self._mirror(),
            source.live_at(host, member.rank),
            source.replay_at(host, member.rank),
            topic=source.topic,
            bind=source.bind,
            say=line.say,
            idle=line.idle,
        )
        self._ending -= {each for each in self._ending if each.ended}
        self._ending.add(follow)
        follow.start()
        try:
            while self._same(losses) and not (follow.ended and line.idle()):
                await self._rest(_LOOK_S)
                self._check()
        finally:
            line.close()
            follow.stop()
        if self._same(losses):
            await self._rest(_AGAIN_S)

    async def _asked(self, losses: int) -> None:
        """Asks it until it is gone."""
        poll = _Poll(self._member, self._mirror(), self._upstream)
        while self._same(losses):
            for news in await poll.once():
                self._take(news)
            self._check()
            await self._rest(self._source.poll_s)

    async def _rest(self, for_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._registry.changed()

    def _take(self, news: News) -> None:
        """What the engine told, on the loop."""
        member, index = self._member, self._index
        self._book.count(member, news)
        if news.restarts:
            self._registry.restarted(member.id, self._lives, "its events have begun anew")
            self._lives = self._registry.life(member.id)
        self._life = news.life or self._life
        if news.reason:
            self._shadow(news.reason)
        elif news.reason == "" and news.life != self._disputed:
            self._live = True
            index.trust(member.model, member.id, True, news.block_tokens)
            self._book.set(member, "live", "")
        if not self._live:
            return
        if news.changes.cleared:
            index.cleared(member.model, member.id)
        if news.changes.removed:
            index.removed(member.model, member.id, news.changes.removed)
        for after, keys in news.changes.stored:
            index.stored(member.model, member.id, after, keys)
        self._check()

    def _check(self) -> None:
        """Whether its word was found wrong: it is not believed again until it has started anew."""
        if self._live and not self._index.agrees(self._member.model, self._member.id):
            self._disputed = self._life
            self._shadow("parity")

    def _shadow(self, reason: Reason) -> None:
        if self._live:
            self._live = False
            self._index.trust(self._member.model, self._member.id, False, 0)
        self._book.set(self._member, "shadow", reason)


class _Poll:
    """An engine that tells what is new when it is asked, once: nobody else may ask it."""

    def __init__(self, member: Member, mirror: Mirror, upstream: Upstream) -> None:
        self._member = member
        self._mirror = mirror
        self._upstream = upstream

    async def once(self) -> list[News]:
        """Asks it."""
        member, path = self._member, self._member.engine.kv_path or ""
        try:
            status, body = await self._upstream.post(
                member.url(path), Call(path, b""), api_key=member.api_key, limit_s=_LIMIT_S, max_bytes=_MOST_BYTES + 1
            )
        except GatewayError:  # what it told then, if it did, is lost: the next number tells
            return []
        return await apart(partial(self._read, status, body))

    def _read(self, status: int, body: bytes) -> list[News]:
        """On a thread."""
        mirror = self._mirror
        if status != 200:
            mirror.fail("refused")
            mirror.expected = None
            return mirror.news()
        try:
            for batch in mirror.reader.batches(body):
                self._follow(batch)
        except BadEvents:
            mirror.fail("unreadable")
        return mirror.news()

    def _follow(self, batch: KvBatch) -> None:
        mirror, first, last = self._mirror, batch.first or 0, batch.last or 0
        if mirror.expected is not None and first < mirror.expected:
            mirror.another()
        elif first == 0:
            mirror.begin()
        if first != (mirror.expected or 0):
            if mirror.expected:
                mirror.count_gap()
            mirror.fail("gap" if mirror.expected else "history")
        mirror.read(batch)
        mirror.skip_to(last + 1)
