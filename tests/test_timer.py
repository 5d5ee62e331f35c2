"""The five timeouts. Limits are tens of milliseconds; what is asserted is which stage fired, not how exactly."""

import ast
import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ClientStalled, EngineSilent, EngineTimeout
from gateway.timer import STALL_S, StageLimits, StageTimer, Watchdog


def limits(**changed: float) -> StageLimits:
    names = ("connect_s", "headers_s", "first_token_s", "between_tokens_s", "client_s", "total_s")
    return StageLimits(**{**dict.fromkeys(names, 9.0), **changed})


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


async def test_a_client_that_takes_nothing_has_a_limit_of_its_own() -> None:
    with pytest.raises(ClientStalled) as caught, timer(client_s=0.2, between_tokens_s=0.05) as running:
        running.enter("between_tokens")
        for _ in range(3):  # each time it takes something it begins anew
            running.pause()
            await asyncio.sleep(0.1)
            running.touch()
        running.pause()
        await asyncio.sleep(5)
    assert caught.value.reason == "client_stalled"
    assert "0.2 s" in caught.value.message


async def test_a_later_stage_may_be_shorter() -> None:
    with pytest.raises(EngineTimeout) as caught, timer(between_tokens_s=0.03) as running:
        running.enter("first_token")
        running.enter("between_tokens")
        await asyncio.sleep(5)
    assert caught.value.stage == "between_tokens"


@pytest.mark.parametrize("stage", ["headers", "first_token"])
async def test_an_engine_that_is_given_up_has_no_time_left(stage: Any) -> None:
    with pytest.raises(EngineSilent) as caught, timer() as running:
        running.enter(stage)
        await asyncio.sleep(0.05)
        assert running.waits_s >= 0.04
        running.give_up()
        await asyncio.sleep(5)
    assert (caught.value.stage, caught.value.status) == (stage, 504)


async def test_progress_that_comes_at_once_makes_up_for_it() -> None:
    with timer() as running:
        running.enter("headers")
        running.give_up()
        running.enter("first_token")
        running.give_up()
        running.enter("between_tokens")
        assert running.waits_s == 0
        await asyncio.sleep(0.15)


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


# ---- the process itself stands still ----------------------------------------------------------------------------------------

PAUSE_S = STALL_S + 0.2


def stand_still() -> None:
    """Nothing of this process runs, as with SIGSTOP."""
    time.sleep(PAUSE_S)


@pytest.mark.parametrize("stage", ["headers", "first_token", "between_tokens"])
async def test_no_stage_is_over_as_the_process_stood_still(stage: Any) -> None:
    with timer(**{f"{stage}_s": 0.3}) as running:
        running.enter(stage)
        await asyncio.sleep(0.1)
        stand_still()
        await asyncio.sleep(0.1)
        running.touch()
        with pytest.raises(EngineTimeout) as caught, timer(**{f"{stage}_s": 0.2}) as another:
            another.enter(stage)  # after it, limits are what they were
            await asyncio.sleep(5)
    assert caught.value.stage == stage


async def test_the_whole_request_gets_that_time_too_once() -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(EngineTimeout) as caught, timer(total_s=0.4) as running:
        running.enter("between_tokens")
        await asyncio.sleep(0.1)
        stand_still()
        while True:
            await asyncio.sleep(0.02)
            running.touch()
    assert caught.value.stage == "total"
    assert PAUSE_S + 0.35 < loop.time() - began_s < PAUSE_S + 0.4 + 5


async def test_a_short_delay_is_not_forgiven() -> None:
    with pytest.raises(EngineTimeout), timer(headers_s=0.2) as running:
        running.enter("headers")
        await asyncio.sleep(0.01)
        time.sleep(0.4)  # noqa: ASYNC251 - the loop is held up on purpose
        await asyncio.sleep(0.3)


# ---- durations do not follow the wall clock ---------------------------------------------------------------------------------

WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "time.gmtime", "time.localtime"}
STAMPS = {
    "gateway/app.py": "when models were made, and the stamps of answers",
    "gateway/wiring.py": "the stamps of the access log and of traces",
    "gateway/cli.py": "the date of a check",
    "gateway/start.py": "the stamp of a line of the log",
    "gateway/voice.py": "the date that a template asks for",
    "gateway/prompt/worker.py": "the same, in a process that renders",
    "gateway/upstream.py": "Retry-After may be a date",
    "gateway/observe/series.py": "the stamp of an exemplar",
    "gateway/server/page.py": "when the operator's page was made",
}


def wall_clocks(source: str) -> set[str]:
    """What reads the wall clock in it, called or handed on; and an import that would hide it from this look."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and (name := ".".join(ast.unparse(node).split(".")[-2:])) in WALL_CLOCKS:
            found.add(name)
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {name for each in node.names if (name := f"time.{each.name}") in WALL_CLOCKS}
    return found


def test_c12_the_wall_clock_is_read_for_stamps_only() -> None:
    root = Path(__file__).parents[1]
    files = [file for package in ("gateway", "engines") for file in sorted((root / package).rglob("*.py"))]
    found = {file.relative_to(root).as_posix(): names for file in files if (names := wall_clocks(file.read_text()))}
    assert len(files) > 50
    assert set(found) == set(STAMPS), found


@pytest.mark.parametrize(
    "source",
    ["import time\nx = time.time()", "from time import time", "import datetime\nx = datetime.datetime.now()", "f(datetime.now)"],
)
def test_c12_a_wall_clock_is_found(source: str) -> None:
    assert wall_clocks(source)
    assert not wall_clocks("import time\nx = time.monotonic()\nfrom time import perf_counter")
