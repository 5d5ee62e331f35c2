"""Asks each engine whether it can serve, and what it is. A failed probe takes an engine out, the next good one puts it back."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from engines.base import EngineInfo
from gateway.errors import GatewayError
from gateway.fleet.registry import Member, Registry
from gateway.upstream import Upstream

_log = structlog.get_logger("interlock.fleet")


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """How often a ready engine is asked, how often one that is not, and how long it may take to answer (seconds)."""

    ready_s: float = 2.0
    down_s: float = 0.25
    limit_s: float = 5.0


class Prober:
    """Probes the engines of a registry until its task is cancelled.

    `on_info` is told what an engine is, at first and when that changes.
    """

    def __init__(
        self,
        registry: Registry,
        upstream: Upstream,
        on_info: Callable[[Member, EngineInfo], None],
        times: ProbeTimes | None = None,
    ) -> None:
        self._registry = registry
        self._upstream = upstream
        self._on_info = on_info
        self._times = times or ProbeTimes()
        self._known: set[str] = set()  # engines that have said what they are
        self._told: set[str] = set()  # engines that were heard of: one that was never ready is told of once

    async def run(self) -> None:
        """Probes for ever, each engine at its own pace."""
        async with asyncio.TaskGroup() as group:
            for member in self._registry.members.values():
                group.create_task(self._watch(member))

    async def _watch(self, member: Member) -> None:
        while True:
            await self._rest(member, await self.probe(member))

    async def _rest(self, member: Member, ready: bool) -> None:
        """Waits for the next probe, but no longer than until traffic finds the engine gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.ready_s if ready else self._times.down_s):
                while self._registry.is_ready(member.id) == ready:
                    await self._registry.changed()

    async def probe(self, member: Member) -> bool:
        """Asks one engine once, and records the answer."""
        try:
            status, body = await self._get(member, member.engine.health_path)
            failure = None if status == 200 else f"status {status}"
            if failure is None:
                await self._identify(member, body)
        except GatewayError as error:
            failure = error.message
        except Exception:  # a bug of ours in one probe must not end the probing of all engines
            _log.exception("probe failed", engine=member.id)
            failure = "the probe failed"
        changed = self._registry.set_ready(member.id, failure is None)
        if failure is None and changed:
            _log.info("engine ready", engine=member.id)
        elif failure is not None and (changed or member.id not in self._told):
            _log.warning("engine not ready", engine=member.id, why=failure)
        self._told.add(member.id)
        return failure is None

    async def _identify(self, member: Member, health: bytes) -> None:
        """Reads what the engine is, each time: one that was restarted between two probes may be another."""
        bodies = []
        for path in member.engine.info_paths:
            status, body = (200, health) if path == member.engine.health_path else await self._get(member, path)
            bodies.append(body if status == 200 else b"")
        info = member.engine.info(bodies)
        if info != self._registry.info(member.id) or member.id not in self._known:
            self._registry.set_info(member.id, info)
            self._on_info(member, info)
            self._known.add(member.id)

    async def _get(self, member: Member, path: str) -> tuple[int, bytes]:
        return await self._upstream.get(member.url(path), api_key=member.api_key, limit_s=self._times.limit_s)
