"""E30: load metrics that hang, fail or are stale take no engine out, change no route and cost no request; what is known of them
ages."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
from faults.engine import FaultEngine, Health
from faults.leaks import NoLeaks
from faults.place import Fleet, fleet
from faults.speech import Kind

from engines.base import EngineLoad
from gateway.fleet.standing import LOAD_COUNTS_S

pytestmark = pytest.mark.faults
KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
REQUESTS = 40


async def administer(engine: FaultEngine, call: str, wanted: Any) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.post(f"{engine.admin_url}/admin/{call}", json=wanted)).raise_for_status()


def loads(place: Fleet) -> dict[str, tuple[float, EngineLoad] | None]:
    """What each engine last said, and its age in seconds."""
    registry = place.served.gateway.registry
    return {name: registry.standing(name).load(registry.now_s()) for name in place.engines}


async def known(place: Fleet, within_s: float = 15.0) -> None:
    async with asyncio.timeout(within_s):
        while not all(loads(place).values()):
            await asyncio.sleep(0.02)


async def spread(place: Fleet) -> Counter[str]:
    """How many of the requests, sent at once, each engine got. All of them are answered whole."""
    before = {name: len(engine.seen) for name, engine in place.engines.items()}
    answers = await asyncio.gather(*(place.ask(f"[[tokens=8]] {at}") for at in range(REQUESTS)))
    assert [answer.status for answer in answers if not answer.done] == []
    return Counter({name: len(engine.seen) - before[name] for name, engine in place.engines.items()})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answers", ["hang", False])
async def test_e30_metrics_that_do_not_come_change_no_route(no_leaks: NoLeaks, kind: Kind, answers: Health) -> None:
    async with fleet(no_leaks, kind) as place:
        await known(place)
        assert {name: found[1].running for name, found in loads(place).items() if found} == {"a": 0, "b": 0}
        even = await spread(place)
        await administer(place.engines["a"], "metrics", {"answers": answers})
        async with asyncio.timeout(60):
            while (found := loads(place)["a"]) is None or found[0] <= LOAD_COUNTS_S:
                await asyncio.sleep(0.1)
        other = loads(place)["b"]
        assert other is not None
        assert other[0] < found[0]
        assert place.served.gateway.registry.is_ready("a")
        told = await spread(place)
        for counts in (even, told):
            assert sum(counts.values()) == REQUESTS
            assert min(counts.values()) >= 0.4 * REQUESTS  # within 20% of even
        await administer(place.engines["a"], "metrics", {"answers": True})
        async with asyncio.timeout(30):
            while (found := loads(place)["a"]) is None or found[0] > LOAD_COUNTS_S:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", KINDS)
async def test_e30_an_engine_whose_metrics_hang_from_the_first_is_ready_as_soon(no_leaks: NoLeaks, kind: Kind) -> None:
    """What it says of its cache is asked for beside the probes, in the same place."""
    async with FaultEngine().working() as engine:
        engine.metrics = "hang"
        async with no_leaks.serving(no_leaks.settings(engine.url, kind=kind), engine) as served:
            began_s = asyncio.get_running_loop().time()
            assert served.gateway.registry.is_ready("e")
            no_leaks.sent()
            assert (await served.chat()).status_code == 200
            assert asyncio.get_running_loop().time() - began_s < 2.5  # less than the time that an answer to `/metrics` has
            assert served.gateway.registry.standing("e").load(served.gateway.registry.now_s()) is None
