"""Requests pass, wait or are sent away; a waiting one that leaves costs nothing."""

import asyncio

import pytest
from support.wiring import fleet

from gateway.admission import Admission
from gateway.errors import Rejected
from gateway.fleet.registry import Registry


def gate(registry: Registry, *, queue_requests: int = 2, queue_wait_s: float = 5.0) -> Admission:
    return Admission(registry, queue_requests=queue_requests, queue_wait_s=queue_wait_s)


async def waited(admission: Admission, told_s: list[float] | None = None) -> float:
    """The seconds that are told of the wait, 0 where none was."""
    waits_s: list[float] = [] if told_s is None else told_s
    async with admission.admit("m", waits_s.append):
        return sum(waits_s)


async def test_passes_at_once_while_an_engine_is_ready() -> None:
    registry = fleet("a", "b")
    registry.set_ready("b", True)
    assert await waited(gate(registry)) == 0.0


async def test_waits_for_an_engine_and_says_how_long() -> None:
    registry = fleet("a")
    waiting = asyncio.create_task(waited(gate(registry)))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    registry.set_ready("a", True)
    assert 0.02 < await waiting < 2


async def test_an_engine_of_another_model_wakes_nobody_for_good() -> None:
    registry = fleet("a")
    admission = gate(registry, queue_wait_s=0.1)
    waiting = asyncio.create_task(waited(admission))
    await asyncio.sleep(0.01)
    registry.set_ready("a", True)
    registry.set_ready("a", False)  # gone again before the waiter could run
    with pytest.raises(Rejected) as caught:
        await waiting
    assert (caught.value.status, caught.value.reason) == (503, "no_engine")
    assert caught.value.message == "No engine of 'm' became ready in 0.1 s; `/ready` says why."
    assert caught.value.retry_after_s == 1.0


async def test_the_wait_is_told_of_one_that_is_sent_away_or_leaves_too() -> None:
    told_s: list[float] = []
    with pytest.raises(Rejected):
        await waited(gate(fleet("a"), queue_wait_s=0.03), told_s)
    assert told_s[0] > 0.02
    leaving = asyncio.create_task(waited(gate(fleet("a")), told_s))
    await asyncio.sleep(0.01)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert told_s[1] > 0


async def test_a_full_queue_sends_away_and_a_leaver_makes_room() -> None:
    registry = fleet("a")
    admission = gate(registry, queue_requests=1)
    first = asyncio.create_task(waited(admission))
    await asyncio.sleep(0.01)
    with pytest.raises(Rejected) as caught:
        await waited(admission)
    assert (caught.value.status, caught.value.reason, caught.value.code) == (429, "queue_full", "queue_full")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    third = asyncio.create_task(waited(admission))
    await asyncio.sleep(0.01)
    registry.set_ready("a", True)
    assert await third > 0
