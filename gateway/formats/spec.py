"""What a family's file says: the declarative description that `gateway.formats.program` compiles.

Invariant: values only. A family is one `FormatSpec`; what cannot be said with these fields is a codec's task, never a family's.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.formats.base import CallSyntax
from gateway.formats.calls import Calls
from gateway.formats.cursor import Cursor
from gateway.request import FailureKind

Start = Literal["inside", "after", "unopened"]
IdPolicy = Literal["random", "native", "nine_alnum"]


@dataclass(frozen=True, slots=True)
class Marker:
    """A literal of the format. `token`: it is one entry of the family's vocabulary, so that its id may be the marker."""

    text: str
    token: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Where the thought is written. Characters of `trim` on either side of a marker are markup.

    The end of the prompt decides the start: after an open `opener` the answer begins inside the thought; after a closed one
    there is none; without either the model may open one itself, before anything else; with `repeats` after any marker. What
    `ended_by` names can only follow the thought: it ends one whose closer was left out. `others` are more pairs of markers that
    mean the same, of which the prompt chooses one.
    """

    opener: Marker
    closer: Marker
    trim: str = "\n"
    ended_by: tuple[Marker, ...] = ()
    repeats: bool = False
    others: tuple[tuple[Marker, Marker], ...] = ()

    @property
    def pairs(self) -> tuple[tuple[Marker, Marker], ...]:
        """Every opener with its closer."""
        return ((self.opener, self.closer), *self.others)

    def start(self, prompt_tail: str) -> tuple[Start, str]:
        """How the answer begins, and inside the thought what the prompt already says of it."""
        opener, _ = self._last_opened(prompt_tail)
        opened = prompt_tail.rfind(opener.text)
        closed = max(prompt_tail.rfind(closer.text) for _, closer in self.pairs)
        if opened > closed:
            return "inside", prompt_tail[opened + len(opener.text) :]
        return ("unopened" if closed < 0 else "after"), ""

    def closing(self, prompt_tail: str) -> str:
        """The text that closes the thought which the prompt opened last; the first of all where it opened none."""
        return self._last_opened(prompt_tail)[1].text

    def _last_opened(self, prompt_tail: str) -> tuple[Marker, Marker]:
        return max(self.pairs, key=lambda pair: prompt_tail.rfind(pair[0].text))


@dataclass(frozen=True, slots=True)
class Damage:
    """Why a block holds no call: it is text from its opener on. Markers count again from offset `resume` on."""

    kind: FailureKind
    offset: int
    resume: int


Progress = Literal["more", "done"] | Damage
"""What a reader's step came to: all text read and more needed; the block has ended; it cannot be read."""


class Reader(Protocol):
    """Reads one block, from after its opener, closer included, and tells `Calls` what it finds."""

    def step(self, cursor: Cursor) -> Progress:
        """Read what can be read. With `cursor.final`, "more" means that the block is not whole."""


class Codec(Protocol):
    """How the calls in a block are written."""

    @property
    def bare_openers(self) -> tuple[str, ...]:
        """Texts that begin a call even where the model left out the block's opener."""

    def begins(self, cursor: Cursor, at: int, names: frozenset[str]) -> bool | None:
        """Whether the bare opener, or the block's starter, at index `at` begins a call of one of these tools; None if more text
        must decide."""

    def reader(self, opener: str, closer: str, calls: Calls, bare: bool) -> Reader:
        """A reader for one block; `bare` if its opener was left out."""


@dataclass(frozen=True, slots=True)
class Block:
    """A place for calls. Without a `closer` the codec itself knows the end. `starter`: a text that begins one too, where the
    answer itself begins and the codec finds a call there; elsewhere, and where it finds none, it is text like any other. `told`:
    the opener is text too where the codec finds no call after it."""

    opener: Marker
    closer: Marker | None
    codec: Codec
    starter: str = ""
    told: bool = False


@dataclass(frozen=True, slots=True)
class Headers:
    """Messages that each begin with a header (Harmony): `start + role + channel + name`, then `to=` and a recipient in either
    part, then `constrain` and a content type, and `body`, after which the text goes up to one of the `ends`.

    What is said on the channels in `thoughts` is thought, on those in `content` visible; a recipient that begins with `functions`
    is a call, whose text is its arguments. `kinds` are the content types.
    """

    start: Marker
    channel: Marker
    constrain: Marker
    body: Marker
    ends: tuple[Marker, ...]
    thoughts: tuple[str, ...]
    content: tuple[str, ...]
    kinds: tuple[str, ...]
    functions: str

    @property
    def markers(self) -> tuple[Marker, ...]:
        """All of them."""
        return (self.start, self.channel, self.constrain, self.body, *self.ends)


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """One family. With `headers` it has neither `reasoning` nor `blocks`.

    `transparent` markers are markup wherever content may stand (wrappers of the answer, of a section of calls).
    `newlines_before_call` is how many newlines the family's template writes between text and a call: as many are markup.
    `prompt_begins`: what the prompt may end with though it begins the answer's first marker, a transparent one or an opener.
    `name_before_call`: where it is not None, this text and the call's name may stand between the last marker and the call's
    opener, or one of `named`, as markup; any other text there is content.
    `tokens` are special tokens that are no markers but parts of them.
    `suffixed`: a checkpoint may write each tag with a suffix of its own, `<x:suffix>` (`gateway.formats.suffix`).
    `call_ids`: `random` ids are the gateway's; `native` stand in the output; `nine_alnum` are nine letters or digits, the model's
    own where it writes such.
    """

    name: str
    aliases: tuple[str, ...] = ()
    reasoning: Reasoning | None = None
    headers: Headers | None = None
    blocks: tuple[Block, ...] = ()
    transparent: tuple[Marker, ...] = ()
    tokens: tuple[str, ...] = ()
    suffixed: bool = False
    newlines_before_call: int = 0
    prompt_begins: str = ""
    name_before_call: str | None = None
    named: tuple[Marker, ...] = ()
    call_ids: IdPolicy = "random"
    call_syntax: CallSyntax | None = None

    @property
    def markers(self) -> tuple[Marker, ...]:
        """All of them."""
        thought = tuple(marker for pair in self.reasoning.pairs for marker in pair) if self.reasoning else ()
        calls = tuple(marker for block in self.blocks for marker in (block.opener, block.closer) if marker)
        headers = self.headers.markers if self.headers else ()
        return tuple(dict.fromkeys(thought + calls + self.transparent + headers))
