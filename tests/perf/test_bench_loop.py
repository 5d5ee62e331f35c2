"""The lag benchmark itself: its prompts fit, its ticker sees a loop that is held up, and its shares are of the sorted ticks."""

import asyncio
import time
from pathlib import Path

from perf.bench_loop import CONTEXT_TOKENS, Found, conversations, shown, tick, wide_model

from gateway.prompt.source import read_model


def test_the_model_s_file_has_room_for_the_prompts(tmp_path: Path) -> None:
    assert read_model(wide_model(tmp_path)).context_tokens == CONTEXT_TOKENS


def test_conversations_grow() -> None:
    sizes = [len(messages) for messages, _ in zip(conversations(0), range(3), strict=False)]
    assert sizes == [sizes[0], sizes[0] + 2, sizes[0] + 4]


async def test_a_loop_that_is_held_up_is_seen() -> None:
    late_ms: list[tuple[float, float]] = []
    ticking = asyncio.create_task(tick(late_ms))
    await asyncio.sleep(0.01)
    until_s = time.thread_time() + 0.1
    while time.thread_time() < until_s:
        pass
    await asyncio.sleep(0.01)
    ticking.cancel()
    assert max(own_ms for own_ms, _ in late_ms) > 50
    assert all(own_ms <= max(whole_ms, 0) for own_ms, whole_ms in late_ms)


def test_shares_are_of_all_ticks() -> None:
    found = Found([float(ms) for ms in range(1000)], [0.0] * 1000, [1.0] * 5, 1.0, 2.0)
    assert [found.late_at(share) for share in (0.5, 0.999, 1.0)] == [500, 999, 999]
    assert "CPU a turn: gateway 200 ms, workers 400 ms" in shown("x", found)
