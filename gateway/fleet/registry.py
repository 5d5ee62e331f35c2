"""Which engines there are, whether they can serve, and what runs on them. The only place that changes any of it.

Readers get frozen snapshots. Running work is a reducer of the event stream, so that it cannot drift from what requests say of
themselves; health comes from probes and from traffic, and a connection that is refused or breaks counts at once.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import structlog
from yarl import URL

from engines.base import Engine, EngineInfo, EngineLoad
from gateway.fleet.kv_source import KvSource
from gateway.fleet.standing import Problem, Standing, StandingRules
from gateway.fleet.visit import Visit
from gateway.observe.redact import Redactor
from gateway.routing.breaker import BreakerState
from gateway.routing.inflight import InFlight
from gateway.routing.view import FleetView

_log = structlog.get_logger("interlock.fleet")

_TOLD_EVERY_S = 60.0
_MOST_GONE = 1024  # engines that were drained and are not there now


@dataclass(frozen=True, slots=True)
class Member:
    """An engine as wired: how it is spoken to, where it is, and which model of ours it serves.

    `engine_model` is the name that the engine knows, None for its only one. `rank` is that of a data-parallel engine that shares
    its address with others. `weights` is the operator's word for what it serves: engines with the same one answer alike.
    `most_running` bounds the attempts of ours on it. `kv_events` is where it tells what its cache holds. `gpus` are
    those that it runs on, as their exporter names them. The key is never shown.
    """

    id: str
    model: str
    engine: Engine
    root: URL
    engine_model: str | None = None
    api_key: str | None = None
    rank: int | None = None
    weights: str | None = None
    most_running: int | None = None
    kv_events: KvSource | None = None
    gpus: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Member({self.id!r}, {self.engine.kind!r})"

    @property
    def place(self) -> tuple[object, ...]:
        """What makes it this very engine: where that changes, nothing that was known of it holds."""
        return self.model, self.engine.kind, self.root, self.engine_model, self.rank

    def url(self, path: str) -> URL:
        """A path below the engine's root, with its query."""
        path, _, query = path.partition("?")
        return self.root.with_path(self.root.path.rstrip("/") + path).with_query(query or None)


class Registry:
    """All engines, by id. `running` is an observer of the bus: attempts are counted by what they say of themselves."""

    def __init__(
        self,
        members: Iterable[Member],
        rules: StandingRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules or StandingRules()
        self._clock = clock
        self._members: dict[str, Member] = {}
        self._standings: dict[str, Standing] = {}
        self._drained: dict[str, None] = {}
        self._past_life = 0  # the largest of engines that were removed: who comes back is another
        self._changed = asyncio.Event()
        self.running = InFlight()
        for member in members:
            self._enter(member)

    @property
    def members(self) -> Mapping[str, Member]:
        """Every engine, in the order in which they came or were arranged."""
        return MappingProxyType(self._members)

    def add(self, member: Member) -> None:
        """A new engine, which is out until it was probed; or what is new of one that is here, or on its way out. One that is
        elsewhere now, or another, is a new one under an old name, of which its operator's wish holds: what runs on the old goes
        on."""
        known = self._members.get(member.id)
        if known is None or known.place != member.place:
            before = self._standings.get(member.id)
            self._enter(member)
            after = self._standings[member.id]  # what was asked before, and is known, is not of this one
            after.losses = (before.losses if before else 0) + 1
            after.restarts = before.restarts if before else 0
            after.life = max(self._past_life, before.life if before else 0) + 1
        else:
            self._members[member.id] = member
            self._standings[member.id].leaving = False
        self._wake()

    def arrange(self, ids: Iterable[str]) -> None:
        """Puts these engines into this order, before all others."""
        order = [each for each in dict.fromkeys(ids) if each in self._members]
        self._members = {each: self._members[each] for each in dict.fromkeys((*order, *self._members))}

    def leave(self, engine_id: str) -> None:
        """The engine gets no new requests, as it will be removed. Raises KeyError."""
        self._standings[engine_id].leaving = True
        self._wake()

    def remove(self, engine_id: str) -> None:
        """Forgets an engine. What runs on it goes on."""
        self._past_life = max(self._past_life, self._standings[engine_id].life)
        del self._members[engine_id], self._standings[engine_id]
        self._wake()

    def _enter(self, member: Member) -> None:
        self._members[member.id] = member
        self._standings[member.id] = standing = Standing(self._rules)
        standing.draining = member.id in self._drained
        self.running.moved(member.model, member.id)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def set_ready(self, engine_id: str, ready: bool, problem: Problem = "unreachable") -> None:
        """Records what a probe found, and what is wrong where the engine is not ready. Wakes who waits where that changed."""
        standing = self._standings.get(engine_id)
        if standing is None:  # it was removed while it was asked
            return
        was_ready, was_down = standing.ready, standing.down
        standing.probed(self._clock(), None if ready else problem)
        if (was_ready, was_down) != (ready, standing.down):
            self._wake()

    def give_up(self, engine_id: str, silent_s: float) -> None:
        """Probes found an engine gone: those that wait for it are told, but where it generated for anyone in so many seconds."""
        standing = self._standings.get(engine_id)
        if standing is None or self.heard_since(engine_id, self._clock() - silent_s):
            return
        for give_up in list(standing.visitors):
            give_up(silent_s)

    def drain(self, engine_id: str, on: bool) -> None:
        """Whether the engine gets no new requests, by its operator's wish, which is known when the engine was away, too. Raises
        KeyError."""
        self._standings[engine_id].draining = on
        self._drained.pop(engine_id, None)
        if on:
            self._drained[engine_id] = None
            gone = [each for each in self._drained if each not in self._members]
            for each in gone[: max(len(gone) - _MOST_GONE, 0)]:
                del self._drained[each]
        self._wake()

    # What traffic says

    def visit(self, engine_id: str, give_up: Callable[[float], None] | None = None) -> Visit:
        """An attempt goes there now; `give_up` as for `Visit`. Raises KeyError."""
        standing, member = self._standings[engine_id], self._members[engine_id]
        return Visit(standing, self._clock, lambda: self._lost(standing, member), give_up)

    def _lost(self, standing: Standing, member: Member) -> None:
        """Traffic found an engine gone, or it broke off an answer. It may have been restarted with another model: it is out until
        it was asked. The other ranks at its address are of the same server, so that no second try goes there."""
        ranks = [each for each in self._members.values() if member.rank is not None and each.root == member.root]
        found = {id(each): each for each in (standing, *(self._standings[each.id] for each in ranks if each.rank is not None))}
        were_ready = any(each.ready for each in found.values())
        for each in found.values():
            each.lost(self._clock())
        if were_ready:
            self._wake()

    def restarted(self, engine_id: str, life: int, sign: str) -> None:
        """It was noticed that an engine is another process than it was in this life of its, while it serves; nothing where that
        is known."""
        standing = self._standings.get(engine_id)
        if standing is not None and standing.life == life:
            standing.restarted()
            self._anew(engine_id, standing, sign)

    def _anew(self, engine_id: str, standing: Standing, sign: str) -> None:
        now_s = self._clock()
        if now_s < standing.told_s + _TOLD_EVERY_S:  # two processes behind one address look like that all the time
            return
        standing.told_s = now_s
        _log.warning("the engine was restarted: what was believed of its cache is dropped", engine=engine_id, sign=sign)

    # What is known

    def life(self, engine_id: str) -> int:
        """Another number when the engine may be another process, whose cache is empty; 0 of one that is not there."""
        standing = self._standings.get(engine_id)
        return standing.life if standing is not None else 0

    def losses(self, engine_id: str) -> int:
        """How often that was. What an engine was asked before the last time, it may have answered as another."""
        standing = self._standings.get(engine_id)
        return standing.losses if standing is not None else 0

    def is_ready(self, engine_id: str) -> bool:
        """Whether this engine can serve, as far as is known."""
        standing = self._standings.get(engine_id)
        return standing is not None and standing.ready

    def standing(self, engine_id: str) -> Standing:
        """All that is known of an engine. Raises KeyError."""
        return self._standings[engine_id]

    def down(self, model: str) -> bool:
        """Whether it is known that no engine of this model can be given a request."""
        return all(self._standings[member.id].down for member in self._members.values() if member.model == model)

    def problem(self, engine_id: str) -> Problem | None:
        """Why this engine cannot serve; None where it can."""
        return self._standings[engine_id].problem

    def mismatched(self, engine_id: str) -> bool:
        """Whether this engine is out of service for another tokenizer than its model's."""
        standing = self._standings.get(engine_id)
        return standing is not None and standing.problem == "tokenizer_mismatch"

    def heard_since(self, engine_id: str, since_s: float) -> bool:
        """Whether the engine has generated for anyone since this time."""
        standing = self._standings.get(engine_id)
        return standing is not None and standing.heard_s is not None and standing.heard_s >= since_s

    def breaker_state(self, engine_id: str) -> BreakerState:
        """What the engine's breaker is now; closed for one that is not there."""
        standing = self._standings.get(engine_id)
        return standing.breaker.state(self._clock()) if standing is not None else "closed"

    def now_s(self) -> float:
        """The time of what is recorded here."""
        return self._clock()

    def set_info(self, engine_id: str, info: EngineInfo) -> EngineInfo | None:
        """Records what an engine says of itself, but for its key, should it say that. What was recorded; None of one that was
        removed while it was asked."""
        standing = self._standings.get(engine_id)
        if standing is None:
            return None
        if key := self._members[engine_id].api_key:
            redact = Redactor([key]).text
            info = replace(info, version=info.version and redact(info.version), model=info.model and redact(info.model))
        if standing.set_info(info):
            self._anew(engine_id, standing, "it says that it is another")
        return info

    def info(self, engine_id: str) -> EngineInfo:
        """What an engine last said of itself."""
        return self._standings[engine_id].info

    def set_load(self, engine_id: str, load: EngineLoad) -> None:
        """Records what an engine says of its load."""
        standing = self._standings.get(engine_id)
        if standing is not None and standing.set_load(self._clock(), load):
            self._anew(engine_id, standing, "it has begun to count anew")

    def weights(self, engine_id: str) -> str:
        """Engines with the same word answer alike: the operator's, else the kind and what the engine calls its model. One of
        which neither says anything is like no other."""
        member = self._members[engine_id]
        ids = "ids" if member.engine.traits.streams_ids else "text"
        if member.weights is not None:
            return f"{ids}:{member.weights}"
        called = self._standings[engine_id].info.model or member.engine_model
        return f"{ids}:{member.engine.kind}:{called}" if called is not None else f"{ids}:only:{engine_id}"

    def view(self, model: str) -> FleetView:
        """The engines of one model, as they are now."""
        now_s = self._clock()
        return FleetView(
            tuple(
                self._standings[member.id].view(
                    member.id,
                    now_s,
                    self.running.count(member.model, member.id),
                    weights=self.weights(member.id),
                    most_running=member.most_running,
                )
                for member in self._members.values()
                if member.model == model
            )
        )

    async def changed(self) -> None:
        """Returns when the health of any engine, or which there are, changes after this call."""
        await self._changed.wait()
