"""Which engines there shall be, from everything that names some, and the steps from those that there are to those.

The settings, files and names all end here: what they name is laid side by side, compared with the registry, and the difference
is made. Invariant: no engine is dropped while an answer of it runs, but for one that outlasts `linger_s`; and an id is one
engine's at a time, the first to have named it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from gateway.apart import Names
from gateway.fleet.registry import Member, Registry
from gateway.fleet.reload import Troubles
from gateway.fleet.resolve import Addresses, Resolver, ResolveTimes
from gateway.settings import EngineSettings

_log = structlog.get_logger("interlock.fleet")

MOST_ENGINES = 256
"""How many engines of a model files and names may add: what is counted by engine stays bounded, whatever they say."""

_SWEEP_S = 0.1

Wire = Callable[[str, EngineSettings], Member]
"""Makes the member of a model's entry, as if it were one engine at its own URL."""


class Roll(Protocol):
    """Is told which engines there are."""

    def joined(self, model: str, engine: str) -> None:
        """This engine serves this model from now on."""

    def left(self, model: str, engine: str) -> None:
        """It does no longer, and no answer of it runs."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What makes the engines that there are those that there shall be. `removed` are ids."""

    added: tuple[Member, ...] = ()
    changed: tuple[Member, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscoveryRules:
    """How engines are found. `poll_s`: how often files are looked at."""

    resolver: Resolver = field(default_factory=lambda: Names().addresses)
    times: ResolveTimes = field(default_factory=ResolveTimes)
    poll_s: float = 1.0


def reconcile(wanted: Iterable[Member], present: Mapping[str, Member]) -> Changes:
    """The difference; `wanted` has each id once."""
    target = {member.id: member for member in wanted}
    return Changes(
        added=tuple(member for member in target.values() if member.id not in present),
        changed=tuple(member for member in target.values() if present.get(member.id, member) != member),
        removed=tuple(engine_id for engine_id in present if engine_id not in target),
    )


def engines_of(member: Member, ranks: int | None, addresses: Sequence[str] | None) -> Iterator[Member]:
    """The engines that an entry stands for: one at each of the addresses, else at its own URL, and of those each rank."""
    places = [member]
    if addresses is not None:
        places = [replace(member, id=f"{member.id}@{each}", root=member.root.with_host(each)) for each in addresses]
    for place in places:
        if ranks is None:
            yield place
        else:
            yield from (replace(place, id=f"{place.id}.{rank}", rank=rank) for rank in range(ranks))


class Membership:
    """Keeps a registry's engines those that the models' lists name. `linger_s` bounds how long one that leaves may finish what
    runs on it."""

    def __init__(
        self,
        registry: Registry,
        wire: Wire,
        roll: Roll,
        troubles: Troubles,
        *,
        linger_s: float,
        rules: DiscoveryRules | None = None,
    ) -> None:
        rules = rules or DiscoveryRules()
        self._registry = registry
        self._wire = wire
        self._roll = roll
        self._linger_s = linger_s
        self._addresses = Addresses(registry, rules.resolver, rules.times, troubles, self.apply)
        self._listed: dict[str, tuple[EngineSettings, ...]] = {}
        self._filed: dict[str, tuple[EngineSettings, ...]] = {}
        self._leaving: dict[str, float] = {}  # since when
        self._some_leave = asyncio.Event()
        self._refused: frozenset[str] = frozenset()

    def list_engines(self, model: str, engines: tuple[EngineSettings, ...]) -> None:
        """What the settings name for a model. Takes effect with `apply`."""
        self._listed[model] = engines

    def file_engines(self, model: str, engines: tuple[EngineSettings, ...]) -> None:
        """What the model's file names. Takes effect with `apply`."""
        self._filed[model] = engines

    async def run(self) -> None:
        """Follows names, and forgets engines that have left, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._addresses.run())
            group.create_task(self._see_off())

    def apply(self) -> None:
        """Makes the difference."""
        registry = self._registry
        self._addresses.follow(
            {str(self._wire(model, each).root.host) for model, each, _ in self._entries() if each.resolve},
        )
        present = {each.id: each for each in registry.members.values() if each.id not in self._leaving}
        wanted = self._wanted()
        changes = reconcile(wanted, present)
        for member in (*changes.added, *changes.changed):
            old = registry.members.get(member.id)
            self._leaving.pop(member.id, None)
            registry.add(member)
            if old is not None and old.model != member.model:
                self._roll.left(old.model, old.id)
            self._roll.joined(member.model, member.id)
        for engine_id in changes.removed:
            self._leaving[engine_id] = asyncio.get_running_loop().time()
            registry.leave(engine_id)
            self._some_leave.set()
        registry.arrange(each.id for each in wanted)
        for what, ids in (
            ("engines added", [each.id for each in changes.added]),
            ("engines changed", [each.id for each in changes.changed]),
            ("engines leave: they get no new requests, and end those that run", changes.removed),
        ):
            if ids:
                _log.info(what, engines=list(ids))

    def _entries(self) -> Iterator[tuple[str, EngineSettings, bool]]:
        """Model, entry and whether a file has it; the settings' own first."""
        for filed, lists in ((False, self._listed), (True, self._filed)):
            yield from ((model, entry, filed) for model, entries in lists.items() for entry in entries)

    def _wanted(self) -> list[Member]:
        """All engines that are named, each id once, and no more of a model than there may be."""
        wanted: dict[str, Member] = {}
        found: dict[str, int] = {}
        refused: dict[str, str] = {}
        for model, entry, filed in self._entries():
            addresses = self._addresses.of(str(self._wire(model, entry).root.host)) if entry.resolve else None
            for member in engines_of(self._wire(model, entry), entry.ranks, addresses):
                if member.id in wanted:
                    refused[member.id] = f"its id is that of an engine of {wanted[member.id].model}"
                elif (filed or entry.resolve) and found.get(model, 0) >= MOST_ENGINES:
                    refused[member.id] = f"files and names may add {MOST_ENGINES} engines to a model"
                else:
                    wanted[member.id] = member
                    found[model] = found.get(model, 0) + (filed or entry.resolve)
        if news := {engine: why for engine, why in refused.items() if engine not in self._refused}:
            engine, why = next(iter(news.items()))
            _log.error("engines not taken", engine=engine, why=why, count=len(news))
        self._refused = frozenset(refused)
        return list(wanted.values())

    async def _see_off(self) -> None:
        """Forgets each engine that leaves, once nothing runs on it."""
        loop = asyncio.get_running_loop()
        while True:
            await self._some_leave.wait()
            await asyncio.sleep(_SWEEP_S)
            for engine_id, since_s in list(self._leaving.items()):
                member = self._registry.members[engine_id]
                running = self._registry.running.count(member.model, engine_id)
                if running and loop.time() - since_s < self._linger_s:
                    continue
                del self._leaving[engine_id]
                self._registry.remove(engine_id)
                self._roll.left(member.model, engine_id)
                _log.info("engine removed", engine=engine_id, cut=running)
            if not self._leaving:
                self._some_leave.clear()
