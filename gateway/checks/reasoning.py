"""The test `reasoning`: a thought that the template writes is read as that thought, however it is cut, switched, or ended."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.checks.base import Case, Status, Subject
from gateway.errors import BadRequest
from gateway.formats.base import Format, ParseOptions
from gateway.parsing import chunking, folded
from gateway.prompt.detect import PLAIN
from gateway.prompt.probe import THINKING_SWITCHES, THOUGHT_MARKS
from gateway.prompt.thought_end import ThoughtEnd
from gateway.request import Delta, FinishReason, GenerateRequest, Message, Prompt, ToolCall, ToolSpec, Usage

_THOUGHT = 'First this, checkthoughtmark.\n\nThen that: 1 < 2 & "so".'
_SAID = "It is this, checksaidmark."
_ASK = Message("user", "What is it, checkaskmark?")
_TOOL = ToolSpec("check_look", "Looks.", {"type": "object", "properties": {"path": {"type": "string", "description": "Where."}}})
_CALL = ToolCall("checkcal1", _TOOL.name, '{"path": "checkpathmark"}')  # nine alphanumerics, as some templates ask for
_RESULT = Message("tool", "checkresultmark", tool_call_id=_CALL.id)
_TOKENS = "tokens"
_SPLITS = ("one", "char", "random:1", "random:2", "random:3", _TOKENS)
_SWITCHES: Mapping[str, bool | None] = {"": None, ", thinking on": True, ", thinking off": False}
_SHOWN = 60  # characters of a text in a diagnosis
_CLOSE = "Let the template close the thought in its generation prompt, or name another format in `format`."
_FORMAT = "Name the format that reads this in `format` (docs/formats.md), or use the model's own chat template."


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of an output."""

    reasoning: str
    content: str
    failures: tuple[str, ...] = ()
    finish: str | None = "stop"
    calls: int = 0


@dataclass(frozen=True, slots=True)
class _Output:
    """What a model writes after a prompt. `tools` are offered to it."""

    subject: Subject
    prompt: Prompt
    raw: str
    tools: tuple[ToolSpec, ...] = ()

    def read(self, split: str, finish: FinishReason = "stop") -> _Read:
        """As the gateway reads it: by its text, or by the vocabulary's tokens."""
        tokenizer = self.subject.prompter.tokenizer
        if split == _TOKENS:
            detokenizer = tokenizer.detokenizer()
            return self.read_tokens([(each, detokenizer.add(each)) for each in tokenizer.encode_after(self.raw)], finish)
        parser = self._form.parser(self._options)
        deltas = [delta for piece in chunking(split)(self.raw) for delta in parser.feed(piece)]
        return _folded([*deltas, *parser.finish(finish, Usage())])

    def read_tokens(self, tokens: Iterable[tuple[int, str]], finish: FinishReason = "stop") -> _Read:
        """These tokens in place of its own."""
        parser = self._form.parser(replace(self._options, marker_ids=self.subject.prompter.tokenizer.special_ids))
        deltas = [delta for token in tokens for delta in parser.feed_tokens([token])]
        return _folded([*deltas, *parser.finish(finish, Usage())])

    @property
    def _form(self) -> Format:
        return self.subject.call_format if self.tools else self.subject.format

    @property
    def _options(self) -> ParseOptions:
        return ParseOptions(tools=self.tools, prompt_tail=self.prompt.tail, hold_arguments=True)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A generation prompt after which a thought is begun with `opener` and ended with `end`, and where that was `seen`."""

    prompt: Prompt
    opener: str
    end: str
    seen: str = ""


def check_reasoning(subject: Subject) -> Iterator[Case]:
    """Its cases. Of a model that does not think there is one: that its prompts open no thought."""
    try:
        yield from _cases(subject)
    except BadRequest as error:
        yield _case(
            "prompts", "failed", f"A plain prompt is refused: {error.message.rstrip('.')}.", "Use the model's own chat template."
        )


def _cases(subject: Subject) -> Iterator[Case]:
    form, can = subject.format, subject.prompter.capabilities
    prompt = subject.prompter.prompt(_request())
    sources = [*subject.files.templates.values()]
    shown = next((end for _, end in THOUGHT_MARKS if any(end in source for source in sources)), None)
    opened = next((begin for begin, end in THOUGHT_MARKS if prompt.tail.rfind(begin) > prompt.tail.rfind(end)), None)
    signs = form.open_thought(prompt.tail) is not None or any(form.thought_sign in source for source in sources)
    if form.thought_closer and (can.reasoning is not None or signs):
        yield from _thinks(subject)
        return
    if sign := can.reasoning or opened or shown:
        said = f"The template has thoughts ({sign}), and the format {form.name} reads none; a prompt ends {_cut(prompt.tail)}."
        yield _case("thoughts", "skipped" if form.name == PLAIN else "failed", said, _FORMAT)
    yield _expected("no thoughts", _Output(subject, prompt, _SAID), _Read("", _SAID))


def _case(name: str, status: Status = "passed", diagnosis: str = "", fix: str = "") -> Case:
    return Case("reasoning", name, status, diagnosis, fix)


def _thinks(subject: Subject) -> Iterator[Case]:
    templates = subject.prompter.renderer.templates.values()
    switched = any(not template.variables.isdisjoint(THINKING_SWITCHES) for template in templates)
    first: _Opened | None = None
    for name, value in _SWITCHES.items() if switched else [("", None)]:
        kwargs = {} if value is None else {THINKING_SWITCHES[0]: value}
        try:
            prompt = subject.prompter.prompt(_request(kwargs=kwargs))
        except BadRequest as error:
            if value is None:
                raise
            yield _case(f"thought{name}", "skipped", f"The template refuses this: {error.message.rstrip('.')}.")
            continue
        if value is False or (value is None and _closed(subject, prompt)):
            yield _expected(f"no thought{name}", _Output(subject, prompt, f"{_lead(subject, kwargs)}{_SAID}"), _Read("", _SAID))
        else:
            opened = _opened(subject, prompt, kwargs)
            first = first or opened
            raw = f"{opened.opener}{_THOUGHT}{opened.end}{_SAID}"
            yield _expected(f"thought{name}{opened.seen}", _Output(subject, prompt, raw), _Read(_THOUGHT, _SAID))
    if first is not None:
        yield from _ends(subject, first)


def _request(*said: Message, tools: tuple[ToolSpec, ...] = (), kwargs: Mapping[str, Any] | None = None) -> GenerateRequest:
    return GenerateRequest("check", (_ASK, *said), tools, template_kwargs=kwargs or {}, add_generation_prompt=not said)


def _closed(subject: Subject, prompt: Prompt) -> bool:
    """Whether the prompt itself closes the thought."""
    closer = subject.format.thought_closer
    return closer in prompt.tail and subject.format.open_thought(prompt.tail) is None


def _in_messages(subject: Subject) -> bool:
    """Whether thoughts are messages of their own (Harmony): then each message has a header, and a stop token closes any."""
    return subject.format.thought_closer not in subject.format.spelled


def _lead(subject: Subject, kwargs: Mapping[str, Any]) -> str:
    """What stands before the text of an answer without a thought, in a format of messages."""
    turn = _shown(subject, kwargs, Message("assistant", _SAID)) if _in_messages(subject) else None
    return turn.partition(_SAID)[0] if turn is not None else ""


def _opened(subject: Subject, prompt: Prompt, kwargs: Mapping[str, Any]) -> _Opened:
    """How the template writes a thought after this prompt; where it shows none, by the markers of the format."""
    turn = _shown(subject, kwargs, Message("assistant", _SAID, reasoning=_THOUGHT))
    if turn is not None and _THOUGHT in turn and _SAID in turn:
        opener, _, rest = turn.partition(_THOUGHT)
        return _Opened(prompt, opener, rest.partition(_SAID)[0])
    end = _budget_end(subject, kwargs)
    calling = Message("assistant", None, reasoning=_THOUGHT, tool_calls=(_CALL,))
    loop = _shown(subject, kwargs, calling, _RESULT, tools=(_TOOL,))
    if loop is not None and _THOUGHT in loop:
        return _Opened(prompt, loop.partition(_THOUGHT)[0], end, " (as it begins in a tool loop)")
    opener = "" if subject.format.open_thought(prompt.tail) is not None else _opener(subject)
    return _Opened(prompt, opener, end, " (built of the format's markers: the template shows none)")


def _budget_end(subject: Subject, kwargs: Mapping[str, Any]) -> str:
    """How the gateway ends a thought that has used up its budget, and what the model then writes before its text."""
    closer = subject.format.thought_closer
    end = subject.prompter.thought_end(closer) or ThoughtEnd(closer, closer)
    return end.before_text + (_lead(subject, kwargs) if end.before_text == end.before_any else "")


def _opener(subject: Subject) -> str:
    """The text that begins a thought by the format."""
    spelled, closer = subject.format.spelled, subject.format.thought_closer
    return spelled[spelled.index(closer) - 1] if closer in spelled else ""


def _shown(subject: Subject, kwargs: Mapping[str, Any], *said: Message, tools: tuple[ToolSpec, ...] = ()) -> str | None:
    """What the template writes after the generation prompt for these messages; None where that is not how they begin."""
    try:
        asked = subject.prompter.prompt(_request(tools=tools, kwargs=kwargs)).text
        text = subject.prompter.prompt(_request(*said, tools=tools, kwargs=kwargs)).text
    except BadRequest:
        return None
    return text[len(asked) :] if text.startswith(asked) else None


def _ends(subject: Subject, opened: _Opened) -> Iterator[Case]:
    """The other ways in which a thought may end, or not."""
    inside = subject.format.open_thought(opened.prompt.tail) is not None
    output = _Output(subject, opened.prompt, f"{opened.opener}{_THOUGHT}")
    absent = f"{opened.end if inside else _lead(subject, {})}{_SAID}"
    yield _expected("thought absent", replace(output, raw=absent), _Read("", _SAID))
    yield _unclosed("cut by the limit", output, "length")
    yield _budget(output)
    if not _in_messages(subject):
        yield _unclosed("unclosed", output, "stop")
        yield from _quoted(output, opened.end)
        yield _spelled(output, opened)


def _unclosed(name: str, output: _Output, finish: FinishReason) -> Case:
    """It is counted, and its text reaches the client."""
    for split in _SPLITS:
        read = output.read(split, finish)
        if not read.failures:
            return _case(name, "failed", f"A thought that is never closed is not counted: read as {_words(read)}.", _FORMAT)
        if "".join((read.reasoning + read.content).split()) != "".join(_THOUGHT.split()):
            return _case(name, "failed", f"Of a thought that is never closed text is lost: read as {_words(read)}.", _FORMAT)
    return _case(name)


def _budget(begun: _Output) -> Case:
    """Ended by the gateway, it is ended."""
    subject, said = begun.subject, begun.subject.profile.thought_end
    closer = subject.format.thought_closer
    if said is not None and closer not in said.before_any:
        words = (
            f"The profile ends a thought with {said.before_any!r}, in which the format {subject.format.name} finds no {closer!r}."
        )
        return _case("thought end", "failed", words, "Correct `thought_end` in the profile, or take it out.")
    raw = f"{begun.raw}{_budget_end(subject, {})}{_SAID}"
    return _expected("thought end", replace(begun, raw=raw), _Read(_THOUGHT, _SAID))


def _quoted(begun: _Output, end: str) -> Iterator[Case]:
    """A thought that quotes a call makes none, though it is counted."""
    subject = begun.subject
    written = _shown(subject, {}, Message("assistant", None, tool_calls=(_CALL,)), _RESULT, tools=(_TOOL,))
    if written is None or "checkpathmark" not in written:
        return
    call = written.partition("checkresultmark")[0].rpartition(subject.format.thought_closer)[2]
    stops = [*subject.prompter.turn_ends, *map(subject.prompter.tokenizer.text_of, subject.prompter.stop_ids)]
    quote = call[: min((at for text in stops if text and (at := call.find(text)) >= 0), default=None)].strip()
    raw = f"{begun.raw} Like {quote} perhaps.{end}{_SAID}"
    expected = _Read(f"{_THOUGHT} Like {quote} perhaps.", _SAID)
    yield _expected("a thought quotes a call", replace(begun, raw=raw, tools=(_TOOL,)), expected, counted={"call_in_reasoning"})


def _spelled(begun: _Output, opened: _Opened) -> Case:
    """Where the closer is a token, text that spells it ends no thought."""
    name, form, tokenizer = "a thought spells its own end", begun.subject.format, begun.subject.prompter.tokenizer
    closer = form.thought_closer
    if closer not in form.visible or closer not in tokenizer.special_ids:
        return _case(name, "skipped", f"{closer} is text to the format or the vocabulary: it ends a thought wherever it stands.")
    thought = f"{_THOUGHT} The tag {closer} ends it."
    before, after = (
        [(each, tokenizer.text_of(each)) for each in tokenizer.encode_after(text)] for text in (opened.opener, opened.end)
    )
    read = begun.read_tokens([*before, (-1, thought), *after, (-1, _SAID)])
    return _compared(name, begun, read, _Read(thought, _SAID))


def _expected(name: str, output: _Output, expected: _Read, *, counted: Collection[str] = ()) -> Case:
    """The output, read in every split; failures that are `counted` are none here."""
    for split in _SPLITS:
        read = output.read(split)
        kept = replace(read, failures=tuple(each for each in read.failures if each not in counted))
        case = _compared(name, output, kept, expected)
        if case.status != "passed":
            return case
    return _case(name)


def _compared(name: str, output: _Output, read: _Read, expected: _Read) -> Case:
    if read == expected:
        return _case(name)
    said = (
        f"After a prompt that ends with {_cut(output.prompt.tail)} the model writes {_cut(output.raw)}: the format "
        f"{output.subject.format.name} reads {_words(read)}, not {_words(expected)}."
    )
    return _case(name, "failed", said, _CLOSE if read.reasoning and not expected.reasoning else _FORMAT)


def _words(read: _Read) -> str:
    failures = f", with {', '.join(read.failures)}" if read.failures else ""
    calls = f", {read.calls} calls" if read.calls else ""
    return f"the thought {_cut(read.reasoning)} and the content {_cut(read.content)}{calls}{failures}"


def _cut(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}")


def _folded(deltas: Iterable[Delta]) -> _Read:
    message = folded(deltas)
    failures = tuple(failure["kind"] for failure in message["failures"])
    said = message["reasoning"] or "", message["content"] or ""
    return _Read(*said, failures, message["finish_reason"], len(message["tool_calls"]))
