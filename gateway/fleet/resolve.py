"""The addresses of host names that stand for several engines, asked for again and again.

Invariant: what was known of a name stays until an answer with at least one address comes: a name server that fails, or that says
there is no such name, takes no engine out.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import structlog

from gateway.fleet.registry import Registry
from gateway.fleet.reload import Troubles

_log = structlog.get_logger("interlock.fleet")

_MOST_ADDRESSES = 1024

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""Gives a host's addresses. Raises OSError."""


@dataclass(frozen=True, slots=True)
class ResolveTimes:
    """How often a name is asked for; how soon again where that failed; how soon at the earliest, where an engine cannot be
    reached; and how long an answer may take (seconds)."""

    every_s: float = 30.0
    retry_s: float = 5.0
    gap_s: float = 1.0
    limit_s: float = 10.0


class Addresses:
    """The addresses of the names that are followed. `on_change` is called where those of one are others."""

    def __init__(
        self, registry: Registry, resolver: Resolver, times: ResolveTimes, troubles: Troubles, on_change: Callable[[], None]
    ) -> None:
        self._registry = registry
        self._resolver = resolver
        self._times = times
        self._troubles = troubles
        self._on_change = on_change
        self._known: dict[str, tuple[str, ...]] = {}
        self._wanted: frozenset[str] = frozenset()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()

    def of(self, host: str) -> tuple[str, ...]:
        """What is known of a name: none until its first answer."""
        return self._known.get(host, ())

    def follow(self, hosts: Collection[str]) -> None:
        """The names to follow from now on."""
        self._wanted = frozenset(hosts)
        self._news.set()

    async def run(self) -> None:
        """Follows names for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                for host in self._tasks.keys() - self._wanted:
                    self._tasks.pop(host).cancel()
                    self._known.pop(host, None)
                    self._troubles.over("dns", host)
                for host in self._wanted - self._tasks.keys():
                    self._tasks[host] = group.create_task(self._follow(host))
                self._news.clear()
                await self._news.wait()

    async def _follow(self, host: str) -> None:
        while True:
            answered = await self._ask(host)
            out = self._unreachable(host)
            asked_s = asyncio.get_running_loop().time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._times.every_s if answered else min(self._times.retry_s, self._times.every_s)):
                    while not (now := self._unreachable(host)) - out:
                        out &= now
                        await self._registry.changed()
            await asyncio.sleep(asked_s + self._times.gap_s - asyncio.get_running_loop().time())

    def _unreachable(self, host: str) -> set[str]:
        """The name's engines that no connection could be made to."""
        addresses, registry = self.of(host), self._registry
        here = [each.id for each in registry.members.values() if each.root.host in addresses]
        return {engine_id for engine_id in here if registry.problem(engine_id) == "unreachable"}

    async def _ask(self, host: str) -> bool:
        """Asks once; whether there was an answer to use."""
        try:
            async with asyncio.timeout(self._times.limit_s):
                found = await self._resolver(host)
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            self._failed(host, getattr(error, "strerror", None) or str(error) or "no answer in time")
            return False
        addresses = _of_one_family(found)[:_MOST_ADDRESSES]
        if not addresses:
            self._failed(host, "no address")
            return False
        self._troubles.over("dns", host)
        if addresses != self._known.get(host):
            self._known[host] = addresses
            _log.info("a name's addresses are known", host=host, addresses=list(addresses))
            self._on_change()
        return True

    def _failed(self, host: str, why: str) -> None:
        if self._troubles.begin("dns", host, (why,)):
            _log.warning("a name is not resolved: what was known of it stays", host=host, why=why, known=list(self.of(host)))


def _of_one_family(found: Sequence[str]) -> tuple[str, ...]:
    """The IPv4 addresses, else those of IPv6: a process that has one of each is no two engines."""
    usable = sorted({each for each in found if _is_address(each)})
    first = [each for each in usable if ip_address(each).version == 4]
    return tuple(first or usable)


def _is_address(text: str) -> bool:
    """Whether a URL can have it: a link-local address with its interface cannot stand in one."""
    try:
        return "%" not in str(ip_address(text))
    except ValueError:
        return False
