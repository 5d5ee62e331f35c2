"""How other routers decide, written anew from what is published of them, with their defaults.

They are told apart from the originals by `_like`: none of their code is here, and what they poll or subscribe to comes without a
delay. Sizes that they count in characters or in smaller blocks are brought to the trace's blocks.
"""

import random
from collections import OrderedDict
from collections.abc import Sequence

from lab.simulate.model import EngineModel
from lab.simulate.policies import LeastOutstanding, Truth, Usage
from lab.traces import Prompt, shared

_CHARACTERS_A_TOKEN = 4


class Shadow:
    """What a router believes that one engine holds: the blocks that it sent there last, at most so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached(self, path: Sequence[int]) -> int:
        """How many of a path's blocks, from its start, it holds."""
        return shared(path, self._blocks)

    def sent(self, path: Sequence[int]) -> None:
        """A prompt went there."""
        for block in reversed(path):  # its beginning last: the end of a prompt goes before it
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)


class _Shadowed(LeastOutstanding):
    """A policy that keeps a shadow of every engine."""

    def __init__(self, truth: Truth, model: EngineModel, rng: random.Random) -> None:
        super().__init__(truth, model, rng)
        self.shadows = [Shadow(self.size()) for _ in range(truth.engines)]

    def size(self) -> int:
        """Blocks of a shadow: a tree of 2^26 characters an engine."""
        return (1 << 26) // (_CHARACTERS_A_TOKEN * self.model.block_tokens)

    def choose(self, prompt: Prompt, now_s: float) -> int | None:
        """What `pick` says, charged and noted."""
        engine = super().choose(prompt, now_s)
        if engine is not None:
            self.shadows[engine].sent(prompt.path)
        return engine


class SglangLike(_Shadowed):
    """The SGLang gateway's `cache_aware`: the shortest queue while the fleet is out of balance; else the engine with the longest
    match, where that is more than 0.3 of the prompt; else the shortest queue."""

    def pick(self, prompt: Prompt) -> int:
        """By the mode that the balance is in."""
        fewest, most = min(self.running), max(self.running)
        if most - fewest > 64 and most > 1.5 * fewest:
            return self.least()
        matches = [shadow.cached(prompt.path) for shadow in self.shadows]
        best = max(matches)
        if prompt.path and best > 0.3 * len(prompt.path):
            return matches.index(best)
        return self.least()


class LlmdLike(_Shadowed):
    """llm-d's approximate scorers, each 0 to 1: the matched share of the prompt (weight 3), the queue between the longest and the
    shortest (2), the free share of the KV blocks (2). It matches 131,072 tokens at most; its shadows have the engine's size."""

    def size(self) -> int:
        """Blocks of a shadow: what the engine says that it has."""
        return self.model.blocks

    def pick(self, prompt: Prompt) -> int:
        """The highest sum."""
        path = prompt.path[: 131_072 // self.model.block_tokens]
        queues = [self.truth.waiting(engine) for engine in range(self.truth.engines)]
        longest, spread = max(queues), max(queues) - min(queues)

        def score(engine: int) -> float:
            matched = self.shadows[engine].cached(path) / max(len(prompt.path), 1)
            queue = (longest - queues[engine]) / spread if spread else 1.0
            return 3 * matched + 2 * queue + 2 * (1 - self.truth.kv_usage(engine))

        return max(self.shuffled(), key=score)


class DynamoLike(LeastOutstanding):
    """Dynamo's KV router: fewest blocks, those to be prefilled on the engine with this prompt's own, less what its cache holds,
    and those of the requests that it answers. It knows the true caches, as by events."""

    def __init__(self, truth: Truth, model: EngineModel, rng: random.Random) -> None:
        super().__init__(truth, model, rng)
        self._prefill = [0] * truth.engines
        self._active = [0] * truth.engines
        self._charged: dict[int, int] = {}

    def pick(self, prompt: Prompt) -> int:
        """The lowest sum, its blocks charged."""
        blocks = self.model.blocks_for(prompt.tokens)
        uncached = [blocks - self.truth.cached_blocks(engine, prompt.path) for engine in range(self.truth.engines)]
        engine = min(self.shuffled(), key=lambda each: self._prefill[each] + uncached[each] + self._active[each] + blocks)
        self._charged[prompt.id] = uncached[engine]
        self._prefill[engine] += uncached[engine]
        self._active[engine] += blocks
        return engine

    def first_token(self, prompt: Prompt, engine: int, now_s: float) -> None:
        """Its prefill is done."""
        self._prefill[engine] -= self._charged.pop(prompt.id)

    def finished(self, prompt: Prompt, engine: int, usage: Usage, now_s: float) -> None:
        """Its blocks are free."""
        super().finished(prompt, engine, usage, now_s)
        self._active[engine] -= self.model.blocks_for(prompt.tokens)


class LmetricLike(_Shadowed):
    """LMetric: least uncached tokens times requests, this one included; the match is that of an approximate tree."""

    def pick(self, prompt: Prompt) -> int:
        """The least product; of equals, the fewest requests."""

        def product(engine: int) -> tuple[int, int]:
            cached = self.shadows[engine].cached(prompt.path) * self.model.block_tokens
            return max(prompt.tokens - cached, 0) * (self.running[engine] + 1), self.running[engine]

        return min(self.shuffled(), key=product)


class LmetricPrecise(LeastOutstanding):
    """LMetric as its paper has it: the prefill that is pending on the engine with this prompt's own, times requests, with the
    true caches."""

    def __init__(self, truth: Truth, model: EngineModel, rng: random.Random) -> None:
        super().__init__(truth, model, rng)
        self._pending = [0] * truth.engines
        self._charged: dict[int, int] = {}

    def pick(self, prompt: Prompt) -> int:
        """The least product, its tokens charged."""
        block = self.model.block_tokens
        engines = range(self.truth.engines)
        uncached = [max(prompt.tokens - self.truth.cached_blocks(each, prompt.path) * block, 1) for each in engines]
        engine = min(self.shuffled(), key=lambda each: (self._pending[each] + uncached[each]) * (self.running[each] + 1))
        self._charged[prompt.id] = uncached[engine]
        self._pending[engine] += uncached[engine]
        return engine

    def first_token(self, prompt: Prompt, engine: int, now_s: float) -> None:
        """Its prefill is done."""
        self._pending[engine] -= self._charged.pop(prompt.id)
