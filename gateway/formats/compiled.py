"""A family as the rest of the gateway sees it: `gateway.formats.base.Format` over a compiled program."""

from dataclasses import dataclass, replace

from gateway.formats.base import CallSyntax, Format, ParseOptions, Parser
from gateway.formats.cursor import Cursor
from gateway.formats.harmony import ROLE, Harmony
from gateway.formats.machine import Machine
from gateway.formats.program import DEFAULT_HELD_CHARS, Program, compile_program
from gateway.formats.spec import FormatSpec
from gateway.formats.suffix import suffix_in


@dataclass(frozen=True, slots=True)
class CompiledFormat:
    """One format. `text_only` is it without its calls."""

    program: Program
    text_only: Program

    @property
    def name(self) -> str:
        """The canonical name in settings."""
        return self.program.spec.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """What engines call the same format."""
        return self.program.spec.aliases

    @property
    def visible(self) -> tuple[str, ...]:
        """Markers that may be special tokens: the engine must not hide them."""
        spec = self.program.spec
        return (*(marker.text for marker in spec.markers if marker.token), *spec.tokens)

    @property
    def spelled(self) -> tuple[str, ...]:
        """The text of every marker."""
        return tuple(marker.text for marker in self.program.spec.markers)

    @property
    def thought_sign(self) -> str:
        """A text that every template of models that think in this format holds; empty where they do not think."""
        spec = self.program.spec
        if spec.headers is not None:
            return spec.headers.thoughts[0]
        if spec.reasoning is None:
            return ""
        # An end that every message has tells nothing.
        return (spec.reasoning.opener if spec.reasoning.repeats else spec.reasoning.closer).text

    @property
    def thought_closer(self) -> str:
        """The text that ends a thought, after which the answer goes on; empty where the format has no thoughts."""
        spec = self.program.spec
        if spec.headers is not None:
            return f"{spec.headers.ends[0].text}{spec.headers.start.text}{ROLE}"
        return spec.reasoning.closer.text if spec.reasoning is not None else ""

    def suffix_in(self, text: str) -> str:
        """The suffix that this format's tags have in a text; empty where they have none."""
        return suffix_in(self.program.spec, text)

    def reads_as(self, other: Format, *, thoughts: bool) -> bool:
        """Whether the two differ in nothing but their names and, where that does not matter, their `thoughts`."""
        if not isinstance(other, CompiledFormat):
            return False
        one, another = (_nameless(each.program.spec, thoughts=thoughts) for each in (self, other))
        return one == another

    @property
    def call_syntax(self) -> CallSyntax | None:
        """Where calls are JSON in a wrapper; None for other codecs."""
        return self.program.spec.call_syntax

    def open_thought(self, prompt_tail: str) -> str | None:
        """The text that closes the thought where the template has opened one: the model writes it before its answer."""
        thinks = self.program.spec.reasoning
        return thinks.closing(prompt_tail) if thinks and thinks.start(prompt_tail)[0] == "inside" else None

    def parser(self, options: ParseOptions) -> Parser:
        """A fresh parser for one answer."""
        return automaton(self.program if options.calls else self.text_only, options)


def _nameless(spec: FormatSpec, *, thoughts: bool) -> FormatSpec:
    return replace(spec, name="", aliases=(), call_syntax=None, reasoning=spec.reasoning if thoughts else None)


def automaton(program: Program, options: ParseOptions, cursor: Cursor | None = None) -> Parser:
    """A fresh parser over a compiled program."""
    kind = Machine if program.spec.headers is None else Harmony
    return kind(program, options, cursor)


def compile_format(spec: FormatSpec, held_chars: int = DEFAULT_HELD_CHARS) -> CompiledFormat:
    """The format that a family's file describes."""
    silent = replace(spec, blocks=(), call_syntax=None)
    return CompiledFormat(compile_program(spec, held_chars), compile_program(silent, held_chars))
