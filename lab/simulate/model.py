"""How long an engine's steps take, and what it can hold: the parameters of a replica, and its time in closed form."""

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Literal

Reserve = Literal["prompt", "output"]


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One replica that batches continuously. A step takes, in seconds,

        step_s + decode_s x answers + context_s x tokens that these read + (prefill_s + attention_s x context) x tokens prefilled

    and holds at most `step_tokens` tokens, prefilled ones in chunks, and `most_running` requests. It has room for `blocks` blocks
    of `block_tokens` tokens. `reserve`: an admitted request gets blocks for its `prompt` alone, and where they run out later the
    newest is put back and computed again (vLLM, SGLang); or for all of its `output` too (TensorRT-LLM's cautious mode).

    The defaults are those of a 70B model on four GPUs of the H100's class: about 12,800 tokens of prefill a second, 1,000 blocks
    in its own memory or 4,000 with a host's.
    """

    step_s: float = 0.018
    decode_s: float = 1.2e-4
    context_s: float = 3.4e-8
    prefill_s: float = 7.8e-5
    attention_s: float = 1.5e-9
    step_tokens: int = 8192
    most_running: int = 256
    blocks: int = 4000
    block_tokens: int = 512
    reserve: Reserve = "prompt"

    def __post_init__(self) -> None:
        if min(self.step_s, self.decode_s, self.context_s, self.prefill_s, self.attention_s) < 0:
            raise ValueError("a time below zero")
        if self.step_s + self.decode_s <= 0:
            raise ValueError("a step of an answer takes no time")
        if min(self.step_tokens, self.most_running, self.blocks, self.block_tokens) < 1:
            raise ValueError("no room for a request")

    def faster(self, factor: float) -> "EngineModel":
        """The same, whose every step takes one `factor`-th of the time."""
        return replace(
            self,
            step_s=self.step_s / factor,
            decode_s=self.decode_s / factor,
            context_s=self.context_s / factor,
            prefill_s=self.prefill_s / factor,
            attention_s=self.attention_s / factor,
        )

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens // self.block_tokens)

    def prefill_work_s(self, tokens: int, context: int) -> float:
        """The part of a step that prefills so many tokens behind a context."""
        return self.prefill_s * tokens + self.attention_s * tokens * (context + tokens / 2)

    def decode_step_s(self, answers: int, context: int) -> float:
        """A step of so many answers that read so many tokens together, without its prefill."""
        return self.step_s + self.decode_s * answers + self.context_s * context


@dataclass(frozen=True, slots=True)
class Leap:
    """Steps in which nothing changes but that every answer grows by a token: the first takes `first_s`, each `growth_s` more than
    the one before, which is no more than `first_s`: an answer has read a token at least."""

    start_s: float
    first_s: float
    growth_s: float
    steps: int

    def after(self, steps: int) -> float:
        """When so many of them are done."""
        return self.start_s + (steps * self.first_s + self.growth_s * (steps * (steps - 1) / 2))

    @property
    def end_s(self) -> float:
        """When all are done."""
        return self.after(self.steps)

    def steps_until(self, moment_s: float) -> int:
        """After how many steps the engine looks at its queue first, at this moment or later; at least the one it is in."""
        gone, half = moment_s - self.start_s, self.growth_s / 2
        if gone <= 0:
            return 1
        linear = self.first_s - half
        guess = gone / self.first_s if half == 0 else 2 * gone / (linear + sqrt(linear * linear + 4 * half * gone))
        steps = min(max(1, ceil(guess)), self.steps)
        while steps > 1 and self.after(steps - 1) >= moment_s:
            steps -= 1
        while steps < self.steps and self.after(steps) < moment_s:
            steps += 1
        return steps
