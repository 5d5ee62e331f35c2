"""Real engines whose answers are cut: another goes on with them, with the text that the first would have said.

The model says what it was shown, again and again, so that no two tokens are nearly as likely: which of such it is an engine's
arithmetic decides, and that is another for a prompt than for an answer (docs/failures.md).
"""

import asyncio
import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from faults.proxy import FaultProxy, Line
from support.gateway import Served, serving, settings_for
from support.llamacpp import EngineUnderTest, running_engine, smollm2_file

from engines.base import Traits
from engines.registry import make

pytestmark = [pytest.mark.engine, pytest.mark.timeout(170)]

ROUNDS = (
    "red green blue",
    "north east south west",
    "spring summer autumn winter",
    "the cat sat on the mat and",
    "breakfast lunch dinner",
    "do re mi fa",
    "apples pears plums and",
    "north and south and",
    "to be or not to be that is the question",
    "salt and pepper and oil and vinegar and",
)
TOKENS = 16
STEADY = {"eject_failures": 10_000, "eject_share": 1.0, "slow_start_s": 0}


def asked(words: str, **fields: Any) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": f"Say it again and again: {words}"},
        {"role": "assistant", "content": " ".join([words] * 5)},
    ]
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    return {"messages": messages, **going_on, "temperature": 0, "max_tokens": TOKENS, **fields}


def text(events: Sequence[Any]) -> str:
    """The content of a stream that calls itself complete."""
    assert events[-1] == "[DONE]", events[-1]
    return "".join(choice["delta"].get("content") or "" for event in events[:-1] for choice in event["choices"])


@contextlib.asynccontextmanager
async def two(urls: Mapping[str, str], records: list[Mapping[str, object]] | None = None, **engine: Any) -> AsyncIterator[Served]:
    engines = [{"id": name, "url": url, "kind": "llamacpp", **engine} for name, url in urls.items()]
    fewest = {"policy": "least_outstanding"}  # `a` is asked first, and no request waits in the gateway
    settings = settings_for("", engines=engines, source=str(smollm2_file()), failures=STEADY, routing=fewest)
    async with serving(settings, access=(records if records is not None else []).append) as served:
        await ready(served)
        yield served


async def ready(served: Served) -> None:
    registry = served.gateway.registry
    async with asyncio.timeout(30):
        while not all(registry.is_ready(name) for name in registry.members):
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[EngineUnderTest, EngineUnderTest]]:
    with running_engine(slots=1, context_tokens=512) as a, running_engine(slots=1, context_tokens=512) as b:
        yield a, b


def cut(after: int, _number: int) -> Line:
    return Line(since=b"POST /completion", reset_after=after)


async def test_an_answer_cut_anywhere_is_the_unbroken_one(pair: tuple[EngineUnderTest, EngineUnderTest]) -> None:
    a, b = pair
    records: list[Mapping[str, object]] = []
    size = 0
    async with FaultProxy(a.url).working() as proxy:
        for words in ROUNDS:
            proxy.lines = lambda _: Line(since=b"POST /completion")
            # A gateway for each: one that has seen an engine fail so often passes it over.
            async with two({"a": proxy.url, "b": b.url}, records) as served:
                unbroken = text(await served.stream(**asked(words)))
                size = size or max(proxy.passed)
                for part in (0.12, 0.2, 0.28, 0.36, 0.44):  # the last event is large
                    proxy.lines = partial(cut, int(size * part))
                    await proxy.drop()
                    await ready(served)
                    assert text(await served.stream(**asked(words))) == unbroken, (words, part)
    assert sum(record["attempts"] == 2 for record in records) >= 45


async def test_the_streams_of_an_engine_that_is_killed_all_end_whole() -> None:
    with running_engine(slots=4, context_tokens=512) as a, running_engine(slots=4, context_tokens=512) as b:
        records: list[Mapping[str, object]] = []
        async with two({"a": a.url, "b": b.url}, records) as served:
            unbroken = {words: text(await served.stream(**asked(words))) for words in ROUNDS}
            tasks = [asyncio.create_task(served.stream(**asked(words))) for words in ROUNDS * 2]
            await until_some_generate(served)
            os.kill(a.pid, signal.SIGKILL)
            answers = await asyncio.gather(*tasks)
            assert [text(events) for events in answers] == [unbroken[words] for words in ROUNDS * 2]
            assert max(int(str(record["attempts"])) for record in records) > 1, "the engine died too late to matter"


async def until_some_generate(served: Served) -> None:
    """Waits until an answer of `a` has begun."""
    registry = served.gateway.registry
    async with asyncio.timeout(60):
        while registry.running.count("m", "a") < 8:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)


@pytest.mark.parametrize("penalty", [{"repeat_penalty": 1.3}, {"presence_penalty": 1.0}, {"frequency_penalty": 0.7}])
async def test_a_penalty_counts_an_answer_in_the_prompt_as_the_answer(
    pair: tuple[EngineUnderTest, EngineUnderTest], penalty: dict[str, float]
) -> None:
    """llama.cpp hands the prompt's tokens to its samplers, so that these are as they were (`Traits.same_penalties`)."""
    prompt = "<|im_start|>user\nTell me about a dog and a cat and a dog.<|im_end|>\n<|im_start|>assistant\n"
    ids = (await posted(pair[0], "/tokenize", {"content": prompt, "add_special": False, "parse_special": True}))["tokens"]
    plain, whole = [await generated(pair[0], ids, 32, each) for each in ({}, penalty)]
    assert plain != whole, "the penalty says something"
    for at in (3, 9, 17, 25):
        assert whole[:at] + await generated(pair[1], [*ids, *whole[:at]], 32 - at, penalty) == whole
    named = {"repeat_penalty": "repetition_penalty"}
    traits: Traits = make("llamacpp").traits
    assert {named.get(name, name) for name in penalty} <= traits.same_penalties


async def generated(engine: EngineUnderTest, ids: list[int], tokens: int, settings: dict[str, float]) -> list[int]:
    body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "return_tokens": True, **settings}
    found: list[int] = (await posted(engine, "/completion", body))["tokens"]
    return found


async def posted(engine: EngineUnderTest, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(engine.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with await asyncio.to_thread(urllib.request.urlopen, request, timeout=60) as answer:
        return json.load(answer)
