"""Which engines there are, whether they can serve, and what runs on them. The only place that changes any of it.

Readers get frozen snapshots. Running work is a reducer of the event stream, so that it cannot drift from what requests say of
themselves; health comes from probes and from traffic, and a connection that is refused or breaks counts at once.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from yarl import URL

from engines.base import Engine, EngineInfo
from gateway.routing.inflight import InFlight
from gateway.routing.view import EngineView, FleetView

Problem = Literal[
    "not_probed",
    "unreachable",
    "unhealthy",
    "tokenizer_mismatch",
    "tokenizer_unknown",
    "probe_failed",
]
"""Why an engine is out of service. `unhealthy`: it answers, but does not say that it can serve. `tokenizer_mismatch`: its ids are
not the model's. `tokenizer_unknown`: it did not give its ids."""


@dataclass(frozen=True, slots=True)
class Member:
    """An engine as wired: how it is spoken to, where it is, and which model of ours it serves.

    `engine_model` is the name that the engine knows, None for its only one. The key is never shown.
    """

    id: str
    model: str
    engine: Engine
    root: URL
    engine_model: str | None = None
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Member({self.id!r}, {self.engine.kind!r})"

    def url(self, path: str) -> URL:
        """A path below the engine's root."""
        return self.root.with_path(self.root.path.rstrip("/") + path)


class Registry:
    """All engines, by id. `running` is an observer of the bus: attempts are counted by what they say of themselves."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members: Mapping[str, Member] = {member.id: member for member in members}
        self._problems: dict[str, Problem | None] = dict.fromkeys(self.members, "not_probed")
        self._losses = dict.fromkeys(self.members, 0)
        self._info = dict.fromkeys(self.members, EngineInfo())
        self.running = InFlight()
        self._changed = asyncio.Event()

    def set_ready(self, engine_id: str, ready: bool, problem: Problem = "unreachable") -> None:
        """Records an engine's health, and what is wrong where it is not ready. Wakes those who wait where it was ready and is
        not, or is now."""
        changed = self.is_ready(engine_id) != ready
        self._problems[engine_id] = None if ready else problem
        if changed:
            self._changed.set()
            self._changed = asyncio.Event()

    def lost(self, engine_id: str) -> None:
        """Records that traffic found an engine gone, or that it broke off an answer. It may have been restarted with another
        model: it is out until it was asked."""
        self._losses[engine_id] += 1
        self.set_ready(engine_id, False)

    def losses(self, engine_id: str) -> int:
        """How often that was. What an engine was asked before the last time, it may have answered as another."""
        return self._losses[engine_id]

    def is_ready(self, engine_id: str) -> bool:
        """Whether this engine can serve, as far as is known."""
        return self._problems[engine_id] is None

    def problem(self, engine_id: str) -> Problem | None:
        """Why this engine cannot serve; None where it can."""
        return self._problems[engine_id]

    def mismatched(self, engine_id: str) -> bool:
        """Whether this engine is out of service for another tokenizer than its model's."""
        return self._problems[engine_id] == "tokenizer_mismatch"

    def set_info(self, engine_id: str, info: EngineInfo) -> None:
        """Records what an engine says of itself."""
        self._info[engine_id] = info

    def info(self, engine_id: str) -> EngineInfo:
        """What an engine last said of itself."""
        return self._info[engine_id]

    def view(self, model: str) -> FleetView:
        """The engines of one model, as they are now."""
        return FleetView(
            tuple(
                EngineView(
                    member.id,
                    self.is_ready(member.id),
                    self.running.count(member.model, member.id),
                    self._info[member.id].context_tokens,
                )
                for member in self.members.values()
                if member.model == model
            )
        )

    async def changed(self) -> None:
        """Returns when the health of any engine changes after this call."""
        await self._changed.wait()
