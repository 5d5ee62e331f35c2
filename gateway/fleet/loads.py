"""Asks each ready engine for its load, and now and then for what else it says of itself.

Both are for records and for comparison: what runs on an engine is what the gateway counts itself. Invariant: nothing that an
engine answers here, or does not, takes it out, holds a request or a probe up, or is taken for a figure that it did not say.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

import structlog

from engines.base import MAX_LOAD_BYTES, EngineInfo, EngineLoad
from gateway.errors import GatewayError
from gateway.fleet.following import Following
from gateway.fleet.registry import Member, Registry
from gateway.fleet.standing import LOAD_COUNTS_S
from gateway.upstream import Upstream

_log = structlog.get_logger("interlock.fleet")

_TOLERATED = 0.2  # the share of our requests that may be on their way to an engine, or to their clients
_LACKING = frozenset({404, 405, 501})  # llama.cpp says 501 of what it was not started with
_DRIFTS = (
    "requests that run here for the gateway do not run there for the engine: their clients read slowly, other engines answer at "
    "its address, or the gateway's count is wrong"
)


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """How often a ready engine is asked, how long it may take to answer, how long the gateway's count must stay above its own
    before that is told, and when it is asked again what it did not say (seconds)."""

    every_s: float = 2.0
    limit_s: float = 3.0
    drift_s: float = 30.0
    again_s: float = 30.0


class Loads:
    """Asks the engines of a registry, those that come later too, until its task is cancelled. `on_info` is told what is new of
    what an engine is."""

    def __init__(
        self,
        registry: Registry,
        upstream: Upstream,
        on_info: Callable[[Member, EngineInfo], None] = lambda *_: None,
        times: LoadTimes | None = None,
    ) -> None:
        self._registry = registry
        self._upstream = upstream
        self._on_info = on_info
        self._times = times or LoadTimes()

    async def run(self) -> None:
        """Asks for ever, each engine at its own pace."""
        await Following(self._registry, self._asking).run()

    def _asking(self, member: Member) -> Coroutine[None, None, None] | None:
        """None for an engine that has nothing to say."""
        if not (member.engine.load_paths or member.engine.identity_paths):
            return None
        return _Asking(member, self._registry, self._upstream, self._on_info, self._times).run()


class Drift:
    """Whether the gateway counts more on an engine than the engine does, and for how long."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._since_s: float | None = None
        self._seen_s = 0.0
        self._told = False

    def seen(self, now_s: float, ours: int, theirs: int) -> bool:
        """Two counts at once. True once they have differed for so long, and not again until they have been level."""
        if ours - theirs <= ours * _TOLERATED:
            self._since_s, self._told = None, False
            return False
        if self._since_s is None or now_s - self._seen_s > LOAD_COUNTS_S:  # what was in between is not known
            self._since_s = now_s
        self._seen_s = now_s
        if self._told or now_s - self._since_s < self._for_s:
            return False
        self._told = True
        return True


class _Asking:
    """What one engine is asked."""

    def __init__(
        self,
        member: Member,
        registry: Registry,
        upstream: Upstream,
        on_info: Callable[[Member, EngineInfo], None],
        times: LoadTimes,
    ) -> None:
        self._member = member
        self._registry = registry
        self._upstream = upstream
        self._on_info = on_info
        self._times = times
        self._drift = Drift(times.drift_s)
        self._identity: EngineInfo | None = None  # None where it may be another since
        self._life = 0  # that had it
        self._identify_s = 0.0  # when it is asked again though it may not

    async def run(self) -> None:
        """Asks while the engine is ready."""
        while True:
            if not self._registry.is_ready(self._member.id):
                self._identity = None
                await self._registry.changed()
                continue
            await self._identify()
            await self._load()
            await self._rest()

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.every_s):
                while self._registry.is_ready(self._member.id):
                    await self._registry.changed()

    async def _identify(self) -> None:
        """Asks for what is not asked with every probe, where it is not known of the engine as it is now."""
        engine, engine_id = self._member.engine, self._member.id
        now_s = self._registry.now_s()
        life = self._registry.life(engine_id)
        due = self._identity != self._registry.info(engine_id) or life != self._life or now_s >= self._identify_s
        if not engine.identity_paths or not due:
            return
        answers = [await self._get(path) for path in engine.identity_paths]
        bodies = [body if status == 200 else b"" for status, body in answers]
        if not self._registry.is_ready(engine_id):  # it may be another by now
            return
        before = self._registry.info(engine_id)
        self._life = life
        self._identity = info = engine.identity(bodies, before, self._member.rank)
        self._identify_s = float("inf") if info.kv_tokens is not None else now_s + self._times.again_s
        if info != before and (recorded := self._registry.set_info(engine_id, info)) is not None:
            self._identity = recorded
            self._on_info(self._member, recorded)

    async def _load(self) -> None:
        before = self._ours
        engine = self._member.engine
        beside = (engine.usage_path,) if engine.usage_path is not None else ()
        body, slots = await asyncio.gather(self._first(engine.load_paths), self._first(beside))
        load = engine.load(body, self._member.rank)
        if beside:
            load = replace(load, kv_usage=engine.kv_usage(slots))
        if load == EngineLoad():
            return
        self._registry.set_load(self._member.id, load)
        self._compare(min(before, self._ours), load)

    def _compare(self, ours: int, load: EngineLoad) -> None:
        if load.running is None or load.waiting is None:
            return
        if self._drift.seen(self._registry.now_s(), ours, load.running + load.waiting):
            figures = {"gateway": ours, "running": load.running, "waiting": load.waiting}
            _log.warning("counts of requests differ", engine=self._member.id, for_s=self._times.drift_s, why=_DRIFTS, **figures)

    @property
    def _ours(self) -> int:
        return self._registry.running.count(self._member.model, self._member.id)

    async def _first(self, paths: tuple[str, ...]) -> bytes:
        """The answer to the first of these paths that the engine has; nothing where that fails."""
        for path in paths:
            status, body = await self._get(path)
            if status not in _LACKING:
                return body if status == 200 else b""
        return b""

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Status and body; 0 where none came in time."""
        member = self._member
        try:
            return await self._upstream.get(
                member.url(path), api_key=member.api_key, limit_s=self._times.limit_s, max_bytes=MAX_LOAD_BYTES + 1
            )
        except GatewayError:
            return 0, b""
