"""Two real llama.cpp engines behind a gateway: what it believes of their caches is what they report, conversations stay where
their prefix is and move where they would wait, and an engine that was restarted in place is soon believed no more.

Bounds are on counts, never on times: the machine may do anything else meanwhile.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from faults.proxy import FaultProxy
from support.gateway import Served, serving, settings_for
from support.llamacpp import running_engine, smollm2_file
from support.talks import PATIENCE_S, Turn, Watch, rounds, table, talks, watching

from gateway.fleet import loads, probe
from gateway.fleet.loads import LoadTimes
from gateway.fleet.probe import ProbeTimes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CHUNK_TOKENS = 1  # what llama.cpp itself tells prompts apart by; 128 are as little of some thousands
WRONG_AT_MOST = 3


@pytest.fixture(scope="module")
def pair() -> Iterator[Mapping[str, str]]:
    """Two engines with two slots each: the address of each by its name."""
    with running_engine() as a, running_engine() as b:
        yield {"a": a.url, "b": b.url}


@contextlib.asynccontextmanager
async def gateway(engines: Mapping[str, str]) -> AsyncIterator[tuple[Served, Watch]]:
    """A gateway that knows nothing of them yet, and all that it says of its requests."""
    members = [{"id": name, "url": url, "kind": "llamacpp"} for name, url in engines.items()]
    sections: dict[str, Any] = {"routing": {"chunk_tokens": CHUNK_TOKENS}, "failures": {"slow_start_s": 0}}
    settings = settings_for("", engines=members, source=str(smollm2_file()), format="plain", **sections)
    with watching() as watch:
        async with serving(settings) as served:
            yield served, watch


async def test_what_is_believed_cached_is_what_the_engines_report(pair: Mapping[str, str]) -> None:
    """Eight conversations, three at a time, half of them with one system prompt: within 5 % of what is reported."""
    async with gateway(pair) as (served, watch):
        turns = await rounds(talks(8, seed=1), 5, served.client, watch)
    near, strictly = sum(turn.near for turn in turns), sum(turn.strictly_near for turn in turns)
    print(f"\n{table(turns)}\n{near} of {len(turns)} within 5 % of the prompt, {strictly} within 5 % of what was reported")
    assert {turn.engine for turn in turns} == {"a", "b"}
    assert sum(turn.reported > turn.prompt_tokens / 2 for turn in turns) >= len(turns) / 2, "hardly anything was cached"
    assert strictly >= 0.95 * len(turns), table(turns)


async def test_a_conversation_stays_moves_when_its_engine_is_saturated_and_may_stay_there(pair: Mapping[str, str]) -> None:
    async with gateway(pair) as (served, watch):
        first, second = talks(2, seed=2)
        homes: dict[int, set[str]] = {}
        for turn in [await talk.turn(served.client, watch) for _ in range(3) for talk in (first, second)]:
            homes.setdefault(turn.talk, set()).add(turn.engine)
        assert [len(engines) for engines in homes.values()] == [1, 1], homes
        (home,) = homes[0]
        other = "b" if home == "a" else "a"
        async with saturated(served, watch, home, other) as running:
            moved = await first.turn(served.client, watch)
            assert moved.engine == other
            assert moved.believed < moved.prompt_tokens / 2
            assert not any(each.done() for each in running), "its old engine would have been free before"
        stays = [await first.turn(served.client, watch) for _ in range(2)]
        assert all(turn.reported > turn.prompt_tokens / 2 for turn in stays), table(stays)
        assert all(turn.near for turn in stays), table(stays)


@contextlib.asynccontextmanager
async def saturated(served: Served, watch: Watch, engine: str, other: str) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Answers that do not end are made in both slots of this engine, as the other takes none meanwhile. Their tasks."""
    registry = served.gateway.registry
    registry.drain(other, True)
    tasks = [asyncio.create_task(_endless(served, number)) for number in range(2)]
    try:
        while registry.running.count("m", engine) < len(tasks):
            assert not any(each.done() for each in tasks)
            await asyncio.sleep(0.05)
        registry.drain(other, False)
        yield tasks
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while registry.running.count("m", engine):
            await asyncio.sleep(0.05)


async def _endless(served: Served, number: int) -> None:
    (talk,) = talks(1, seed=100 + number, words_each=4)
    talk.messages.append({"role": "user", "content": "Count."})
    body = talk.body(3000, stream=True, ignore_eos=True)
    async with served.client.stream("POST", "/v1/chat/completions", json=body, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200
        async for _ in answer.aiter_bytes():
            pass


async def test_a_restart_that_nobody_saw_is_believed_wrongly_three_times_at_most(
    pair: Mapping[str, str], spare: "Spare", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two probes, while no request runs: no connection breaks, and its counts, which begin anew, are not asked for. Its
    address leads to another engine, which has nothing."""
    monkeypatch.setattr(probe, "ProbeTimes", lambda: ProbeTimes(ready_s=3600))
    monkeypatch.setattr(loads, "LoadTimes", lambda: LoadTimes(every_s=3600))
    door = Door(pair["a"])
    async with door.working(), gateway({"a": door.url, "b": pair["b"]}) as (served, watch):
        all_talks = talks(6, seed=3)
        before = await rounds(all_talks, 2, served.client, watch)
        life = served.gateway.registry.standing("a").life
        await door.lead_to(spare.url)
        after = await rounds(all_talks, 2, served.client, watch)
        assert served.gateway.registry.standing("a").life == life
    print(f"\n{table(after)}\nwrong after a restart that nobody saw: {wrong(after, 'a')}")
    assert {turn.engine for turn in before} == {"a", "b"}
    assert 1 <= wrong(after, "a") <= WRONG_AT_MOST, table(after)


async def test_a_killed_engine_that_is_back_is_believed_wrongly_three_times_at_most(
    pair: Mapping[str, str], spare: "Spare"
) -> None:
    async with gateway({"a": spare.url, "b": pair["b"]}) as (served, watch):
        registry, all_talks = served.gateway.registry, talks(6, seed=4)
        before = await rounds(all_talks, 2, served.client, watch)
        spare.kill()
        life = registry.standing("a").life
        while registry.is_ready("a"):
            await registry.changed()
        await asyncio.to_thread(spare.start)
        while not registry.is_ready("a"):
            await registry.changed()
        assert registry.standing("a").life == life + 1
        after = await rounds(all_talks, 2, served.client, watch)
    print(f"\n{table(after)}\nwrong after a restart: {wrong(after, 'a')}")
    assert {turn.engine for turn in before} == {turn.engine for turn in after} == {"a", "b"}
    assert wrong(after, "a") <= WRONG_AT_MOST, table(after)


class Spare:
    """An engine that can be killed, and started again where it was."""

    def __init__(self, running: ExitStack) -> None:
        self._running = running
        self._engine = running.enter_context(running_engine())

    @property
    def url(self) -> str:
        return self._engine.url

    def kill(self) -> None:
        os.kill(self._engine.pid, signal.SIGKILL)

    def start(self) -> None:
        self._engine = self._running.enter_context(running_engine(port=self._engine.port))


@pytest.fixture(scope="module")
def spare() -> Iterator[Spare]:
    with ExitStack() as running:
        yield Spare(running)


class Door(FaultProxy):
    """An address that can lead elsewhere."""

    async def lead_to(self, url: str) -> None:
        """All connections end, and new ones go there."""
        self._target = FaultProxy(url)._target
        await self.drop()


def wrong(turns: list[Turn], engine: str) -> int:
    """How many of an engine's were believed to find more than they did."""
    return sum(turn.hoped for turn in turns if turn.engine == engine)
