"""What a format is to the rest of the gateway. The machine behind it is `gateway.formats.machine`.

Invariant: a parser never raises, whatever the model wrote, and any split of the same output gives the same deltas once neighbours
are merged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.request import Delta, FinishReason, ToolSpec, Usage


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """What a parser must know of its request.

    `prompt_tail` is the end of the rendered prompt, from the last turn's header on: it decides whether the template opened the
    thought. `new_call_id` makes call ids, for families without a rule of their own. `marker_ids` maps the text of each marker
    that is one token to its id: given, the parser is fed tokens and only those ids are these markers. `hold_arguments` holds a
    call's deltas back until it is whole: an answer that is given whole needs it, since only then is the text of a call that the
    token limit cut content, as nothing of the call was sent before. Without `calls` (`tool_choice: none`) what would be a call is
    content as the model wrote it. `stops` are the texts of the tokens at which the engine stops: the output ends before one.
    """

    tools: tuple[ToolSpec, ...] = ()
    prompt_tail: str = ""
    new_call_id: Callable[[], str] = lambda: "call_0"
    marker_ids: Mapping[str, int] = field(default_factory=dict)
    hold_arguments: bool = False
    calls: bool = True
    stops: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How this format writes a call as `opener + {name_key: …, arguments_key: …} + closer`, for grammars and prompts."""

    opener: str
    closer: str
    separator: str
    name_key: str
    arguments_key: str


class Parser(Protocol):
    """One answer's parser."""

    @property
    def thinking(self) -> bool:
        """Whether what was read ends within a thought, and neither in what may be a marker nor in what may be a call."""

    def feed(self, text: str) -> list[Delta]:
        """The deltas that this text completes."""

    def feed_tokens(self, tokens: Sequence[tuple[int, str]]) -> list[Delta]:
        """As `feed`, where the engine gives ids: each token's id and the text that it completes (may be empty)."""

    def finish(self, reason: FinishReason, usage: Usage) -> list[Delta]:
        """The rest, ending with exactly one `Finish`: its reason is `tool_calls` where whole calls were made and the model
        stopped by itself, and `length` where it was cut."""


class Format(Protocol):
    """How a family of models writes reasoning and tool calls."""

    @property
    def name(self) -> str:
        """The canonical name in settings."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """What engines call the same format."""

    @property
    def visible(self) -> tuple[str, ...]:
        """Markers that may be special tokens: the engine must not hide them."""

    @property
    def call_syntax(self) -> CallSyntax | None:
        """Where calls are JSON in a wrapper; None for other codecs."""

    @property
    def spelled(self) -> tuple[str, ...]:
        """The text of every marker."""

    @property
    def thought_sign(self) -> str:
        """A text that every template of models that think in this format holds; empty where they do not think."""

    @property
    def thought_closer(self) -> str:
        """The text that ends a thought, after which the answer goes on; empty where the format has no thoughts."""

    def suffix_in(self, text: str) -> str:
        """The suffix that this format's tags have in a text; empty where they have none."""

    def reads_as(self, other: "Format", *, thoughts: bool) -> bool:
        """Whether the two differ in nothing but their names and, where that does not matter, their `thoughts`."""

    def open_thought(self, prompt_tail: str) -> str | None:
        """The text that closes the thought where the template has opened one: the model writes it before its answer."""

    def parser(self, options: ParseOptions) -> Parser:
        """A fresh parser for one answer."""
