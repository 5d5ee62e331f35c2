"""What must be as before once a test of faults is over.

Invariant: a test that uses `no_leaks` fails where a request was not counted once, an attempt still counts as running, is charged
to an engine, waits or has room kept, a task, a descriptor or a connection to an engine is left, an exception was dropped by the
loop, or a planted secret came out.
"""

import asyncio
import contextlib
import gc
import io
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
import structlog
from faults.engine import FaultEngine
from support.gateway import Served, serving, settings_for

from gateway.fleet.discovery import DiscoveryRules
from gateway.observe.logs import configure_logging
from gateway.settings import Settings

SETTLES_S = 1.0
_KEY_VARIABLE = "FAULTS_ENGINE_KEY"
CANARIES: Mapping[str, str] = {
    "engine": "sk-canary-engine-3f9c1d",
    "header": "sk-canary-header-77ab02",
    "cookie": "sk-canary-cookie-c4d5e6",
    "query": "sk-canary-query-9081aa",
    "prompt": "sk-canary-prompt-55fe10",
}
HEADERS = (f"authorization: Bearer {CANARIES['header']}", f"cookie: session={CANARIES['cookie']}")
"""What a client sends that no record may show."""


class NoLeaks:
    """One test's watch. Requests go to gateways of `serving`, and each that a test sends is told with `sent`."""

    def __init__(self) -> None:
        self.requests = 0
        self.records: list[Mapping[str, object]] = []
        self.dropped: list[dict[str, Any]] = []
        self.log = io.StringIO()
        self._shown: list[str] = []  # what reached clients or scrapers
        self._tasks = asyncio.all_tasks()
        self._descriptors = _descriptors()

    def sent(self, count: int = 1) -> None:
        """So many requests to generate had their heads sent whole."""
        self.requests += count

    def shown(self, text: str | bytes) -> None:
        """What came out of the gateway, where no secret may be: a client's answer, or metrics."""
        self._shown.append(text.decode(errors="replace") if isinstance(text, bytes) else text)

    @contextlib.asynccontextmanager
    async def serving(
        self, settings: Settings, *engines: FaultEngine, discovery: DiscoveryRules | None = None
    ) -> AsyncIterator[Served]:
        """A gateway with these engines. Before it goes down, nothing runs in it any more, and each request was counted once."""
        before, records = self.requests, len(self.records)
        environ = {**os.environ, _KEY_VARIABLE: CANARIES["engine"]}
        async with serving(settings, access=self.records.append, environ=environ, discovery=discovery) as served:
            yield served
            await self._counted(served, engines, self.requests - before, records)

    @staticmethod
    def settings(url: str, **changed: Any) -> Settings:
        """Settings of one model on the engine at this address, with a key that must stay inside. `changed` as there."""
        return settings_for(url, engine={"api_key_env": _KEY_VARIABLE}, **changed)

    @staticmethod
    def settings_of(urls: Mapping[str, str], kind: str, engine: Mapping[str, Any], **changed: Any) -> Settings:
        """Settings of one model on the engines at these addresses, by id. `engine` is of each, the rest as `settings`."""
        each = {"kind": kind, "api_key_env": _KEY_VARIABLE, **engine}
        return settings_for("", kind=kind, engines=[{"id": name, "url": url, **each} for name, url in urls.items()], **changed)

    async def _counted(self, served: Served, engines: tuple[FaultEngine, ...], sent: int, records: int) -> None:
        metrics: dict[str, float] = {}

        async def settled() -> bool:
            nonlocal metrics
            metrics = await served.metrics()
            over = len(self.records) - records == sent and not _charged(served)
            return over and not _sum(metrics, "interlock_inflight_requests") and not any(each.running for each in engines)

        await _within(settled)
        assert _sum(metrics, "interlock_inflight_requests") == 0, "attempts still count as running"
        assert _charged(served) == [], "something is still charged"
        assert [each.name for each in engines if each.running or each.waiting] == [], "an engine still works for nobody"
        assert _sum(metrics, "interlock_requests_total") == sent, (
            f"{_sum(metrics, 'interlock_requests_total')} outcomes of {sent}"
        )
        ids = [record["request_id"] for record in self.records[records:]]
        assert len(ids) == len(set(ids)) == sent, f"{len(ids)} access records of {sent} requests"
        self.shown((await served.client.get(f"{served.admin_url}/metrics")).text)

    async def check(self) -> None:
        """Everything of the test is closed by now."""

        async def settled() -> bool:
            return not self._left_tasks() and not self._left_descriptors()

        await _within(settled)
        gc.collect()  # an exception that nobody asked for is told of when its task goes
        await asyncio.sleep(0)
        assert self._left_tasks() == [], "tasks are left"
        assert self._left_descriptors() == [], "descriptors are left"
        assert [context["message"] for context in self.dropped] == [], self.dropped
        for where, text in (("the log", self.log.getvalue()), ("the access log", str(self.records)), *self._outputs()):
            assert [name for name, canary in CANARIES.items() if canary in text] == [], f"a secret is in {where}"

    def _outputs(self) -> Iterator[tuple[str, str]]:
        yield from (("an answer or the metrics", text) for text in self._shown)

    def _left_tasks(self) -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() - self._tasks - {asyncio.current_task()} if not task.done()]

    def _left_descriptors(self) -> list[str]:
        return [f"{number}: {what}" for number, what in _descriptors().items() if self._descriptors.get(number) != what]


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[NoLeaks]:
    """The watch of one test, which fails at the end where something is left."""
    watch = NoLeaks()
    loop = asyncio.get_running_loop()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    loop.set_exception_handler(lambda _, context: watch.dropped.append(context))
    configure_logging(watch.log, "debug", [CANARIES["engine"]])  # as the command does: it knows no client's key
    try:
        yield watch
        await watch.check()
    finally:
        loop.set_exception_handler(None)
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)


@pytest.fixture
async def no_leaks() -> AsyncIterator[NoLeaks]:
    """Watches one test."""
    async with watching() as watch:
        yield watch


def _descriptors() -> dict[str, str]:
    """The open descriptors of this process, each with what it is."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of this very listing
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return {number: what for number, what in found.items() if not what.startswith("/proc/")}


def _charged(served: Served) -> list[str]:
    """What requests that are over have left with the routers and the gate."""
    gate = served.gateway.gate
    left = [f"the router of {each.name}" for each in served.gateway.models if not gate.guides.of(each.name).router.idle]
    return left + ["the gate"] * (not gate.admission.idle)


def _sum(metrics: Mapping[str, float], name: str) -> float:
    return sum(value for sample, value in metrics.items() if sample.startswith(f"{name}["))


async def _within(condition: Any, limit_s: float = SETTLES_S) -> None:
    """Waits until it holds, but not for ever: who asks looks again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not await condition():
                await asyncio.sleep(0.02)
