"""The stop test: every stop token is one token, ends the model's turn and stands nowhere within one, and an answer ends at it.

Invariant: what the template ends turns with, and what the model's files declare, are stop tokens, or a case says which is not.
"""

from collections.abc import Iterable, Iterator, Sequence

from engines.base import Chunk
from gateway.checks.base import Case, Status, Subject
from gateway.checks.tool_call import TOOLS
from gateway.checks.turn import CALL_IDS, RESULT, TEXT, THOUGHT, VALUE, Said, Stage, WrittenTurn
from gateway.errors import BadRequest
from gateway.prompt.probe import THINKING_SWITCHES
from gateway.prompt.profile import StopToken
from gateway.prompt.tokenizer import Tokenizer
from gateway.request import ContentText, Delta, Finish, ReasoningText
from gateway.wire import jsonio

_JUNK = "checkjunkmark"
_SHOWN = 60  # characters of a text in a diagnosis
_IN_PROFILE = "under `stop` in the profile"


def check_stop(subject: Subject) -> Iterator[Case]:
    """The cases of one model."""
    if not subject.profile.stop:
        yield _case(
            "stop tokens", "failed", "The profile names no stop token.", f"Name what ends the model's turn {_IN_PROFILE}."
        )
    for token in subject.profile.stop:
        yield _one_token(token, subject)
    yield _turn_end(subject)
    yield _declared(subject)
    yield from _call_end(subject)
    yield _within(subject)
    yield from _answers(subject)


def _case(name: str, status: Status = "passed", diagnosis: str = "", fix: str = "") -> Case:
    return Case("stop", name, status, diagnosis, fix)


def _named(subject: Subject) -> str:
    return ", ".join(token.text for token in subject.profile.stop) or "none"


def _one_token(token: StopToken, subject: Subject) -> Case:
    name, tokenizer = f"one token: {token.text} ({token.id})", subject.prompter.tokenizer
    ids, text = tokenizer.encode(token.text), tokenizer.text_of(token.id)
    if (ids == (token.id,) or tokenizer.encode_after(token.text) == (token.id,)) and text == token.text:
        if token.id in tokenizer.special_ids.values() or token.id in subject.files.stop_ids:
            return _case(name)
        said = f"The stop token {token.text!r} (id {token.id}) is ordinary text: answers would end wherever it stands."
        return _case(name, "failed", said, f"Take it out {_IN_PROFILE}.")
    if not 0 <= token.id < tokenizer.vocab_size:
        said = f"The stop token {token.id} ({token.text}) is none of the vocabulary's {tokenizer.vocab_size}."
    elif len(ids) != 1:
        pieces = " ".join(repr(tokenizer.text_of(each)) for each in ids[:8])
        said = f"The stop entry {token.text!r} is {len(ids)} tokens to this vocabulary ({pieces}), not the one token {token.id}."
    else:
        said = f"The stop entry {token.id} is called {token.text!r}, but that token is {text!r}; {token.text!r} is {ids[0]}."
    return _case(name, "failed", said, f"Write one token's id with its own text {_IN_PROFILE}.")


def _turn_end(subject: Subject) -> Case:
    """What the template writes right after an answer, where nothing within a turn is written so too."""
    prompter, name = subject.prompter, "turn end"
    stops = prompter.stop_ids
    found = [each.turn_end for each in subject.profile.found.values() if each.turn_end]
    ends = dict.fromkeys([*prompter.turn_ends, *found])
    for text in ends:
        token = prompter.tokenizer.special_ids.get(text)
        if token not in stops:
            return _case(
                name,
                "failed",
                f"The template ends the model's turn with {text} (id {token}), which is not among the stop tokens "
                f"{_named(subject)}: answers would run on into the next turn.",
                f"Add `{{id: {token}, text: {jsonio.dumps(text)}}}` {_IN_PROFILE}.",
            )
    if ends:
        return _case(name)
    try:
        turn = Stage(subject).write(Said(content=VALUE), ())
    except BadRequest as error:
        return _case(name, "failed", f"The template does not write an answer: {error}", "See what the template says.")
    if turn.stop:
        return _case(name)
    after = turn.shown.text.rpartition(VALUE)[2].partition(RESULT)[0]
    return _case(
        name,
        "skipped",
        f"The template writes {_quoted(after)} after an answer, which holds no token that only ends turns.",
        f"See that the model's own end of a turn is {_IN_PROFILE}: {_named(subject)}.",
    )


def _declared(subject: Subject) -> Case:
    tokenizer = subject.prompter.tokenizer
    missing = sorted(subject.files.stop_ids - subject.prompter.stop_ids)
    if not missing:
        return _case("declared end tokens")
    said = ", ".join(f"{tokenizer.text_of(token)} (id {token})" for token in missing)
    return _case(
        "declared end tokens",
        "failed",
        f"The model's files declare {said} as an end token, which is not among the stop tokens {_named(subject)}.",
        f"Add it {_IN_PROFILE}.",
    )


def _call_end(subject: Subject) -> Iterator[Case]:
    """Whether a turn ends between its last call and the result; nothing where the template shows no calls."""
    turn = next(_turns(subject, [Said(((TOOLS[0].name, jsonio.dumps({TEXT: VALUE})),))]), None)
    if turn is None:
        return
    if turn.stop:
        if subject.prompter.tokenizer.special_ids.get(turn.stop) in subject.prompter.stop_ids:  # else it is the turn's end
            yield _case("call end")
        return
    between = turn.shown.text.rpartition(VALUE)[2].partition(RESULT)[0]
    yield _case(
        "call end",
        "failed",
        f"Between a call and its result the template writes {_quoted(between)}, which holds none of the stop tokens "
        f"{_named(subject)}: the model would go on and write the result itself.",
        f"Add the token that ends a call {_IN_PROFILE}.",
    )


def _within(subject: Subject) -> Case:
    """Whether a stop token stands where the turn goes on: after a thought, before a call, between two."""
    text = jsonio.dumps({TEXT: VALUE})
    one, two = (((TOOLS[0].name, text),) * number for number in (1, 2))
    calling = (None, VALUE) if subject.prompter.capabilities.called_text == "beside" else (None,)
    said = [Said(calls, content, THOUGHT) for calls in (one, two) for content in calling]
    stops = {subject.prompter.tokenizer.text_of(token): token for token in subject.prompter.stop_ids}
    for turn in _turns(subject, [*said, Said((), VALUE, THOUGHT)]):
        for stop, token in stops.items():
            if stop and (at := turn.raw.find(stop)) >= 0:
                return _case(
                    "within a turn",
                    "failed",
                    f"The stop token {stop} (id {token}) stands within a turn, before {_quoted(turn.raw[at + len(stop) :])}: "
                    "answers would end there.",
                    f"Take it out {_IN_PROFILE}.",
                )
    return _case("within a turn")


def _turns(subject: Subject, said: Iterable[Said]) -> Iterator[WrittenTurn]:
    """Those of the turns that the template shows, with thoughts as it is asked for them and without."""
    for each in said:
        stage = Stage(subject, TOOLS if each.calls else ())
        for switches in ({}, dict.fromkeys(THINKING_SWITCHES, True)) if each.reasoning else ({},):
            try:
                yield stage.write(each, CALL_IDS[: len(each.calls)], **switches)
            except BadRequest:
                continue


def _answers(subject: Subject) -> Iterator[Case]:
    """Answers of an engine that writes on after each stop token."""
    stage, tokenizer = Stage(subject), subject.prompter.tokenizer
    turn = next(_turns(subject, [Said(content=VALUE, reasoning=THOUGHT if stage.thinks else None)]), None)
    if turn is None:
        return
    if (heard := stage.read(turn).said.content or "") != VALUE:
        yield _case(
            "an answer",
            "failed",
            f"After a prompt that ends with {turn.prompt.text[-_SHOWN:]!r} the template writes the answer {VALUE} as "
            f"{_quoted(turn.raw)}, which is read as {_quoted(heard)}.",
            "Let the template begin the model's turn in its generation prompt (`add_generation_prompt`) as in the history, and "
            "write an answer as it is; or correct `format`.",
        )
        return
    before, _, after = turn.raw.rpartition(VALUE)
    letters = _letters(tokenizer)
    texts = {stop: text for stop in sorted(subject.prompter.stop_ids) if (text := tokenizer.text_of(stop))}
    for stop, text in texts.items():
        ids = [*tokenizer.encode_after(turn.raw), stop, *tokenizer.encode_after(_JUNK)]
        problems = [_run_on(stage, turn, _by_ids(ids, turn.prompt.stop_ids), VALUE, by_ids=True)]
        problems.append(_run_on(stage, turn, _by_text([turn.raw], stop), VALUE, by_ids=False))
        yield _ended(f"an answer ends at {text}", [each for each in problems if each])
        data = text.encode()
        if text in tokenizer.special_ids and all(byte in letters for byte in data) and text not in stage.form.spelled:
            spelled = [letters[byte] for byte in data]
            ids = [*tokenizer.encode_after(before), *spelled, *tokenizer.encode_after(after), stop]
            problem = _run_on(stage, turn, _by_ids(ids, turn.prompt.stop_ids), text, by_ids=True)
            yield _ended(f"{text} in other tokens is text", [problem] if problem else [])


def _ended(name: str, problems: Sequence[str]) -> Case:
    fix = "This is the gateway's own: report it with the profile."
    return _case(name, "failed", problems[0], fix) if problems else _case(name)


def _by_ids(ids: Sequence[int], stop_ids: frozenset[int]) -> Iterator[Chunk]:
    """As an engine says it that streams ids, is told what ends a turn, and goes on all the same."""
    for each in ids:
        yield Chunk(tokens=1, stop_id=each) if each in stop_ids else Chunk(ids=(each,), tokens=1)


def _by_text(pieces: Sequence[str], stop: int) -> Iterator[Chunk]:
    """As an engine says it that streams text."""
    yield from (Chunk(text=piece, tokens=1) for piece in pieces)
    yield Chunk(tokens=1, stop_id=stop)
    yield Chunk(text=_JUNK, tokens=1)


def _run_on(stage: Stage, turn: WrittenTurn, chunks: Iterable[Chunk], expected: str, *, by_ids: bool) -> str:
    """What is wrong with how the answer ends; empty where nothing is."""
    reader = stage.reader(turn.asked, turn.prompt, stage.form, by_ids=by_ids)
    deltas: list[Delta] = [delta for chunk in chunks for delta in reader.read(chunk)]
    said = "".join(delta.text for delta in deltas if isinstance(delta, ContentText | ReasoningText) and delta.text != THOUGHT)
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentText))
    if _JUNK in said or content != expected:
        return f"An answer of {_quoted(expected)} is read as {_quoted(content)}."
    last = deltas[-1] if deltas else None
    if not isinstance(last, Finish) or last.reason != "stop" or sum(isinstance(delta, Finish) for delta in deltas) != 1:
        return f"An answer that a stop token ends is read without its end: {last!r}."
    if reader.tally.failures["stop_leak"]:
        return "A stop token that ends an answer is counted as one within it."
    return ""


def _letters(tokenizer: Tokenizer) -> dict[int, int]:
    """Ordinary tokens of one byte each, by the byte."""
    added = {*tokenizer.special_ids.values()}
    pieces = ((tokenizer.data_of(token), token) for token in range(tokenizer.vocab_size) if token not in added)
    return {data[0]: token for data, token in pieces if len(data) == 1}


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
