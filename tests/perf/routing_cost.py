"""What a routing decision costs: CPU of the calling thread, and memory of the index. A part of perf.bench_routing.

The prompts are turns of conversations that the engines hold most of; the keys of a turn are counted apart from the choice.
"""

import gc
import os
import random
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from gateway.routing.chain import ChainCache, packed, token_chain
from gateway.routing.choice import Query, Tuning
from gateway.routing.prefix import PrefixIndex
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView

CHUNK = 128
GOALS_US = {8: (400, 1000), 64: (1500, 1500)}  # engines: p50, p99
GOAL_MIB = 350
KEY_BITS = 56
TOKENS, ROUNDS, ENTRIES = 32_768, 400, 2_000_000
FLAT_ENGINES, FLAT_TOKENS = 32, 16 << 20  # each engine's memory is twice its part of the budget
FLAT_PER_S, HOUR_S, LOOK_S = 16.0, 3600.0, 300.0
FLAT = 1.03  # the most memory of what is left of the hour, against that when the index had been full for a while


def cpu_us(call: Callable[[], object]) -> float:
    """Microseconds of CPU for one call."""
    begun = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - begun) / 1e3


def part(values: list[float], share: float) -> float:
    """A quantile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Conversations:
    """Some that grow by 600 tokens a turn around a length, over a fleet that they warm."""

    def __init__(self, engines: int, tokens: int) -> None:
        self.chance = random.Random(1)
        self.view = FleetView(tuple(EngineView(f"e{number}", ready=True) for number in range(engines)))
        self.router = Router(Tuning(chunk_tokens=CHUNK, hold_s=None), self.chance)
        self.cache = ChainCache(CHUNK, 64 << 20)
        self.now_s = 0.0
        self.turns = 0
        self.tokens = tokens
        self.prompts = [self._ids(tokens - 3000) for _ in range(4 * engines if engines < 32 else 64)]

    def _ids(self, count: int) -> list[int]:
        return [self.chance.randrange(150_000) for _ in range(count)]

    def turn(self) -> tuple[float, float, float, float]:
        """Microseconds of CPU: packing the ids, the keys of the turn, those of an unknown prompt, and the choice."""
        at = self.turns % len(self.prompts)
        self.turns += 1
        self.now_s += 0.3
        if len(self.prompts[at]) > self.tokens:
            self.prompts[at] = self._ids(self.tokens - 3000)
        self.prompts[at] = ids = self.prompts[at] + self._ids(600)
        data = packed(ids)
        packing_us = cpu_us(lambda: packed(ids))
        cold_us = cpu_us(lambda: token_chain(data, CHUNK))
        keys: list[tuple[int, ...]] = []
        turn_us = cpu_us(lambda: keys.append(self.cache.chain(data)))
        query = Query(str(self.turns), keys[0], len(ids))
        choice_us = cpu_us(lambda: self.router.choose(query, self.view, self.now_s))
        self.router.first_token(query.request, self.now_s + 0.2)
        if self.turns > 16:
            self.router.finished(str(self.turns - 16), self.now_s, 300, len(ids) // 2)
        return packing_us, turn_us, cold_us, choice_us


def decisions(engines: int, tokens: int, rounds: int) -> bool:
    """Prints what a decision costs over a fleet; whether the goals are met."""
    load = Conversations(engines, tokens)
    for _ in range(2 * len(load.prompts)):
        load.turn()
    gc.freeze()
    packing, turn, cold, choice = zip(*(load.turn() for _ in range(rounds)), strict=True)
    both = [a + b for a, b in zip(turn, choice, strict=True)]
    p50, p99 = GOALS_US[engines]
    met = part(both, 0.5) < p50 and part(both, 0.99) < p99
    shown = [("choice", choice), ("keys of a turn", turn), ("keys of a new prompt", cold), ("packing", packing), ("both", both)]
    figures = ", ".join(f"{name} {part(list(values), 0.5):.0f} / {part(list(values), 0.99):.0f}" for name, values in shown)
    print(
        f"{engines} engines, {tokens} tokens, us p50 / p99: {figures}; goal of both {p50} / {p99}: {'met' if met else 'MISSED'}"
    )
    return met


def memory(entries: int) -> bool:
    """Prints what an entry of a full index takes, over 64 engines; whether it stays so while it turns over."""
    chance = random.Random(2)
    gc.collect()
    tracemalloc.start()
    index = PrefixIndex(entries)
    maps = [index.of(f"e{number}", entries) for number in range(64)]
    sizes = []
    for rounds in range(3):
        for number in range(entries // 256 + 64 if rounds == 0 else entries // 1024):
            each = maps[number % 64]
            keys = tuple(chance.getrandbits(KEY_BITS) for _ in range(256))
            each.touch(keys, index.stamp(float(number)))
            index.trim(each)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    most_mib = max(sizes) / 2**20 * (2_000_000 / entries)
    met = most_mib <= GOAL_MIB and len(index) <= entries
    each_b = max(sizes) / len(index)
    figures = f"index of {len(index)} entries: {each_b:.0f} B an entry, 2 M in {most_mib:.0f} MiB"
    print(f"{figures}; goal {GOAL_MIB}: {'met' if met else 'MISSED'}")
    return met


def resident_mib() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def hour() -> tuple[list[tuple[int, float]], int]:
    """An hour of prompts of 8k to 32k tokens, none like another, in the time of a simulation: entries and MiB every five minutes,
    and the keys that came."""
    chance, sizes, keys = random.Random(3), list[tuple[int, float]](), 0
    router = Router(Tuning(chunk_tokens=CHUNK, hold_s=None, index_entries=ENTRIES), chance)
    view = FleetView(tuple(EngineView(f"e{number:02}", ready=True) for number in range(FLAT_ENGINES)))
    for engine in view.engines:
        router.capacity(engine.id, FLAT_TOKENS)
    running: deque[tuple[str, int]] = deque()
    now_s, look_s = 0.0, LOOK_S
    while now_s < HOUR_S:
        now_s += chance.expovariate(FLAT_PER_S)
        tokens = chance.randrange(8 << 10, 32 << 10)
        data = chance.randbytes(7 * (tokens // CHUNK))
        chain = tuple(int.from_bytes(data[place : place + 7], "little") for place in range(0, len(data), 7))
        name = f"r{keys}"
        keys += len(chain)
        router.choose(Query(name, chain, tokens), view, now_s)
        running.append((name, tokens))
        if len(running) > 4 * FLAT_ENGINES:
            ended, length = running.popleft()
            router.first_token(ended, now_s)
            router.finished(ended, now_s, 300, 0 if length else None)
        if now_s >= look_s:
            look_s += LOOK_S
            sizes.append((router.entries, resident_mib()))
    return sizes, keys


def flat() -> list[str]:
    """Prints how the memory goes during that hour, in a process of its own; what is not as it should be."""
    with get_context("spawn").Pool(1) as pool:
        sizes, keys = pool.apply(hour)
    full = next((place for place, (entries, _) in enumerate(sizes) if entries >= 0.99 * ENTRIES), len(sizes))
    after = [mib for _, mib in sizes[full + 1 :]]
    most, turns = max(entries for entries, _ in sizes), keys / ENTRIES
    growth = max(after) / after[0] if after else 0.0
    shown = " ".join(f"{mib:.0f}" for _, mib in sizes)
    print(f"an hour of unique prompts, {turns:.1f} times the index: at most {most} entries of {ENTRIES}; MiB every 5 min {shown}")
    met = bool(after) and growth <= FLAT and most <= ENTRIES and turns >= 3
    told = f"once full, memory grew to {growth:.3f} of itself; goal {FLAT}: {'met' if met else 'MISSED'}"
    print(told)
    return [] if met else [told]


def measure() -> list[str]:
    """Prints what decisions and the index cost; what misses its goal."""
    missed = [f"a decision over {engines} engines" for engines in GOALS_US if not decisions(engines, TOKENS, ROUNDS)]
    if not memory(ENTRIES):
        missed.append("the memory of the index")
    return missed + flat()
