"""The gateway before the real vLLM, over HTTP: what it predicts that the cache has of a prompt is what vLLM reports, with its
events and without them, and a gateway that has just started knows what others have sent there."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from support.gateway import Served, serving, settings_for
from support.talks import Talk, Turn, Watch, rounds, table, talks, watching
from support.vllm import ALIAS, BLOCK_TOKENS, VllmUnderTest, running_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

BLOCKS = 64  # room for four of these conversations, not for eight
CONVERSATIONS, TURNS, SYSTEM_WORDS, SAYS = 4, 6, 60, (20, 50)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where it tells what its cache holds."""
    folder = tmp_path_factory.mktemp("kv")
    return {"endpoint": f"ipc://{folder}/live", "replay_endpoint": f"ipc://{folder}/replay"}


@pytest.fixture(scope="module")
def telling(places: dict[str, str]) -> Iterator[VllmUnderTest]:
    """A vLLM with little room that tells."""
    events = json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", **places})
    with running_vllm(
        "--kv-events-config", events, "--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "1024"
    ) as engine:
        yield engine


@contextlib.asynccontextmanager
async def gateway(vllm: VllmUnderTest, kv_events: dict[str, str] | None) -> AsyncIterator[tuple[Served, Watch]]:
    """A gateway that knows nothing of it yet, whose chunks are its blocks, and all that it says of its requests."""
    engine: dict[str, Any] = {"model": ALIAS} | ({} if kv_events is None else {"kv_events": kv_events})
    patient = {"between_tokens_s": 300, "connect_s": 30}
    source = {"source": str(vllm.model), "format": "plain"}
    chunks = {"chunk_tokens": BLOCK_TOKENS}
    settings = settings_for(vllm.url, kind="vllm", engine=engine, timeouts=patient, routing=chunks, **source)
    with watching() as watch:
        async with serving(settings) as served:
            if kv_events is not None:
                await state(served, "live")
            yield served, watch


async def state(served: Served, wanted: str) -> None:
    """Waits until `/fleet` says so of the engine's events."""
    async with asyncio.timeout(60):
        while (await told(served))["state"] != wanted:
            await asyncio.sleep(0.05)


async def told(served: Served) -> dict[str, str]:
    (engine,) = (await served.client.get(f"{served.admin_url}/fleet")).json()["engines"]
    found: dict[str, str] = engine["kv_events"]
    return found


def talking(seed: int) -> list[Talk]:
    return talks(CONVERSATIONS, seed=seed, words_each=SYSTEM_WORDS, says=SAYS)


def shown(turns: list[Turn], title: str) -> int:
    """Prints them; how many were within 5 % of what was reported."""
    right = sum(turn.strictly_near for turn in turns)
    predicted, reported = sum(turn.believed for turn in turns), sum(turn.reported for turn in turns)
    prompts = sum(turn.prompt_tokens for turn in turns)
    print(f"\n{table(turns)}\n{title}: {right} of {len(turns)} within 5 % of what was reported;", end=" ")
    print(f"{predicted} tokens predicted, {reported} reported, of {prompts}")
    return right


async def test_what_is_predicted_is_what_vllm_reports(telling: VllmUnderTest, places: dict[str, str]) -> None:
    """Conversations that fit, two at a time, with its events and without. Then twice as many, which do not fit, one at a time,
    through a gateway that has seen none of them: of requests at the same moment one may push out what another finds a moment
    later, which nobody can know. So may the last token of an answer, and the event come just after the next request."""
    async with gateway(telling, places) as (served, watch):
        with_events = await rounds(talking(1), TURNS, served.client, watch, at_a_time=2)
        assert await told(served) == {"state": "live", "reason": ""}
    earlier = talking(2)
    async with gateway(telling, None) as (served, watch):
        without = await rounds(earlier, TURNS, served.client, watch, at_a_time=2)
        assert await told(served) == {"state": "off", "reason": ""}
    async with gateway(telling, places) as (served, watch):
        first = await rounds(earlier, 1, served.client, watch, at_a_time=1)
        crowded = await rounds([*earlier, *talking(3)], 4, served.client, watch, at_a_time=1)
        assert await told(served) == {"state": "live", "reason": ""}
    cases = {"with events": with_events, "without": without, "by another gateway": first, "crowded": crowded}
    right = {name: shown(turns, name) for name, turns in cases.items()}
    for name in ("with events", "without", "by another gateway"):
        assert sum(turn.reported > 0 for turn in cases[name]) >= 0.8 * len(cases[name]), "hardly anything was cached"
    assert any(turn.reported == 0 for turn in crowded[-2 * len(earlier) :]), "nothing was pushed out"
    assert right.pop("without") >= 0.95 * len(without)
    assert sum(right.values()) >= 0.95 * (len(with_events) + len(first) + len(crowded))
