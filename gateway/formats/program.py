"""What a family's description compiles to: one search for markers a state.

Invariant: compiled once, shared by all parsers of the format, never changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.formats.cursor import Matcher
from gateway.formats.spec import Block, FormatSpec

DEFAULT_HELD_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Program:
    """The searches. `named` are the markers, none of them a call's, that a tool's name may stand before; `thought_openers` and
    `thought_closers` begin and end a thought; `openers` begin a block, with whether they are the codec's own, its being left out;
    `at_start` finds the `starters` too, which do so where the answer begins; `held_chars` caps what is held back: a value that is
    no string, a call in a thought."""

    spec: FormatSpec
    in_content: Matcher
    in_thought: Matcher
    in_damage: Matcher
    at_start: Matcher
    named: frozenset[str]
    thought_openers: tuple[str, ...]
    thought_closers: tuple[str, ...]
    openers: Mapping[str, tuple[Block, bool]]
    starters: Mapping[str, Block]
    held_chars: int


def compile_program(spec: FormatSpec, held_chars: int = DEFAULT_HELD_CHARS) -> Program:
    """The automaton of one family."""
    openers = {block.opener.text: (block, False) for block in spec.blocks}
    ends = [block.closer.text for block in spec.blocks if block.closer]
    bare = {text: (block, True) for block in spec.blocks for text in block.codec.bare_openers}
    thinks = spec.reasoning
    pairs = thinks.pairs if thinks else ()
    closers = tuple(closer.text for _, closer in pairs)
    thought = [*closers, *(marker.text for marker in thinks.ended_by), *openers] if thinks else []
    starters = {block.starter: block for block in spec.blocks if block.starter}
    content = [*(marker.text for marker in spec.markers), *bare]
    return Program(
        spec=spec,
        in_content=Matcher(content, noted=openers),
        in_thought=Matcher(thought),
        in_damage=Matcher([*openers, *ends]),
        at_start=Matcher([*content, *starters], noted=openers),
        named=frozenset(marker.text for marker in spec.named),
        thought_openers=tuple(opener.text for opener, _ in pairs),
        thought_closers=closers,
        openers=bare | openers,
        starters=starters,
        held_chars=held_chars,
    )
