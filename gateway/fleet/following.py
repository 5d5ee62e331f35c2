"""One task for each engine of the fleet, as engines come, change and leave."""

import asyncio
from collections.abc import Callable, Coroutine

from gateway.fleet.registry import Member, Registry


class Following:
    """Does `work` for each engine: anew for one whose place, key or what else `depends` names is another, no more for one that
    left. None: it needs none."""

    def __init__(
        self,
        registry: Registry,
        work: Callable[[Member], Coroutine[None, None, None] | None],
        depends: Callable[[Member], object] = lambda _: None,
    ) -> None:
        self._registry = registry
        self._work = work
        self._depends = depends
        self._followed: dict[str, tuple[Member, asyncio.Task[None] | None]] = {}

    async def run(self) -> None:
        """For ever, each engine at its own pace."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._follow(group)
                await self._registry.changed()

    def _follow(self, group: asyncio.TaskGroup) -> None:
        members = self._registry.members
        for engine_id, (member, task) in list(self._followed.items()):
            now = members.get(engine_id)
            if now is None or self._needs(now) != self._needs(member):
                if task is not None:
                    task.cancel()
                del self._followed[engine_id]
        for engine_id, member in members.items():
            if engine_id not in self._followed:
                work = self._work(member)
                self._followed[engine_id] = (member, group.create_task(work) if work is not None else None)

    def _needs(self, member: Member) -> tuple[object, ...]:
        return member.place, member.api_key, self._depends(member)
