"""The tool call test: calls that the model's template writes are read as they were made, and our own answer, sent back, makes the
very tokens that the model wrote.

Invariant: what is no call is never read as one without a count.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.checks.base import Case, Status, Subject
from gateway.checks.turn import SPLITS, TEXT, VALUE, Read, Said, Stage, WrittenTurn
from gateway.errors import BadRequest
from gateway.formats.registry import load
from gateway.prompt.detect import PLAIN, FormatUnknown, detect_format
from gateway.prompt.model_files import DEFAULT, TOOL_USE
from gateway.prompt.probe import THINKING_SWITCHES
from gateway.request import ToolSpec
from gateway.wire import jsonio
from gateway.wire.text import common_start

_LOOKUP, _PING, _UNKNOWN = "check_lookup", "check_ping", "check_unknown"
_THOUGHT, _CONTENT = "First I look it up.", "I look it up."
_SINGLE = "single call"
_ID_STYLES = ("checkcal{number}", "functions.{name}:{number}")  # nine alphanumerics, and the ids that Kimi's calls are named by
_SHOWN = 60  # characters of a text in a diagnosis
_NAMED = 3  # formats at the most
_SPACED = ((", ", ": "), (",", ":"))
_LOOK = "See what the template says, and what `templates` in the profile says that it takes."
_NO_FORMAT = "Name another format (docs/formats.md) in `format`, or take `tools: constrained`."
_STOPS = "See that no token under `stop` in the profile stands within a call; else report it."
_NEXT = "Name another format in `format`: this one adds to what the model wrote, or takes from it."
_TEMPLATES = "This is the template's own: no setting changes it, only another template does."


def _property(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": f"A value of type {kind}.", **more}


TOOLS = (
    ToolSpec(
        _LOOKUP,
        "Looks something up.",
        {
            "type": "object",
            "properties": {
                TEXT: _property("string"),
                "count": _property("integer"),
                "ratio": _property("number"),
                "flag": _property("boolean"),
                "names": _property("array", items={"type": "string"}),
                "filter": _property("object"),
            },
            "required": [],
        },
    ),
    ToolSpec(_PING, "Says hello.", {"type": "object", "properties": {}, "required": []}),
)

_NESTED: Mapping[str, Any] = {"all": [{"key": "a", "values": [1, 2.5, True, "x"]}, {"deep": {"er": []}}], "none": {}}
ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    _SINGLE: {TEXT: VALUE},
    "numbers and booleans": {"count": 42, "ratio": -0.5, "flag": True},
    "a number as text": {TEXT: "42", "count": 0, "flag": False},
    "nested arguments": {"filter": _NESTED, "names": ["a", "b c"]},
    "null in an argument": {"filter": {"none": None}},
    "Unicode": {TEXT: "größer 日本語 🦙 ñ"},
    "escapes": {TEXT: "a tab\there, a path C:\\new\\table, \\u0041 and \\n"},
    "quotes": {TEXT: "she said \"no\" and 'yes', then `maybe`"},
    "newlines": {TEXT: "one\ntwo\n\n  three"},
    "markup": {TEXT: "if a < b && c > d: </b> &amp; <x y='1'>"},
}


def check_tool_call(subject: Subject) -> Iterator[Case]:
    """The cases of one model. Of one whose template states no tools, or shows no calls, there is one: that such requests are
    refused."""
    can, stage = subject.prompter.capabilities, Stage(subject, TOOLS)
    try:
        subject.prompter.prompt(stage.request())
    except BadRequest as error:
        yield _refusal("requests with tools are refused", error, expected=error.param == "tools" and can.tools != "yes")
        return
    try:
        calls = _Calls(subject, stage)
    except BadRequest as error:
        yield _unshown(subject, error)
        return
    yield from calls.cases()


class _Calls:
    """The cases of a model whose template shows calls."""

    def __init__(self, subject: Subject, stage: Stage) -> None:
        """Raises BadRequest where the template does not write the simplest of them."""
        self._subject = subject
        self._stage = stage
        self._can = subject.prompter.capabilities
        self._thinks = stage.thinks and self._can.reasoning is not None
        self._told: set[str] = set()  # what is so of every turn is said once
        self._ids = _ID_STYLES[0]
        self._single = self._written(_said(ARGUMENTS[_SINGLE], thought=self._thinks))
        if self._misread(self._single) and self._can.call_ids == "any":
            self._ids = _ID_STYLES[1]
            self._single = self._written(self._single.said)

    def cases(self) -> Iterator[Case]:
        """All of them; the first alone where that fails."""
        if not self._single.stop:
            why = "The template writes no stop token between a call and its result: where the model stops is not known."
            yield _case(_SINGLE, "failed", why, "Add the token that ends a call to `stop` in the profile.")
            return
        for name, said in self._conversations():
            cases = [*self._round_trip(name, said)]
            yield from cases
            if name == _SINGLE and cases[0].status == "failed":
                return
        yield from _invalid(self._stage, self._single)

    def _conversations(self) -> Iterator[tuple[str, Said]]:
        """What the model says, by the name of its case."""
        can, thought = self._can, self._thinks
        constrained = self._single.prompt.constraint is not None
        for name, arguments in ARGUMENTS.items():
            yield name, _said(arguments, thought=thought)
        markers = " ".join(dict.fromkeys(self._stage.form.spelled))
        yield "markers of the format in an argument", _said({TEXT: f"a {markers} b"}, thought=thought)
        yield "no arguments", _said({}, _PING, thought=thought)
        if can.parallel_calls == "yes" or constrained:
            both = tuple((_LOOKUP, jsonio.dumps({TEXT: text})) for text in ("first", VALUE))
            yield "parallel calls", Said(both, None, _THOUGHT if thought else None)
        if can.called_text == "beside" or constrained:
            yield "text before a call", _said({TEXT: VALUE}, thought=thought, content=_CONTENT)
        if can.reasoning is not None and not thought and not constrained:  # a grammar lets no thought begin
            yield "a thought before a call", _said({TEXT: VALUE}, thought=True)

    def _round_trip(self, name: str, said: Said) -> Iterator[Case]:
        """How the turn is read and, where that is right, what the next prompt makes of it."""
        try:
            turn = self._written(said)
        except BadRequest as error:
            yield _case(name, "failed", f"The template does not write this: {error}", _LOOK)
            return
        problem = self._misread(turn)
        if not problem:
            yield _case(name, "passed")
            yield from self._next_turn(name, turn)
        elif name != _SINGLE and (why := _templates_own(turn)):
            yield _case(name, "skipped", why, _TEMPLATES)
        else:
            yield self._failed(name, turn, problem)

    def _written(self, said: Said) -> WrittenTurn:
        """The turn; one with a thought under the switches with which the template asks for it."""
        ids = [self._ids.format(name=name, number=number) for number, (name, _) in enumerate(said.calls)]
        turn = self._stage.write(said, ids)
        if said.reasoning and (turn.lost or said.reasoning not in turn.raw):
            thinking = self._stage.write(said, ids, **dict.fromkeys(THINKING_SWITCHES, True))
            return thinking if said.reasoning in thinking.raw else turn
        return turn

    def _misread(self, turn: WrittenTurn) -> str:
        """What is wrong with how the turn is read, in any split, by its text and by its ids; empty where nothing is."""
        for split in SPLITS:
            if problem := _problem(turn, self._stage.read(turn, split=split)):
                return problem
        ids = turn.ids()
        return _problem(turn, self._stage.read_ids(turn, ids)) if ids is not None else ""

    def _failed(self, name: str, turn: WrittenTurn, problem: str) -> Case:
        """The diagnosis of a turn that is misread."""
        read = self._stage.read(turn)
        if "double_encoded" in read.failures or any(jsonio.dumps(text) in turn.raw for _, text in turn.said.calls):
            said = f"The arguments are double encoded: the template writes them as a JSON string, {_quoted(turn.raw)}."
            return _case(name, "failed", said, _objects(self._subject))
        others = self._readers(turn)
        if not others:
            return _case(name, "failed", problem, _NO_FORMAT)
        if not _problem(turn, read):
            said = f"{problem.rstrip('.')}, where it is given the tokens, not their text."
            return _case(name, "failed", said, _STOPS)
        does = f"{' and '.join(others)} {'does' if len(others) == 1 else 'do'}"
        return _case(
            name, "failed", f"{problem.rstrip('.')}; {does}.", f"Set `format: {others[0]}`, or `format.name` in the profile."
        )

    def _readers(self, turn: WrittenTurn) -> list[str]:
        """The formats that read the turn without a fault; the one that the template tells alone, where it tells one."""
        formats = load()
        fitting = {
            each.name: each
            for each in formats.values()
            if each.name != PLAIN and not _problem(turn, self._stage.read(turn, form=each))
        }
        try:
            told = detect_format(self._subject.prompter, formats).name
        except (FormatUnknown, BadRequest):
            told = ""
        return [told] if told in fitting else sorted(fitting)[:_NAMED]

    def _next_turn(self, name: str, turn: WrittenTurn) -> Iterator[Case]:
        """Whether our own answer, sent back, makes the tokens that the model wrote after its prompt."""
        read = self._stage.read(turn)
        own = self._stage.after(turn.asked, read.said, read.ids)
        name, why = f"{name}: the next turn", ""
        if not own.text.startswith(turn.shown.text[: turn.end]):
            renamed = own.text
            for given, written in zip(read.ids, self._written_ids(turn), strict=True):
                renamed = renamed.replace(given, written)
            if not renamed.startswith(turn.shown.text[: turn.end]):
                yield _case(name, "failed", _parted(own.text, turn.shown.text), _NEXT)
                return
            why = "The history shows the calls' ids, and those that the client was given are not those that the model wrote."
        elif turn.lost:
            why = (
                f"The history parts from the prompt, and what the model wrote after it, at {_quoted(turn.lost)}: the template "
                "writes a turn otherwise than it asks for it."
            )
        elif own.ids[: len(turn.prompt.ids)] != turn.prompt.ids:
            why = "The end of the prompt and the beginning of the answer make other tokens together than one by one."
        if not why:
            yield _case(name, "passed")
        elif why not in self._told:
            self._told.add(why)
            yield _case(name, "skipped", why, "No setting changes it: a cache of the prompt ends there with each such turn.")

    def _written_ids(self, turn: WrittenTurn) -> list[str]:
        return [self._ids.format(name=name, number=number) for number, (name, _) in enumerate(turn.said.calls)]


def _invalid(stage: Stage, single: WrittenTurn) -> Iterator[Case]:
    """Calls that are none, made of the simplest one: never read as calls without a count."""
    raw = single.raw
    read = stage.read(single, raw=raw[: raw.index(VALUE) + len(VALUE) // 2])
    yield _counted("a call that is cut", read, bool(read.failures) and not read.said.calls)
    if f'"{VALUE}"' in raw:
        read = stage.read(single, raw=raw.replace(f'"{VALUE}"', VALUE))
        yield _counted("arguments that are no JSON", read, bool(read.failures))
    read = stage.read(single, raw=raw.replace(_LOOKUP, _UNKNOWN))
    yield _counted("an unknown tool", read, "unknown_tool" in read.failures or not read.said.calls)


def _counted(name: str, read: Read, fine: bool) -> Case:
    if fine:
        return _case(name, "passed")
    failures = ", ".join(read.failures) or "no failure"
    return _case(name, "failed", f"{len(read.said.calls)} calls are read, and {failures} is counted.", _NO_FORMAT)


def _said(arguments: Mapping[str, Any], name: str = _LOOKUP, *, thought: bool = False, content: str | None = None) -> Said:
    return Said(((name, jsonio.dumps(arguments)),), content, _THOUGHT if thought else None)


def _refusal(name: str, error: BadRequest, *, expected: bool) -> Case:
    if expected:
        return _case(name, "passed")
    return _case(_SINGLE, "failed", f"A request with tools is refused: {error}", _LOOK)


def _unshown(subject: Subject, error: BadRequest) -> Case:
    """What to say of a template that does not write the simplest of calls."""
    can = subject.prompter.capabilities
    if can.tool_calls != "yes":
        return _refusal("a history with calls is refused", error, expected=True)
    if can.arguments == "text":
        return _case(_SINGLE, "failed", f"With arguments as text the template writes no call: {error}", _objects(subject))
    return _case(_SINGLE, "failed", f"The template does not write a call: {error}", _LOOK)


def _objects(subject: Subject) -> str:
    return f"Set `templates.{TOOL_USE if TOOL_USE in subject.profile.templates else DEFAULT}.arguments: object` in the profile."


def _case(name: str, status: Status, diagnosis: str = "", fix: str = "") -> Case:
    return Case("tool_call", name, status, diagnosis, fix)


def _problem(turn: WrittenTurn, read: Read) -> str:
    """What is wrong with what was read; empty where nothing is."""
    want, got = turn.said, read.said
    counts = f" ({', '.join(read.failures)})" if read.failures else ""
    if len(want.calls) != len(got.calls):
        of = f" of {len(want.calls)} calls" if len(want.calls) > 1 else " call"
        return f"Format {read.form} reads {len(got.calls) or 'no'}{of} in {_quoted(turn.raw)}{counts}."
    for (name, text), (own, given) in zip(want.calls, got.calls, strict=True):
        if name != own:
            return f"Format {read.form} reads a call of {_quoted(own)} where {name} is called."
        if _value(text) != _value(given):
            read_as, written = _quoted(given, text), _quoted(text, given)
            return f"Format {read.form} reads the arguments {read_as} where {written} were written{counts}."
    for what, said, heard in (("text", want.content, got.content), ("thought", want.reasoning, got.reasoning)):
        if (said or "") != (heard or ""):
            return f"Format {read.form} reads the {what} {_quoted(heard or '')} where {_quoted(said or '')} was said{counts}."
    return f"Format {read.form} counts {', '.join(read.failures)} in {_quoted(turn.raw)}." if read.failures else ""


def _templates_own(turn: WrittenTurn) -> str:
    """Why a turn that is misread cannot be read by anyone: the template writes it so that something is lost."""
    if turn.said.content and turn.said.content not in turn.raw:
        return "The template writes the text of a turn that calls elsewhere than before its calls."
    for _, text in turn.said.calls:
        for value in jsonio.decode(text).values():
            if not isinstance(value, str) and not any(jsonio.dumps(value, separators=form) in turn.raw for form in _SPACED):
                return f"The template does not write {_quoted(jsonio.dumps(value))} as JSON, but in {_quoted(turn.raw)}."
            if isinstance(value, str) and value not in turn.raw and jsonio.dumps(value)[1:-1] not in turn.raw:
                return f"The template does not show the whole of an argument, {_quoted(value)}."
            if isinstance(value, str) and any(each in value for each in "\\'\"") and value in turn.raw:
                return f"The template writes a text with quotes or backslashes as it is, unescaped: {_quoted(turn.raw)}."
    return ""


def _parted(own: str, shown: str) -> str:
    at = len(common_start(own, shown))
    return f"Where the model wrote {_quoted(shown[at:])}, the next prompt has {_quoted(own[at:])}: a cache ends there."


def _value(text: str) -> str:
    """A call's arguments, so that two that are equal as JSON are: 1 and true are not, the order of keys does not count."""
    try:
        return jsonio.dumps(jsonio.decode(text), sort_keys=True)
    except jsonio.JsonError:
        return text


def _quoted(text: str, other: str = "") -> str:
    """A text for a diagnosis, cut; from a little before where it parts from `other`, where that is far in."""
    at = max(len(common_start(text, other)) - _SHOWN // 2, 0) if other else 0
    cut = text[at:]
    return repr(f"{'…' if at else ''}{cut[:_SHOWN]}{'…' if len(cut) > _SHOWN else ''}")
