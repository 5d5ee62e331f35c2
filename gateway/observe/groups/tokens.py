"""Tokens of prompts and answers, of each attempt that was answered: those of answers that were thrown away were made as well."""

from gateway.events import Generated
from gateway.observe.group import Group, Known, Pair, Served, Starts
from gateway.observe.series import PAIR, Counter


class Tokens(Group):
    """By the engine's count where it gives one, else by ours."""

    def __init__(self, _: Known) -> None:
        self._prompt = Counter(
            "interlock_prompt_tokens_total",
            "Prompt tokens of attempts that an engine began to answer, cached ones included.",
            PAIR,
        )
        self._completion = Counter("interlock_completion_tokens_total", "Tokens that engines made, reasoning included.", PAIR)
        self._cached = Counter(
            "interlock_cached_prompt_tokens_total",
            "Prompt tokens that the engine had in its cache; nothing of an engine that never said.",
            PAIR,
        )
        self._reasoning = Counter("interlock_reasoning_tokens_total", "Tokens that engines made that are thoughts.", PAIR)
        families = (self._prompt, self._completion, self._cached, self._reasoning)
        super().__init__("Tokens", families, {Generated: self._generated})

    def starts(self, served: Served, engine: str) -> Starts:
        """All but what is not known of every engine."""
        for counter in (self._prompt, self._completion, self._reasoning):
            yield counter, [(served.model, engine)]

    def _generated(self, pair: Pair, event: Generated) -> None:
        usage = event.made.usage
        self._prompt.add(pair, event.prompt_tokens)
        self._completion.add(pair, usage.completion_tokens)
        self._reasoning.add(pair, usage.reasoning_tokens)
        if event.cached_tokens is not None:
            self._cached.add(pair, event.cached_tokens)


GROUP = Tokens
