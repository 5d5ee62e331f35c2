"""What failures cost is counted where it falls, also where no client sees any; and engines that are not there are not told of."""

import asyncio
from collections.abc import Iterable

import pytest
from faults.leaks import NoLeaks
from faults.place import QUICK, Fleet, fleet
from support.gateway import sample

pytestmark = pytest.mark.faults
STEADY = {"eject_failures": 10_000, "eject_share": 1.0, "slow_start_s": 0}
"""The first engine gets every request, however often it fails."""
SLACK = 5


async def counts(place: Fleet, *names: str, **labels: str) -> list[float | None]:
    metrics = await place.served.metrics()
    return [metrics.get(sample(f"interlock_{name}_total", model="m", **labels)) for name in names]


async def asked(place: Fleet, texts: Iterable[str]) -> None:
    for text in texts:
        answer = await place.ask(text)
        assert place.whole(answer), (answer.error, place.record)
        place.served.gateway.registry.set_ready("a", True)  # else it is out until it was probed


async def test_an_engine_whose_failures_another_makes_good_is_seen(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "llamacpp", timeouts=QUICK, failures=STEADY) as place:
        assert await counts(place, "attempts", engine="a") == [0], "from the start, so that `rate` sees the first"
        assert await counts(place, "attempt_failures", engine="a", reason="broke") == [0]
        assert await counts(place, "retries", "resumes") == [0, 0]
        await asked(place, [f"[[tokens=12]][[chaos:reset_mid_stream settle=0 after=5 only=a]] {n}" for n in range(3)])
        assert (place.record["retries"], place.record["resumes"], place.record["attempts"]) == (1, 1, 2)
        await asked(place, [f"[[chaos:500 only=a]] {n}" for n in range(2)])
        assert (place.record["retries"], place.record["resumes"], place.record["attempts"]) == (1, 0, 2)
        assert await counts(place, "attempts", engine="a") == await counts(place, "attempts", engine="b") == [5]
        assert await counts(place, "attempt_failures", engine="a", reason="broke") == [3]
        assert await counts(place, "attempt_failures", engine="a", reason="refused") == [2]
        assert await counts(place, "attempt_failures", engine="b", reason="broke") == [0]
        assert await counts(place, "retries", "resumes") == [5, 3]
        assert await counts(place, "retries_refused", reason="resume_refused") == [0]


async def test_a_failure_that_nothing_follows_says_what_forbade_it(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "llamacpp", timeouts=QUICK, failures={**STEADY, "resume": "off"}) as place:
        answer = await place.ask("[[tokens=12]][[chaos:close_mid_stream after=5 only=a]]")
        assert answer.error is not None
        assert await counts(place, "retries_refused", reason="resume_refused") == [1]
        assert await counts(place, "retries", "resumes") == [0, 0]
        assert (place.record["retries"], place.record["resumes"], place.record["attempts"]) == (0, 0, 1)


async def test_choices_are_attempts_and_no_retries(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "llamacpp", timeouts=QUICK) as place:
        assert (await place.ask("[[tokens=4]]", n=4)).done
        assert (place.record["attempts"], place.record["retries"], place.record["resumes"]) == (4, 0, 0)
        assert await counts(place, "retries", "resumes") == [0, 0]


async def test_scrapes_hold_no_stream_up(no_leaks: NoLeaks) -> None:
    async with fleet(no_leaks, "llamacpp", timeouts=QUICK) as place:
        stream = asyncio.create_task(place.ask("[[tokens=200]][[chaos:slow s=0.005]]"))
        scrapes = 0
        while not stream.done():
            texts = await asyncio.gather(*(place.served.client.get(f"{place.served.admin_url}/metrics") for _ in range(4)))
            assert all(text.status_code == 200 for text in texts)
            scrapes += len(texts)
        assert (await stream).done
        assert scrapes > 20
