"""What waits for an engine that probes find gone goes elsewhere, long before its limits, here the defaults of the settings."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
from faults.client import Answer
from faults.leaks import NoLeaks
from faults.place import Fleet, fleet
from faults.speech import Kind

from gateway.fleet.probe import ProbeTimes

pytestmark = pytest.mark.faults
SLACK = 5
LIMIT_S = 0.8  # of a probe
KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
per_kind = pytest.mark.parametrize("kind", KINDS)
per_silence = pytest.mark.parametrize("silence", ["hang_before_headers", "hang_before_first"])


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fleet.probe.ProbeTimes", partial(ProbeTimes, ready_s=0.1, down_s=0.05, limit_s=LIMIT_S))


async def until(happened: Callable[[], object], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.005)


def out(place: Fleet, name: str = "a") -> bool:
    """Whether a probe took it out."""
    return place.served.gateway.registry.standing(name).down


@contextlib.asynccontextmanager
async def asked(place: Fleet, text: str, *, of: str = "a", stream: bool = True) -> AsyncIterator["asyncio.Task[Answer]"]:
    """A request that has reached this engine."""
    before = len(place.engines[of].seen)
    task = asyncio.create_task(place.ask(text, stream=stream))
    try:
        await until(lambda: len(place.engines[of].seen) > before)
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


@per_kind
@per_silence
@pytest.mark.parametrize("stream", [True, False])
async def test_what_waits_for_an_engine_that_hangs_is_answered_by_another(
    no_leaks: NoLeaks, kind: Kind, silence: str, stream: bool
) -> None:
    async with fleet(no_leaks, kind) as place:
        async with asked(place, f"[[chaos:{silence} only=a]]", stream=stream) as task:
            place.engine.healthy = "hang"
            await until(lambda: out(place))
            verdict_s = asyncio.get_running_loop().time()
            answer = await task
        assert place.whole(answer), (answer.error, place.record)
        assert answer.left_s is not None
        assert answer.left_s - verdict_s <= SLACK * 0.1
        assert (place.record["engine"], place.record["attempts"]) == ("b", 2)
        first, second = place.since_last()
        assert await place.closed(first) <= second.began_s
        assert list(place.served.gateway.registry.standing("a").breaker._last) == [True]


@per_kind
async def test_what_waits_for_an_engine_that_says_it_is_unwell_is_answered_by_another(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind) as place, asked(place, "[[chaos:hang_before_headers only=a]]") as task:
        place.engine.healthy = False
        answer = await task
        assert place.whole(answer), (answer.error, place.record)
        assert (place.record["engine"], place.record["attempts"]) == ("b", 2)


@per_kind
async def test_one_bad_probe_moves_nothing(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind) as place, asked(place, f"[[chaos:slow_headers s={3 * LIMIT_S} only=a]]") as task:
        await asyncio.sleep(1.5 * LIMIT_S)
        place.engine.healthy = False
        await until(lambda: out(place))
        place.engine.healthy = True
        answer = await task
        assert place.whole(answer)
        assert place.record["attempts"] == 1


@per_kind
@per_silence
async def test_an_answer_that_waits_to_be_gone_on_with_goes_to_yet_another(no_leaks: NoLeaks, kind: Kind, silence: str) -> None:
    async with fleet(no_leaks, kind, 3) as place:
        text = f"[[tokens=12]][[chaos:reset_mid_stream after=5 only=a]][[chaos:{silence} only=b]]"
        async with asked(place, text, of="b") as task:
            place.engines["b"].healthy = "hang"
            answer = await task
        assert place.whole(answer), (answer.error, place.record)
        assert answer.finishes == ["stop"]
        assert (place.record["engine"], place.record["attempts"]) == ("c", 3)


@per_kind
async def test_an_engine_that_generates_is_waited_for_whatever_its_probes_say(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind) as place:
        registry = place.served.gateway.registry
        registry.drain("b", True)
        async with (
            asked(place, "[[tokens=40]][[chaos:slow s=0.1 only=a]]") as generating,
            asked(place, "[[chaos:hang_before_headers only=a]]") as waiting,
        ):
            registry.drain("b", False)
            place.engine.healthy = False
            assert (await generating).done
            until_s = asyncio.get_running_loop().time()
            answer = await waiting
        assert answer.done
        assert answer.left_s is not None
        assert place.record["attempts"] == 2
        (moved,) = place.engines["b"].seen
        assert moved.began_s >= until_s - 0.1, "it was given up while its engine generated"


@per_kind
@pytest.mark.parametrize("others", [0, 1])
async def test_where_no_other_engine_could_take_it_a_busy_one_is_waited_for(no_leaks: NoLeaks, kind: Kind, others: int) -> None:
    """The engine is busy with a long prompt, answers no probe meanwhile, and then all."""
    async with fleet(no_leaks, kind, 1 + others) as place:
        if others:
            place.served.gateway.registry.drain("b", True)
        async with asked(place, f"[[chaos:slow_headers s={6 * LIMIT_S}]]") as task:
            place.engine.healthy = "hang"
            await until(lambda: out(place))
            answer = await task
        assert place.whole(answer), answer.error
        assert (place.record["engine"], place.record["attempts"]) == ("a", 1)
