"""What a routing policy is to the simulation, and the policies that know no prefixes."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from lab.simulate.model import EngineModel
from lab.traces import Prompt


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine says at the end of an answer."""

    cached_tokens: int
    output_tokens: int


class Policy(Protocol):
    """Sends prompts to engines, which it calls by their numbers. It is told of its own requests' first tokens and ends, as a
    gateway is, and keeps its own books by that: `choose` charges what it chooses. Of those that it lets wait, `released` gives
    each within `wait_s` seconds."""

    wait_s: float

    def choose(self, prompt: Prompt, now_s: float) -> int | None:
        """The engine for this prompt; None: it waits here until `released`."""
        ...

    def first_token(self, prompt: Prompt, engine: int, now_s: float) -> None:
        """A prompt's first token came."""
        ...

    def finished(self, prompt: Prompt, engine: int, usage: Usage, now_s: float) -> None:
        """A prompt's answer ended."""
        ...

    def released(self, now_s: float) -> Sequence[tuple[Prompt, int]]:
        """Those that waited here and go now, with their engines. Asked whenever a first token or an
        end has come, and when one has waited `wait_s`."""
        ...


class Truth(Protocol):
    """What engines could say of themselves, without a delay: kinder to a policy than any metric or event is."""

    engines: int

    def cached_blocks(self, engine: int, path: Sequence[int]) -> int:
        """How many blocks of this prompt it holds."""
        ...

    def waiting(self, engine: int) -> int:
        """How many requests wait in its queue."""
        ...

    def kv_usage(self, engine: int) -> float:
        """The share of its blocks that requests hold."""
        ...


Make = Callable[[Truth, EngineModel, random.Random], Policy]


class RoundRobin:
    """Each engine in its turn."""

    wait_s = 0.0

    def __init__(self, truth: Truth, model: EngineModel, rng: random.Random) -> None:
        self._engines = truth.engines
        self._next = 0

    def choose(self, prompt: Prompt, now_s: float) -> int | None:
        """The next."""
        engine = self._next
        self._next = (engine + 1) % self._engines
        return engine

    def first_token(self, prompt: Prompt, engine: int, now_s: float) -> None:
        """Nothing to learn."""

    def finished(self, prompt: Prompt, engine: int, usage: Usage, now_s: float) -> None:
        """Nothing to learn."""

    def released(self, now_s: float) -> Sequence[tuple[Prompt, int]]:
        """None wait."""
        return ()


class Session(RoundRobin):
    """One engine for a session, by rendezvous hashing: who loses its engine moves, nobody else."""

    def choose(self, prompt: Prompt, now_s: float) -> int | None:
        """The engine that hashes highest with the session."""
        return max(
            range(self._engines), key=lambda engine: blake2b(f"{prompt.session}/{engine}".encode(), digest_size=8).digest()
        )


class LeastOutstanding:
    """The engine with the fewest of our requests; of several, any. Others build on its count."""

    wait_s = 0.0

    def __init__(self, truth: Truth, model: EngineModel, rng: random.Random) -> None:
        self.truth = truth
        self.model = model
        self.rng = rng
        self.running = [0] * truth.engines

    def choose(self, prompt: Prompt, now_s: float) -> int | None:
        """What `pick` says, charged."""
        engine = self.pick(prompt)
        self.running[engine] += 1
        return engine

    def pick(self, prompt: Prompt) -> int:
        """The engine, without a charge."""
        return self.least()

    def least(self) -> int:
        """An engine with the fewest requests."""
        fewest = min(self.running)
        return self.rng.choice([engine for engine, running in enumerate(self.running) if running == fewest])

    def shuffled(self) -> list[int]:
        """All engines, so that the first of equals is any."""
        return self.rng.sample(range(self.truth.engines), self.truth.engines)

    def first_token(self, prompt: Prompt, engine: int, now_s: float) -> None:
        """Nothing to learn."""

    def finished(self, prompt: Prompt, engine: int, usage: Usage, now_s: float) -> None:
        """Takes the charge back."""
        self.running[engine] -= 1

    def released(self, now_s: float) -> Sequence[tuple[Prompt, int]]:
        """None wait."""
        return ()
