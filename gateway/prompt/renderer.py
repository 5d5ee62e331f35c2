"""The heavy half of making a prompt: the template's text and its token ids.

Invariant: the same draft gives the same rendering (but for the date, where the template asks for it), here and in a process of
its own: a `Draft` is plain JSON values, and so is what comes of it. No BOS is added: it is in the text where the template writes
it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

from gateway.errors import BadRequest, ContextTooLong
from gateway.prompt.blame import blamed
from gateway.prompt.model_files import DEFAULT, ModelFiles
from gateway.prompt.neutral import MarkedText, Places, Spellings, clients_own, unused_blank, unused_character, with_plain_marks
from gateway.prompt.proof import Claim, proved
from gateway.prompt.segments import Segments, cut_tokens
from gateway.prompt.template import ChatTemplate, Stopped
from gateway.prompt.turn_end import turn_tokens

ControlTokens = Literal["text", "special"]
_CLOCK = "strftime_now"


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be rendered: `template` is the name of one of the model's, `variables` are plain JSON values.

    What cannot fit into `context_tokens` is not tokenised. With `continues` the text ends where the last message's content does,
    blanks at its end included where the template shows them. `claims` are what the text must show of the client's words. `steps`
    are the template's limit, in place of its usual one.
    """

    template: str
    variables: Mapping[str, Any]
    context_tokens: int | None = None
    continues: bool = False
    claims: tuple[Claim, ...] = ()
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Rendering:
    """`text` and `ids` say the same, but for `lost_bytes` of the text that no token of the vocabulary holds, and for what of the
    text is no token though it spells one, where a client wrote it: `marked` says that there may be such places.
    `left_out` are notes on what the text shows in part. `tokenize_s` is how long it took to make the ids, in seconds; None where
    there is no clock."""

    text: str
    ids: tuple[int, ...]
    lost_bytes: int = 0
    marked: bool = False
    left_out: tuple[str, ...] = ()
    tokenize_s: float | None = field(default=None, compare=False)


class Renderer:
    """A model's templates and tokenizer. Calls may come from several threads where `guard`, a lock, keeps its cache whole.

    `clock` tells templates the date; `seconds`, which only grows, holds each render to its time; by `timer` it is told how long
    ids took to make. `tokenised_whole` says why
    prompts are not tokenised in segments, and is empty where they are. `control_tokens` says what those are that a client's text
    spells: text, or the tokens themselves (`special`). `controls` are the tokens meant, none with `special`. `conflicts`: where
    the model's files contradict each other or the template.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        clock: Callable[[], datetime],
        seconds: Callable[[], float] | None = None,
        timer: Callable[[], float] | None = None,
        guard: AbstractContextManager[object] | None = None,
        control_tokens: ControlTokens = "text",
    ) -> None:
        """Raises ModelFileError for a template that does not compile."""
        self._clock = clock
        self._timer = timer
        self._tokenizer = files.tokenizer
        self._specials = files.specials
        self.templates: Mapping[str, ChatTemplate] = MappingProxyType(
            {name: ChatTemplate(source, clock, seconds=seconds) for name, source in files.templates.items()}
        )
        written = self._written()
        self.conflicts = (*files.conflicts, *_bos_conflict(files.bos, written))
        cuts, self.tokenised_whole = cut_tokens(files.tokenizer.added, written)
        self._segments = Segments(files.tokenizer, cuts, guard=guard) if cuts else None
        self.controls = self._control_tokens() if control_tokens == "text" else frozenset()
        self._spellings = Spellings(self.controls) if self.controls else None
        self._marked = MarkedText(files.tokenizer, self.controls)

    def render(self, draft: Draft) -> Rendering:
        """Raises BadRequest where the template refuses, or reads control tokens in a way that marked text cannot show, Stopped,
        which is one, where it is at a limit, and ContextTooLong, told from the text's length alone."""
        given = {**draft.variables, _CLOCK: self._clock().strftime}  # both renders have the same time
        try:
            text = self._drafted(draft, given)
        except Stopped:
            raise
        except BadRequest as error:
            raise blamed(error, draft.variables, lambda fewer: self._drafted(draft, fewer)) from None
        self._refuse_over(draft.context_tokens, text)
        left_out = proved(text, draft.claims)
        lost = len(self._tokenizer.lost(text))
        places = self._spellings.places(text) if self._spellings is not None else None
        if places is None or not places.touch(_clients_values(given)):
            ids, took_s = self._timed(lambda: self._encoded(text))
            return Rendering(text, ids, lost, left_out=left_out, tokenize_s=took_s)
        mark = unused_character([given, text])
        marked = self._marked_text(draft, given, places, mark, text)
        ids, took_s = self._timed(lambda: self._encoded_marked(marked, mark))
        return Rendering(text, ids, lost, True, left_out, took_s)

    def _timed(self, encode: Callable[[], tuple[int, ...]]) -> tuple[tuple[int, ...], float | None]:
        """The ids, and how long they took."""
        if self._timer is None:
            return encode(), None
        began_s = self._timer()
        return encode(), self._timer() - began_s

    def _encoded(self, text: str) -> tuple[int, ...]:
        return self._segments.encode(text) if self._segments is not None else self._tokenizer.encode(text)

    def _encoded_marked(self, marked: str, mark: str) -> tuple[int, ...]:
        if self._segments is not None:
            return self._segments.encode_marked(marked, mark, self._marked)
        return self._marked.encode(marked, mark)

    def _marked_text(self, draft: Draft, given: Mapping[str, Any], places: Places, mark: str, text: str) -> str:
        """The text with marks where it is the client's and spells a control token, or a part of one."""
        split = self._drafted(draft, clients_own(given, lambda value: places.marked(value, mark)))
        split = with_plain_marks(split, mark)
        if split.replace(mark, "") == text:
            return split
        between = unused_blank([given, text])
        doubled = self._drafted(draft, clients_own(given, lambda value: places.marked(value, mark, between)))
        doubled = with_plain_marks(with_plain_marks(doubled, mark), between)
        once = places.undoubled(doubled, between, mark)
        if once is not None and once.replace(mark, "") == text:
            return once
        example = places.example(_clients_values(given))
        raise BadRequest(
            "The text holds control tokens of the model, or parts of them, that its chat template looks for or changes, so that "
            f"they cannot be given as text: {example}.",
            param="messages",
        )

    def spells_controls(self, value: object) -> bool:
        """Whether a string of this JSON value spells a control token that is given as text."""
        return self._spellings is not None and self._spellings.spelled(value)

    def _refuse_over(self, context_tokens: int | None, text: str) -> None:
        if context_tokens is not None:
            refuse_over(context_tokens, self._tokenizer.least_tokens((text,)))

    def _drafted(self, draft: Draft, variables: Mapping[str, Any]) -> str:
        """The draft's text, of its variables or of these in their place."""
        return self._continued(draft, variables) if draft.continues else self._text(draft.template, variables, draft.steps)

    def _text(self, template: str, variables: Mapping[str, Any], steps: int | None = None) -> str:
        return self.templates[template].render({**variables, **self._specials}, steps)

    def _continued(self, draft: Draft, variables: Mapping[str, Any]) -> str:
        """The text up to the end of the last message's content, as transformers' `continue_final_message` cuts it: where the
        template takes blanks at the content's end away, the text has none there either."""
        *before, last = variables["messages"]
        content, end = last["content"], unused_character(variables)
        marked = {**variables, "messages": [*before, {**last, "content": f"{content}{end} "}]}
        text = self._text(draft.template, marked, draft.steps)
        at = text.rfind(end)
        if at < 0 or content.strip() not in text:
            raise BadRequest(
                "The model's chat template does not show the last message as it is, so that it cannot be continued.",
                param="continue_final_message",
            )
        return text[:at] if text.startswith(" ", at + 1) else text[:at].rstrip()

    def _written(self) -> str:
        """What the template itself writes around a user's message and the model's turn; nothing where it refuses."""
        try:
            return self._text(DEFAULT, {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": True})
        except BadRequest:
            return ""

    def _control_tokens(self) -> frozenset[str]:
        """The tokens that the vocabulary calls so, and those that part turns in the template: some vocabularies have these among
        the tokens that text may hold. One of a single character has no inside to mark."""

        def render(messages: Sequence[Mapping[str, Any]], _tools: object) -> str:
            return self._text(DEFAULT, {"messages": messages, "add_generation_prompt": True})

        added = self._tokenizer.added
        controls = {token.text for token in added if token.special} | turn_tokens(render, [token.text for token in added])
        return frozenset(text for text in controls if len(text) > 1)


def _clients_values(variables: Mapping[str, Any]) -> list[Any]:
    values: list[Any] = []
    clients_own(variables, values.append)
    return values


def _bos_conflict(bos: str | None, written: str) -> tuple[str, ...]:
    if bos is None or not written or written.startswith(bos):
        return ()
    return (f"The files want {bos} before each prompt, but the chat template does not write it: it is left out.",)


def refuse_over(context_tokens: int, least_tokens: int) -> None:
    """An answer needs one token of the context at the least."""
    if least_tokens >= context_tokens:
        raise ContextTooLong(least_tokens, context_tokens, at_least=True)
