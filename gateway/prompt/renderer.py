"""The heavy half of making a prompt: the template's text and its token ids.

Invariant: the same draft gives the same rendering (but for the date, where the template asks for it), here and in a process of
its own: a `Draft` is plain JSON values, and so is what comes of it. No BOS is added: it is in the text where the template writes
it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from gateway.errors import BadRequest, ContextTooLong
from gateway.prompt.segments import Segments, cut_tokens
from gateway.prompt.source import DEFAULT, ModelFiles
from gateway.prompt.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be rendered: `template` is the name of one of the model's, `variables` are plain JSON values.

    What cannot fit into `context_tokens` is not tokenised. With `continues` the text ends where the last message's content does.
    """

    template: str
    variables: Mapping[str, Any]
    context_tokens: int | None = None
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Rendering:
    """`text` and `ids` say the same, but for `lost_bytes` of the text that no token of the vocabulary holds."""

    text: str
    ids: tuple[int, ...]
    lost_bytes: int = 0


class Renderer:
    """A model's templates and tokenizer. Calls may come from several threads where `guard`, a lock, keeps its cache whole.

    `clock` tells templates the date; `seconds`, which only grows, holds each render to its time. `tokenised_whole` says why
    prompts are not tokenised in segments, and is empty where they are.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        clock: Callable[[], datetime],
        seconds: Callable[[], float] | None = None,
        guard: AbstractContextManager[object] | None = None,
    ) -> None:
        """Raises ModelFileError for a template that does not compile."""
        self._tokenizer = files.tokenizer
        self._specials = files.specials
        self.templates: Mapping[str, ChatTemplate] = MappingProxyType(
            {name: ChatTemplate(source, clock, seconds=seconds) for name, source in files.templates.items()}
        )
        cuts, self.tokenised_whole = cut_tokens(files.tokenizer.added, self._written())
        self._segments = Segments(files.tokenizer, cuts, guard=guard) if cuts else None

    def render(self, draft: Draft) -> Rendering:
        """Raises BadRequest where the template refuses, and ContextTooLong, told from the text's length alone."""
        text = self._text(draft.template, draft.variables)
        if draft.context_tokens is not None:
            refuse_over(draft.context_tokens, self._tokenizer.least_tokens((text,)))
        ids = self._segments.encode(text) if self._segments is not None else self._tokenizer.encode(text)
        return Rendering(text, ids, len(self._tokenizer.lost(text)))

    def _text(self, template: str, variables: Mapping[str, Any]) -> str:
        return self.templates[template].render({**variables, **self._specials})

    def _written(self) -> str:
        """What the template itself writes around a user's message and the model's turn; nothing where it refuses."""
        try:
            return self._text(DEFAULT, {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True})
        except BadRequest:
            return ""


def refuse_over(context_tokens: int, least_tokens: int) -> None:
    """An answer needs one token of the context at the least."""
    if least_tokens >= context_tokens:
        raise ContextTooLong(least_tokens, context_tokens, at_least=True)
