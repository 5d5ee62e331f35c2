"""A turn of the model's as its own template writes it, cut where the model begins and where it stops, and read as the gateway
reads an answer.

Invariant: what is read is what the model would have written by its template; nothing of it is made up but the thought that a
prompt leaves open and the template shows nowhere.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from msgspec import structs

from engines.base import Chunk
from gateway.answer import AnswerReader, AnswerRules
from gateway.checks.base import Subject
from gateway.formats.base import Format
from gateway.model import Rendered
from gateway.parsing import chunking, folded
from gateway.reading import reader_for
from gateway.request import CallAnswer, FailureKind, GenerateRequest, Message, Prompt, ToolCall, ToolSpec
from gateway.wire import jsonio
from gateway.wire.text import common_start

RESULT = "checkresultmark"
THOUGHT = "checkthoughtmark"
VALUE = "checkvaluemark"
TEXT = "text"  # a parameter of the first tool
CALL_IDS = ("checkcal1", "checkcal2")  # nine alphanumerics, since some templates ask for just that
SPLITS = ("one", "char", *(f"random:{seed}" for seed in range(5)))
_ASKED = "checkquestionmark"


@dataclass(frozen=True, slots=True)
class Said:
    """What the model is to say in its turn, by a client's own measure. Arguments are JSON text, by the tools' names."""

    calls: tuple[tuple[str, str], ...] = ()
    content: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """What a format read of a turn: as the client gets it, with the kinds of failure and the ids of its calls."""

    form: str
    said: Said
    failures: tuple[FailureKind, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """`said` is what it says, written by `template`. `asked` is the request that it answers and `prompt` its prompt, `shown` the
    prompt of the next request. `begin` and `end` are the turn's place in the shown text, `stop`, its stop token, at the end.
    `raw` is what the model wrote before it; `lost` is the end of the prompt that the history does not hold, empty where each
    prompt begins with the one before."""

    said: Said
    template: str
    asked: GenerateRequest
    prompt: Prompt
    shown: Prompt
    begin: int
    end: int
    raw: str
    stop: str
    lost: str

    def ids(self) -> tuple[int, ...] | None:
        """The ids of `raw`, as the history has them; None where its ids are not those of the prompt and more."""
        known = len(self.prompt.ids)
        if self.lost or self.shown.ids[:known] != self.prompt.ids:
            return None
        stop_ids = self.prompt.stop_ids
        at = next((at for at, each in enumerate(self.shown.ids[known:]) if each in stop_ids), None)
        return None if at is None else self.shown.ids[known : known + at]


class Stage:
    """Where turns of one model are written and read. `tools` are offered to it."""

    def __init__(self, subject: Subject, tools: tuple[ToolSpec, ...] = ()) -> None:
        self._subject = subject
        self._tools = tools
        self._prompter = subject.prompter
        self.form = subject.call_format if tools else subject.format
        tokenizer = subject.prompter.tokenizer
        self.ends = {text: each for each in subject.prompter.stop_ids if (text := tokenizer.text_of(each))}
        cuts = sorted({*self.ends, *subject.prompter.turn_ends}, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, cuts)) or "(?!)")
        self._known: dict[bool, int] = {}
        markers = {*self.form.spelled, *(token.text for token in tokenizer.added if token.special)}
        self._markers = sorted(markers, key=len, reverse=True)

    def request(self, *messages: Message, **kwargs: Any) -> GenerateRequest:
        """A request that these messages are, after the question that all begin with."""
        return GenerateRequest(model="", messages=(Message("user", _ASKED), *messages), tools=self._tools, template_kwargs=kwargs)

    @property
    def thinks(self) -> bool:
        """Whether the prompt leaves a thought open, so that each answer begins in one."""
        return self.form.open_thought(self._prompter.prompt(self.request()).tail) is not None

    def write(self, said: Said, ids: Sequence[str], **kwargs: Any) -> WrittenTurn:
        """The turn in which the model says this, its calls by these ids. Raises BadRequest where the template refuses it."""
        asked = self.request(**kwargs)
        prompt, shown = self._prompter.prompt(asked), self.after(asked, said, ids)
        begin, lost = self._begin(prompt.text, shown.text)
        stop_at, stop = self._stop(shown.text, begin, said)
        raw = shown.text[begin:stop_at]
        if said.reasoning is not None and said.reasoning not in raw:
            said = replace(said, reasoning=None)
        if isinstance(prompt.constraint, CallAnswer) and said.reasoning is None:  # which the model begins with a call, or a text
            before, first, rest = raw.partition(said.content or prompt.constraint.opener)
            lost, raw = lost or before, f"{first}{rest}" or raw
        if lost:
            said, raw = self._after_thought(said, prompt, raw)
        template = self._prompter.plan(asked).draft.template
        return WrittenTurn(said, template, asked, prompt, shown, begin, stop_at + len(stop), raw, stop, lost)

    def _after_thought(self, said: Said, prompt: Prompt, raw: str) -> tuple[Said, str]:
        """What the model wrote where the history begins the turn otherwise than the prompt: without the end of a thought that the
        prompt has closed, and with a thought where the prompt has left one open."""
        closer, thought_closer = self.form.open_thought(prompt.tail), self.form.thought_closer
        closed = thought_closer and raw.lstrip().startswith(thought_closer)
        if closer is None:
            return said, raw.partition(thought_closer)[2] if closed else raw
        if closed or said.reasoning is not None:
            return said, raw
        return replace(said, reasoning=THOUGHT), f"{THOUGHT}{closer}{raw}"

    def after(self, asked: GenerateRequest, said: Said, ids: Sequence[str]) -> Prompt:
        """The prompt of the request that follows the turn: with the results of its calls, else with the next question."""
        calls = tuple(ToolCall(each, name, text) for each, (name, text) in zip(ids, said.calls, strict=True))
        answer = Message("assistant", said.content, said.reasoning, calls)
        results = [Message("tool", RESULT, tool_call_id=call.id) for call in calls] or [Message("user", RESULT)]
        return self._prompter.prompt(structs.replace(asked, messages=(*asked.messages, answer, *results)))

    def _begin(self, prompt: str, shown: str) -> tuple[int, str]:
        """Where the turn begins in the shown text, and the end of the prompt that is not there, or what of it parts."""
        if shown.startswith(prompt):
            return len(prompt), ""
        asked, came = (text.find(_ASKED) + len(_ASKED) for text in (prompt, shown))
        size = self._shared(prompt[asked:], shown[came:])
        return came + size, prompt[asked + size :] or prompt[len(common_start(prompt, shown)) :]

    def _shared(self, one: str, other: str) -> int:
        """For how many characters the two are the same, with no marker cut."""
        at = len(common_start(one, other))
        for marker in self._markers:
            for text in (one, other):
                found = text.find(marker, max(at - len(marker) + 1, 0), at + len(marker) - 1)
                if 0 <= found < at < found + len(marker):
                    at = found
        return at

    def _stop(self, text: str, begin: int, said: Said) -> tuple[int, str]:
        """Where the token stands that ends the turn, and its text: as many such tokens follow it as in a turn that holds none. A
        turn that none ends is cut after its words, or where the next message's begin."""
        following = text.find(RESULT, begin)
        found = [*self._cut.finditer(text, begin, following)]
        behind = self._behind(bool(said.calls))
        if 0 < behind <= len(found):
            return found[-behind].start(), found[-behind][0]
        at = text.find(said.content, begin, following) if said.content and not said.calls else -1
        return (at + len(said.content or ""), "") if at >= 0 else (following, "")

    def _behind(self, calling: bool) -> int:
        """How many tokens that end turns stand between the last words of one, a call or not, and the next message's."""
        if calling not in self._known:
            said = Said(calls=((self._tools[0].name, jsonio.dumps({TEXT: VALUE})),)) if calling else Said(content=VALUE)
            text = self.after(self.request(), said, CALL_IDS[:1] if calling else ()).text
            self._known[calling] = len(self._cut.findall(text.rpartition(VALUE)[2].partition(RESULT)[0]))
        return self._known[calling]

    def read(self, turn: WrittenTurn, *, split: str = "one", form: Format | None = None, raw: str | None = None) -> Read:
        """The turn, read by its text; `form` and `raw` stand in for the model's format and the turn's own text."""
        pieces = chunking(split)(turn.raw if raw is None else raw)
        return self._read(turn, (Chunk(text=piece, tokens=1) for piece in pieces), form or self.form, by_ids=False)

    def read_ids(self, turn: WrittenTurn, ids: Sequence[int]) -> Read:
        """The turn, read by its ids."""
        chunks = (Chunk(ids=(each,), tokens=1) for each in ids)
        return self._read(turn, chunks, self.form, by_ids=True)

    def _read(self, turn: WrittenTurn, chunks: Iterable[Chunk], form: Format, *, by_ids: bool) -> Read:
        reader = self.reader(turn.asked, turn.prompt, form, by_ids=by_ids)
        message = folded([delta for chunk in (*chunks, Chunk(tokens=1, finish="stop")) for delta in reader.read(chunk)])
        calls = tuple((call["name"], call["arguments"]) for call in message["tool_calls"])
        said = Said(calls, message["content"], message["reasoning"])
        kinds = tuple(each["kind"] for each in message["failures"])
        return Read(form.name, said, kinds, tuple(call["id"] for call in message["tool_calls"]))

    def reader(self, asked: GenerateRequest, prompt: Prompt, form: Format, *, by_ids: bool) -> AnswerReader:
        """What reads an answer to this prompt as the gateway does."""
        numbers = count()
        return reader_for(
            Rendered(self._prompter, form, form),
            asked,
            prompt,
            rules=AnswerRules(),
            by_ids=by_ids,
            hold_arguments=True,
            new_call_id=lambda: f"call_{next(numbers):024x}",
        )
