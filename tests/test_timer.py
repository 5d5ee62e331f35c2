"""The five timeouts. Limits are tens of milliseconds; what is asserted is which stage fired, not how exactly."""

import asyncio
from typing import Any

import pytest

from gateway.errors import ClientStalled, EngineTimeout
from gateway.timer import StageLimits, StageTimer, Watchdog


def limits(**changed: float) -> StageLimits:
    return StageLimits(**{"connect_s": 9, "headers_s": 9, "first_token_s": 9, "between_tokens_s": 9, "total_s": 9, **changed})


def timer(total_s: float = 9.0, **changed: float) -> StageTimer:
    return StageTimer(Watchdog(), limits(total_s=total_s, **changed), asyncio.get_running_loop().time() + total_s)


@pytest.mark.parametrize("stage", ["headers", "first_token", "between_tokens"])
async def test_names_the_stage_that_was_too_long(stage: Any) -> None:
    with pytest.raises(EngineTimeout) as caught, timer(**{f"{stage}_s": 0.03}) as running:
        running.enter(stage)
        await asyncio.sleep(5)
    assert (caught.value.stage, caught.value.reason, caught.value.status) == (stage, stage, 504)
    assert "0.03 s" in caught.value.message


async def test_progress_starts_the_stage_anew() -> None:
    with timer(between_tokens_s=0.15) as running:
        running.enter("between_tokens")
        for _ in range(6):
            await asyncio.sleep(0.04)
            running.touch()


async def test_the_total_holds_however_much_progress_there_is() -> None:
    with pytest.raises(EngineTimeout) as caught, timer(total_s=0.1) as running:
        running.enter("between_tokens")
        while True:
            await asyncio.sleep(0.02)
            running.touch()
    assert caught.value.stage == "total"


async def test_a_slow_client_is_not_the_engines_silence() -> None:
    with timer(between_tokens_s=0.05) as running:
        running.enter("between_tokens")
        running.pause()
        await asyncio.sleep(0.15)
        running.touch()
    with pytest.raises(ClientStalled) as caught, timer(total_s=0.1, between_tokens_s=0.05) as running:
        running.enter("between_tokens")
        running.pause()
        await asyncio.sleep(5)
    assert caught.value.reason == "client_stalled"


async def test_a_later_stage_may_be_shorter() -> None:
    with pytest.raises(EngineTimeout) as caught, timer(between_tokens_s=0.03) as running:
        running.enter("first_token")
        running.enter("between_tokens")
        await asyncio.sleep(5)
    assert caught.value.stage == "between_tokens"


async def test_a_cancellation_from_outside_stays_one() -> None:
    async def work() -> None:
        with timer() as running:
            running.enter("headers")
            await asyncio.sleep(5)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_leaves_no_timer_behind() -> None:
    with timer(headers_s=0.02) as running:
        running.enter("headers")
    await asyncio.sleep(0.05)  # a timer left behind would cancel this
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
