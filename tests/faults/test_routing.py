"""Routing under faults and load, on real sockets: where requests go, and that nothing of one that is over stays charged."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from faults.client import connected
from faults.engine import FaultEngine
from faults.leaks import NoLeaks
from faults.place import Fleet
from faults.proxy import FaultProxy
from faults.speech import Kind

from gateway.routing.router import Router

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
per_kind = pytest.mark.parametrize("kind", KINDS)
CHUNK = 32


@contextlib.asynccontextmanager
async def routed(
    leaks: NoLeaks, kind: Kind, count: int, costs: dict[str, Any] | None = None, **changed: Any
) -> AsyncIterator[Fleet]:
    """So many engines that take time as `costs` says, and a gateway that routes by what they have cached."""
    routing = {"chunk_tokens": CHUNK, **changed.pop("routing", {})}
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(FaultEngine(name, **(costs or {})).working()) for name in "abcdefgh"[:count]
        }
        proxy = await stack.enter_async_context(FaultProxy(engines["a"].url).working())
        urls = {name: each.url for name, each in engines.items()}
        settings = leaks.settings_of(urls, kind, changed.pop("engine", {}), routing=routing, **changed)
        served = await stack.enter_async_context(leaks.serving(settings, *engines.values()))
        place = Fleet(engines["a"], proxy, served, leaks, kind, engines)
        await place.ready()
        yield place


def router(place: Fleet, model: str = "m") -> Router:
    return place.served.gateway.gate.guides.of(model).router


def spread(place: Fleet) -> Counter[str]:
    """How many calls each engine has seen."""
    return Counter({name: len(each.seen) for name, each in place.engines.items()})


# ---- nothing is left ------------------------------------------------------------------------------------------------------

LEAVERS = 1_000
AT_ONCE = 24
SHARED = ("You are a careful assistant. " * 20, "Answer in verse. " * 30, "")
AWAY = (
    "[[tokens=8]]",
    "[[tokens=200]][[chaos:slow s=0.02]]",
    "[[chaos:hang_before_headers]]",
    "[[chaos:slow_first s=0.3]]",
    "[[tokens=60]][[chaos:reset_mid_stream after=4 only=a]][[chaos:slow s=0.02 only=b]][[chaos:slow s=0.02 only=c]]",
    "[[tokens=90]][[chaos:close_mid_stream after=2 only=b]][[chaos:slow s=0.02 only=a]][[chaos:slow s=0.02 only=c]]",
    "[[chaos:500 only=a]][[chaos:hang_before_first only=b]]",
    "[[chaos:500 only=b]][[chaos:500 only=c]]",
)


@per_kind
async def test_a_thousand_clients_that_leave_at_any_point_leave_nothing(no_leaks: NoLeaks, kind: Kind) -> None:
    """`no_leaks` sees at the end that nothing is charged, pinned, expected or kept, and that nobody waits."""
    chance, numbers = random.Random(7), iter(range(LEAVERS))
    costs = {"slots": 8, "prefill_us": 40.0}
    failures = {"retries": 2, "retry_share": 0.0, "eject_failures": 10_000, "eject_share": 1.0, "slow_start_s": 0.0}
    async with routed(no_leaks, kind, 3, costs, routing={"hold_s": 0.4}, failures=failures) as place:

        async def leaver(number: int) -> None:
            text = f"{chance.choice(SHARED)} {'x' * chance.choice((0, 0, 400, 1500))} {number} {chance.choice(AWAY)}"
            data = place.request(text, n=chance.choice((1, 1, 1, 3)))
            async with connected(place.served.url) as client:
                await client.send(data)
                with contextlib.suppress(TimeoutError, ConnectionError):
                    async with asyncio.timeout(chance.choice((0.0, 0.05, 0.3, 1.0, 1.5)) * chance.random()):
                        while await client.reader.read(1 << 16):
                            pass
                client.leave()

        async def leavers() -> None:
            for number in numbers:
                await leaver(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(leavers())
        assert router(place).entries > 0
    gone = [each for each in no_leaks.records if each["outcome"] == "client_gone"]
    seen = {
        "in all": len(gone),
        "before a first token": sum(not each["ttft_s"] and bool(each["attempts"]) for each in gone),
        "in mid-stream": sum(bool(each["ttft_s"]) for each in gone),
        "while held": sum(bool(each["queue_s"]) and not each["attempts"] for each in gone),
        "after a failure": sum(bool(each["retries"]) for each in gone),
        "while gone on with": sum(bool(each["resumes"]) for each in gone),
    }
    assert all(seen.values()), seen
