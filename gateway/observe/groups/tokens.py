"""Tokens of prompts and answers."""

from gateway.events import NO_ENGINE, Finished
from gateway.observe.group import Group, Known, Pair, Served, Starts
from gateway.observe.series import PAIR, Counter


class Tokens(Group):
    """By the engine's count where it gives one, else by ours."""

    def __init__(self, _: Known) -> None:
        self._prompt = Counter("interlock_prompt_tokens_total", "Prompt tokens, cached ones included.", PAIR)
        self._completion = Counter("interlock_completion_tokens_total", "Tokens of the answers given, reasoning included.", PAIR)
        self._cached = Counter("interlock_cached_prompt_tokens_total", "Prompt tokens that the engine had in its cache.", PAIR)
        self._reasoning = Counter("interlock_reasoning_tokens_total", "Tokens of the answers given that are thoughts.", PAIR)
        families = (self._prompt, self._completion, self._cached, self._reasoning)
        super().__init__("Tokens", families, {Finished: self._finished})

    def starts(self, served: Served, engine: str) -> Starts:
        """All."""
        for counter in (self._prompt, self._completion, self._cached, self._reasoning):
            yield counter, [(served.model, engine)]

    def _finished(self, pair: Pair, event: Finished) -> None:
        if pair[1] == NO_ENGINE:
            return
        usage = event.usage
        self._prompt.add(pair, usage.prompt_tokens)
        self._completion.add(pair, usage.completion_tokens)
        self._cached.add(pair, usage.cached_tokens)
        self._reasoning.add(pair, usage.reasoning_tokens)


GROUP = Tokens
