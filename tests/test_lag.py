"""How late the loop was."""

import asyncio
import time

from gateway.lag import RECENT_S, LoopLag


async def test_a_loop_that_is_held_up_is_late() -> None:
    late_s: list[float] = []
    async with LoopLag(late_s.append, tick_s=0.01).ticking() as lag:
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # noqa: ASYNC251 - the loop is held up on purpose
        await asyncio.sleep(0.05)
        assert 0.25 < lag.most_s < 2
        assert max(late_s) == lag.most_s
        assert len(late_s) > 3
        told = len(late_s)
    await asyncio.sleep(0.05)
    assert len(late_s) == told


def test_the_most_is_of_the_last_seconds() -> None:
    lag = LoopLag()
    assert (lag.most_s, lag.lasting_s) == (0.0, 0.0)
    for at, late in enumerate([0.1, 0.9, 0.2, 0.3]):
        lag.ticked(float(at), late)
    assert lag.most_s == 0.9
    lag.ticked(1.0 + RECENT_S, 0.05)
    assert lag.most_s == 0.9
    lag.ticked(1.1 + RECENT_S, 0.05)
    assert lag.most_s == 0.3


def test_one_pause_is_no_load() -> None:
    lag = LoopLag()
    lag.ticked(0.0, 60.0)
    assert lag.lasting_s == 0.0
    for at in range(3):
        lag.ticked(float(at), 1.5)
    assert lag.lasting_s == 1.5
    lag.ticked(4.0, 0.0)
    assert lag.lasting_s == 0.0
