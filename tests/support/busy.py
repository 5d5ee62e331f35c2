"""A gateway with everything to do: models on engines of three kinds, under a load of talk, thoughts, calls whole and damaged,
answers cut short, and clients that are slow, leave, or ask for what is not. One engine breaks answers off, one fails some, one
is gone, SGLang's damages half of them, and one tells of its cache; an exporter tells of two GPUs.

For what reads metrics: whatever is counted of requests, engines and the router has something to count.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from fakes.conforming import ConformingEngine, Load, ids_of, plain
from fakes.sglang import FakeSglang
from fakes.telling import Telling
from fakes.trtllm import FakeTrtLlm
from fakes.vllm import FakeVllm
from support.dcgm import PATH, FakeGpu, says
from support.gateway import Served, serving, tiny_model
from support.profiles import checked, profile_of, written
from support.scripted_engine import ScriptedEngine, Seen, Step

from gateway.settings import Settings

THINK, THOUGHT, CALL, CALLED = 5, 6, 7, 8  # <think>, </think>, <tool_call>, </tool_call>
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
WHOLE: Sequence[Sequence[int]] = (
    ids_of("It is done, and everything that was asked for is there."),
    [THINK, *ids_of("Which of the files is it?"), THOUGHT, *ids_of("\n\nThe second.")],
    [CALL, *ids_of('\n{"name": "look", "arguments": {"at": "a.py"}}\n'), CALLED],
)
DAMAGED: Sequence[Sequence[int]] = (
    [CALL, *ids_of('\n{"name": "look", "arguments": {"at": }}\n'), CALLED],  # no JSON
    [CALL, *ids_of('\n{"name": "unheard_of", "arguments": {}}\n'), CALLED],
)
NOBODY = "http://127.0.0.1:9"  # refuses connections
CLIENTS = 6


@contextlib.asynccontextmanager
async def busy(folder: Path, **sections: Any) -> AsyncIterator[Served]:
    """The gateway, with the load on it until the end. Models: `m` on engines a, b, broken and gone, `n` on c, `o` on telling."""
    telling = Telling(folder / "events")
    engines: dict[str, ConformingEngine] = {
        "a": FakeVllm(),
        "b": FakeSglang(incremental=False),
        "broken": FakeVllm(),
        "c": FakeTrtLlm(),
        "telling": telling,
    }
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(telling.stops)
        for number, engine in enumerate(engines.values()):
            await stack.enter_async_context(engine.running())
            engine.says = _saying(number, damaged=0.5 if isinstance(engine, FakeSglang) else 0.1)
            engine.load = Load(running=2, waiting=1, kv_usage=0.2 * (number + 1))
        engines["broken"].script = _breaking(engines["broken"])
        engines["c"].script = _failing(engines["c"].script)
        exporter = await stack.enter_async_context(ScriptedEngine().running())
        says(exporter, [FakeGpu(0, "GPU-0"), FakeGpu(1, "GPU-1")])
        settings = _settings(engines, telling, folder, sections)
        served = await stack.enter_async_context(serving(settings, gpu_metrics=f"{exporter.url}{PATH}"))
        load = [asyncio.create_task(_client(served, number)) for number in range(CLIENTS)]
        try:
            yield served
        finally:
            for task in load:
                task.cancel()
            ended = await asyncio.gather(*load, return_exceptions=True)
            assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []


def _settings(engines: dict[str, ConformingEngine], telling: Telling, folder: Path, sections: dict[str, Any]) -> Settings:
    kinds = {"a": "vllm", "b": "sglang", "broken": "vllm", "c": "trtllm", "telling": "vllm"}
    places: dict[str, dict[str, Any]] = {
        name: {"id": name, "url": each.url, "kind": kinds[name], "weights": "W"} for name, each in engines.items()
    }
    places["a"]["gpus"] = ["0", "1"]
    places["telling"]["kv_events"] = telling.entry()
    places["gone"] = {"id": "gone", "url": NOBODY, "kind": "vllm"}
    source = tiny_model("full")
    about = {"source": str(source), "profile": written(checked(profile_of(source)), folder)}
    models = [
        {"name": "m", **about, "engines": [places[name] for name in ("a", "b", "broken", "gone")]},
        {"name": "n", **about, "engines": [places["c"]]},
        {"name": "o", **about, "engines": [places["telling"]]},
    ]
    server = {"port": 0, "admin_port": 0, "drain_s": 1, **sections.pop("server", {})}
    return Settings.model_validate({"server": server, "limits": {"render_workers": 0}, "models": models, **sections})


def _saying(seed: int, damaged: float) -> Callable[[list[int]], Sequence[int]]:
    """Something each time, so often a damaged call."""
    chance = random.Random(seed)
    return lambda _prompt: chance.choice(DAMAGED if chance.random() < damaged else WHOLE)


def _breaking(engine: ConformingEngine) -> Callable[[Seen], Sequence[Step]]:
    """One in four answers breaks off."""
    chance, whole = random.Random(0), engine.script

    def script(seen: Seen) -> Sequence[Step]:
        engine.cut_after = 3 if chance.random() < 0.25 else None
        return whole(seen)

    return script


def _failing(whole: Callable[[Seen], Sequence[Step]]) -> Callable[[Seen], Sequence[Step]]:
    """One in twenty answers is an error."""
    chance = random.Random(0)
    return lambda seen: plain(500, {"error": {"message": "out of memory"}}) if chance.random() < 0.05 else whole(seen)


async def _client(served: Served, number: int) -> None:
    """One talk of ten turns after another: each turn sends all that came before. Every fourth request is bounded tightly, every
    seventh given up, every ninth read slowly, every eleventh wrong."""
    chance, turns = random.Random(number), 0
    messages: list[dict[str, Any]] = []
    while True:
        turns += 1
        messages = [*(messages if turns % 10 else []), {"role": "user", "content": f"{number} {turns} {'and then ' * 20}"}]
        body = {"model": chance.choice("mmno"), "messages": messages, "tools": TOOLS, "stream": turns % 3 == 0}
        body["max_tokens"] = -1 if turns % 11 == 0 else 8 if turns % 4 == 0 else 200
        with contextlib.suppress(httpx.HTTPError):
            await _ask(served, body, leaves=turns % 7 == 0, slow=turns % 9 == 0)
        await asyncio.sleep(0.02)


async def _ask(served: Served, body: dict[str, Any], *, leaves: bool, slow: bool) -> None:
    async with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if leaves:
            return
        async for _ in answer.aiter_bytes():
            await asyncio.sleep(0.05 if slow else 0)
