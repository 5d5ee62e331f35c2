"""The real vLLM tells what its cache holds: our keys of it are those of the ids that it was sent, and predict what it reports."""

import asyncio
import json
import random
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.llamacpp import free_port
from support.vllm import ALIAS, BLOCK_TOKENS, VllmUnderTest, running_vllm
from yarl import URL

from engines.registry import make
from gateway.fleet.kv_events import KvEvents
from gateway.fleet.kv_source import KvSource
from gateway.fleet.registry import Member, Registry
from gateway.routing.chain import token_chain
from gateway.routing.choice import Query, Tuning
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView
from gateway.upstream import Upstream

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

CHUNK, ROOT, BLOCKS = BLOCK_TOKENS, 3, 48  # so that nothing is lost by rounding to whole chunks
VIEW = FleetView((EngineView("a", True),))


class Telling:
    """A vLLM that tells, with the place where it does."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.source = KvSource("zmq", f"ipc://{folder}/live", f"ipc://{folder}/replay")
        told = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv@a"}
        places = {"endpoint": self.source.endpoint, "replay_endpoint": self.source.replay_endpoint}
        self.options = ["--kv-events-config", json.dumps(told | places), "--prefix-caching-hash-algo", "sha256_cbor"]
        self.options += ["--max-model-len", "1024", "--num-gpu-blocks-override", str(BLOCKS)]

    def running(self) -> Any:
        return running_vllm(*self.options, port=self.port)


@pytest.fixture
def telling(tmp_path: Path) -> Telling:
    return Telling(tmp_path)


class Index:
    """The router of the one model."""

    chunk_tokens = CHUNK

    def __init__(self) -> None:
        self.router = Router(Tuning(chunk_tokens=CHUNK, hold_s=None), random.Random(1))

    def root(self, _: str) -> int:
        return ROOT

    def trust(self, _: str, engine: str, live: bool, block_tokens: int) -> None:
        self.router.trust(engine, live, block_tokens)

    def stored(self, _: str, engine: str, after: int | None, keys: tuple[int, ...]) -> None:
        self.router.stored(engine, after, keys, asyncio.get_running_loop().time())

    def removed(self, _: str, engine: str, keys: tuple[int, ...]) -> None:
        self.router.removed(engine, keys)

    def cleared(self, _: str, engine: str) -> None:
        self.router.cleared(engine)

    def agrees(self, _: str, engine: str) -> bool:
        return self.router.agrees(engine)

    def held(self, ids: Sequence[int]) -> int:
        """The chunks that it is expected to have of a prompt."""
        choice = self.router.choose(Query("probe", keys(ids), len(ids) + 1, patient=False), VIEW, 0.0)
        self.router.cancelled("probe", 0.0)
        return choice.cached_tokens // CHUNK


def keys(ids: Sequence[int]) -> tuple[int, ...]:
    return token_chain(ids, CHUNK, ROOT)


def answered(engine: VllmUnderTest, ids: Sequence[int], tokens: int = 4) -> tuple[list[int], int]:
    """The answer's ids, and how many of the prompt's tokens it reports as cached."""
    body = {
        "model": ALIAS,
        "prompt": list(ids),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{engine.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        said = json.load(answer)
    return said["choices"][0]["token_ids"], said["usage"]["prompt_tokens_details"]["cached_tokens"]


async def until(happened: Any, limit_s: float = 30.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.01)


async def test_what_it_tells(telling: Telling) -> None:
    """One engine, started twice."""
    index = Index()
    registry = Registry([Member("a", "m", make("vllm"), URL(f"http://127.0.0.1:{telling.port}"), kv_events=telling.source)])
    async with Upstream() as upstream:
        events = KvEvents(registry, upstream, index)
        following = asyncio.create_task(events.run())

        async def live() -> None:
            await until(lambda: events.states()["m", "a"] == ("live", ""))

        try:
            with telling.running() as engine:
                await asyncio.to_thread(answered, engine, range(500, 900))  # before the gateway is there
                registry.set_ready("a", True)
                await live()
                await until(lambda: index.held(range(500, 900)) == 400 // CHUNK)
                await its_keys_are_those_of_what_it_was_sent(engine, index)
                await what_it_evicts_is_not_expected(engine, index)
                await what_is_predicted_is_what_it_reports(engine, index)
                assert index.router.agrees("a")
            with telling.running() as engine:
                await until(lambda: index.router.entries == 0 and events.states()["m", "a"] == ("live", ""))
                await asyncio.to_thread(answered, engine, range(500, 700))
                await until(lambda: index.held(range(500, 900)) == 200 // CHUNK)
        finally:
            following.cancel()
            await asyncio.wait([following])


async def its_keys_are_those_of_what_it_was_sent(engine: VllmUnderTest, index: Index) -> None:
    said, cached = await asyncio.to_thread(answered, engine, range(1000, 1200), 70)
    assert cached == 0
    whole = [*range(1000, 1200), *said]
    await until(lambda: index.held(whole) == 256 // CHUNK)  # the last token of an answer is not in the cache
    assert index.held([*range(1000, 1064), 9, *range(1065, 1200)]) == 64 // CHUNK


async def what_it_evicts_is_not_expected(engine: VllmUnderTest, index: Index) -> None:
    before = index.router.entries
    for start in range(5000, 9000, 1000):
        await asyncio.to_thread(answered, engine, range(start, start + 500))
        await until(lambda start=start: index.held(range(start, start + 500)) == 500 // CHUNK)
    await until(lambda: index.held(range(500, 900)) == index.held(range(1000, 1200)) == 0)
    assert before < index.router.entries <= BLOCKS * BLOCK_TOKENS // CHUNK


async def what_is_predicted_is_what_it_reports(engine: VllmUnderTest, index: Index) -> None:
    """Conversations that do not all fit, turn by turn."""
    chance, router = random.Random(4), index.router
    talks = [[chance.randrange(100, 40_000) for _ in range(150)] for _ in range(6)]
    right = total = 0
    for turn in range(30):
        ids = chance.choice(talks)
        if len(ids) > 800:
            continue
        ids += [chance.randrange(100, 40_000) for _ in range(chance.randrange(20, 120))]
        choice = router.choose(Query(str(turn), keys(ids), len(ids), patient=False), VIEW, float(turn))
        said, reported = await asyncio.to_thread(answered, engine, ids)
        router.first_token(str(turn), turn + 0.1)
        router.finished(str(turn), turn + 0.2, len(said), reported)
        right += abs(choice.cached_tokens - reported) <= 0.05 * reported
        total += 1
        ids += said
        await asyncio.sleep(0.05)  # what it told of its answer is on its way
    assert total >= 20
    assert right >= 0.95 * total
