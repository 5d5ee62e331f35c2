"""One choice of an answer: an engine's chunks in, deltas out, with the operator's rules applied and everything counted.

Invariant: whatever the chunks, the deltas end with exactly one `Finish`, and nothing follows it. PURE: the session feeds it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol

from engines.base import MAX_COUNT, Chunk, TokenLogprob
from gateway.errors import AnswerRefused
from gateway.excerpt import Tail
from gateway.formats.base import Parser
from gateway.leak import Leaks
from gateway.made import Made
from gateway.prompt.tokenizer import Detokenizer
from gateway.request import (
    ContentText,
    Delta,
    FailureKind,
    Finish,
    FinishReason,
    ParseFailure,
    ReasoningText,
    Tokens,
    TokenShown,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from gateway.stop import StopMatcher

# A cut by the token limit is reported by its finish reason: it is no fault of the model's.
_CUTS: frozenset[FailureKind] = frozenset({"truncated_call", "truncated_reasoning"})
_FAULTS = 8  # of answers that come at once, with their text
_UNREADABLE: frozenset[FailureKind] = frozenset({"invalid_json", "not_an_object"})


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What the operator wants done with answers that break a rule."""

    unknown_tool: Literal["forward", "refuse"] = "forward"
    on_parse_failure: Literal["content", "error"] = "content"
    on_schema_miss: Literal["count", "retry", "refuse"] = "count"


class Tally:
    """What is counted of a choice while it streams."""

    __slots__ = (
        "calls",
        "ended_thoughts",
        "failures",
        "finish_reason",
        "reasoning_tokens",
        "schema_missed",
        "tail",
        "tokens",
        "usage",
    )

    def __init__(self, prompt_tokens: int) -> None:
        self.tokens = 0
        self.reasoning_tokens = 0
        self.calls = 0
        self.ended_thoughts = 0
        self.failures: Counter[FailureKind] = Counter()
        self.schema_missed = False
        self.finish_reason: FinishReason | None = None
        self.usage = Usage(prompt_tokens=prompt_tokens)
        self.tail = Tail()

    def engine_counts(self, usage: Usage) -> None:
        """Takes the engine's counts, but for those that none can be: negative ones, and ones beyond MAX_COUNT. For these what was
        known stays; no more is cached than there is of the prompt. The failure `bad_usage` is counted; the answer is not lost for
        them. (A streamed event of an engine that parses itself passes as it is.)"""
        known, said = _counts(self.usage), _counts(usage)
        taken = [new if 0 <= new <= MAX_COUNT else old for old, new in zip(known, said, strict=True)]
        taken[2] = min(taken[2], taken[0])
        if tuple(taken) != said:
            self.failures["bad_usage"] += 1
        self.usage = Usage(*taken)

    def final_usage(self) -> Usage:
        """The engine's counts where it gave them, ours where it did not, with our count of the thought's tokens."""
        usage = self.usage
        completion = max(usage.completion_tokens, self.tokens)
        reasoning = usage.reasoning_tokens or min(self.reasoning_tokens, completion)
        return Usage(usage.prompt_tokens, completion, usage.cached_tokens, reasoning)

    def made(self) -> Made:
        """All of it so far."""
        return made_of([self], self.final_usage())


def made_of(tallies: Sequence[Tally], usage: Usage) -> Made:
    """What was made of answers that come at once, of which these are the tokens."""
    return Made(
        usage,
        sum([tally.calls for tally in tallies]),
        sum([tally.ended_thoughts for tally in tallies]),
        sum([tally.failures for tally in tallies], Counter[FailureKind]()),
        tuple(islice((fault for tally in tallies for fault in tally.tail.faults), _FAULTS)),
        tuple([tally.finish_reason for tally in tallies if tally.finish_reason is not None]),
    )


def used(tallies: Collection[Tally], told: Usage | None) -> Usage:
    """The tokens of a request's answers: `told` is the engine's own count where it made all of them, with our count of the
    thoughts where it has none; else its prompt once, and all answers."""
    each = [tally.final_usage() for tally in tallies]
    thoughts = sum([one.reasoning_tokens for one in each])
    if told is not None:
        thoughts = told.reasoning_tokens or min(thoughts, told.completion_tokens)
        return Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens, thoughts)
    return Usage(
        max([one.prompt_tokens for one in each], default=0),
        sum([one.completion_tokens for one in each]),
        max([one.cached_tokens for one in each], default=0),
        thoughts,
    )


def _counts(usage: Usage) -> tuple[int, int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens


class Checker(Protocol):
    """Looks at an answer's deltas and finds what its parser cannot see."""

    def see(self, delta: Delta) -> list[ParseFailure]:
        """The failures that this delta completes."""


class AnswerReader:
    """Reads the chunks of one choice of an engine that the gateway rendered for.

    `detokenizer` is given where the engine streams every id: the text is then made of the ids. `data_of`, a token's bytes, is
    given where the client wants the tokens too. `leaks` finds tokens that have no place in an answer. `one_call`: the client
    forbade parallel calls, so that the answer ends before a second.
    """

    def __init__(
        self,
        parser: Parser,
        *,
        rules: AnswerRules,
        prompt_tokens: int,
        stop: tuple[str, ...] = (),
        one_call: bool = False,
        checker: Checker | None = None,
        detokenizer: Detokenizer | None = None,
        data_of: Callable[[int], bytes] | None = None,
        leaks: Leaks | None = None,
    ) -> None:
        self._parser = parser
        self._detokenizer = detokenizer
        self._data_of = data_of
        self._leaks = leaks
        self._rules = rules
        self._stop = StopMatcher(stop) if stop else None
        self._one_call = one_call
        self._checker = checker
        self.tally = Tally(prompt_tokens)
        self.ended = False

    @property
    def in_thought(self) -> bool:
        """Whether the answer is in a thought, and amid no character, marker or call."""
        return self._parser.thinking and (self._detokenizer is None or self._detokenizer.whole)

    def read(self, chunk: Chunk) -> list[Delta]:
        """The deltas that this chunk completes. Raises AnswerRefused where the rules say so."""
        if self.ended:
            return []
        tally = self.tally
        tally.tokens += chunk.tokens
        if chunk.usage is not None:
            tally.engine_counts(chunk.usage)
        deltas = self._parsed(chunk)
        if chunk.tokens and any(type(delta) is ReasoningText for delta in deltas):
            tally.reasoning_tokens += chunk.tokens
        if self._stop is not None:
            deltas = self._until_stop(deltas, self._stop)
        ended: FinishReason | None = "stop" if chunk.stop_id is not None else chunk.finish
        if ended is not None and not self._stopped:
            deltas += self._rest(ended)
        if self._one_call:
            deltas = self._until_second_call(deltas)
        if self._leaks is not None and (leaked := self._leaks(chunk, deltas)):
            for kind in leaked:
                tally.failures[kind] += 1
                tally.tail.found(ParseFailure(kind, None, 0, recovered=True), placed=False)
        if self._data_of is not None and chunk.tokens:
            deltas = [_shown(chunk, self._data_of), *deltas]
        return self._judged(deltas) if deltas else deltas

    def _parsed(self, chunk: Chunk) -> list[Delta]:
        """What the format makes of the chunk's ids, where it is read by them, or of its text."""
        detokenizer = self._detokenizer
        tail = self.tally.tail
        if detokenizer is None:
            if not chunk.text:
                return []
            tail.add(chunk.text)
            return self._parser.feed(chunk.text)
        if not chunk.ids:
            return []
        tokens = [(token, detokenizer.add(token)) for token in chunk.ids]
        for _, text in tokens:
            tail.add(text)
        return self._parser.feed_tokens(tokens)

    @property
    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.matched is not None

    def _rest(self, reason: FinishReason) -> list[Delta]:
        """The end. What the parser gives back of a call that is none was data, in which no stop string counts."""
        part: list[Delta] = []
        if self._detokenizer is not None and (cut := self._detokenizer.finish()):
            self.tally.tail.add(cut)
            part = self._parser.feed(cut)
        if self._stop is not None:
            part = self._until_stop(part, self._stop)
            if self._stopped:
                return part
        held = self._stop.flush() if self._stop is not None else ""
        rest = self._parser.finish(reason, self.tally.final_usage())
        return [*part, ContentText(held), *rest] if held else [*part, *rest]

    def _until_second_call(self, deltas: list[Delta]) -> list[Delta]:
        """The answer's end comes before a second call."""
        for at, delta in enumerate(deltas):
            if isinstance(delta, ToolCallStart) and delta.index > 0:
                return [*deltas[:at], Finish("tool_calls", self.tally.final_usage())]
        return deltas

    def _until_stop(self, deltas: list[Delta], stop: StopMatcher) -> list[Delta]:
        """Applies stop strings to the content."""
        shown: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, ContentText):
                text = stop.feed(delta.text)
            elif isinstance(delta, ParseFailure):
                text = ""  # failures say nothing of the text's order
            else:
                text = stop.flush()
            if text:
                shown.append(ContentText(text))
            if stop.matched is not None:
                reason: FinishReason = "tool_calls" if self._calls_in(shown) else "stop"
                shown.append(Finish(reason, self.tally.final_usage()))
                return shown
            if not isinstance(delta, ContentText):
                shown.append(delta)
        return shown

    def _calls_in(self, deltas: Sequence[Delta]) -> bool:
        return self.tally.calls > 0 or any(isinstance(delta, ToolCallEnd) for delta in deltas)

    def _judged(self, deltas: list[Delta]) -> list[Delta]:
        """Counts, and raises where the operator refuses such an answer."""
        tally = self.tally
        for delta in deltas:
            if isinstance(delta, ToolCallEnd):
                tally.calls += 1
            elif isinstance(delta, ParseFailure):
                count(delta, self._rules, tally)
            elif isinstance(delta, Finish):
                tally.finish_reason = delta.reason
                tally.usage = delta.usage
                self.ended = True
            if self._checker is not None and not (self._stopped and isinstance(delta, Finish)):  # cut by the client's own wish
                for failure in self._checker.see(delta):
                    count(failure, self._rules, tally, placed=False)
        return deltas


def _shown(chunk: Chunk, data_of: Callable[[int], bytes]) -> Tokens:
    """A chunk's tokens for a client that wants them."""
    ids = (*(chunk.ids or ()), *(() if chunk.stop_id is None else (chunk.stop_id,)))
    known: Sequence[TokenLogprob | None] = chunk.logprobs or [None] * len(ids)
    if chunk.logprobs:
        ids = tuple(entry.id for entry in chunk.logprobs)
    tokens = tuple(_token_shown(token, entry, data_of) for token, entry in zip(ids, known, strict=True))
    return Tokens(tokens, max(chunk.tokens - len(tokens), 0))


def _token_shown(token: int, entry: TokenLogprob | None, data_of: Callable[[int], bytes]) -> TokenShown:
    if entry is None:
        return TokenShown(token, data_of(token))
    top = tuple([TokenShown(other, data_of(other), logprob) for other, logprob in entry.top])
    return TokenShown(token, data_of(token), entry.logprob, top)


def count(failure: ParseFailure, rules: AnswerRules, tally: Tally, *, placed: bool = True) -> None:
    """Counts a failure, `placed` as for `Tail.found`. Raises AnswerRefused where the rules refuse an answer with it."""
    tally.failures[failure.kind] += 1
    tally.tail.found(failure, placed=placed)
    if failure.kind == "schema_mismatch":
        tally.schema_missed = True
        if rules.on_schema_miss == "refuse":
            raise AnswerRefused("The model's answer does not fit the schema that it was given.", kind=failure.kind)
    elif failure.kind == "unknown_tool":
        if rules.unknown_tool == "refuse":
            raise AnswerRefused("The model called a tool that the request does not declare.", kind=failure.kind)
    elif rules.on_parse_failure == "error" and not failure.recovered and failure.kind not in _CUTS:
        raise AnswerRefused(f"The model's output is malformed: {failure.kind}.", kind=failure.kind)


class PassedReader:
    """Reads the chunks of one choice of an engine that templates and parses itself: counts and checks, changes nothing."""

    def __init__(self, calls: Checker, *, rules: AnswerRules, checker: Checker | None = None) -> None:
        self._calls = calls
        self._checker = checker
        self._rules = rules
        self.tally = Tally(0)
        self.ended = False

    def read(self, chunk: Chunk) -> Sequence[Delta]:
        """The chunk's own deltas and, at the end, the `Finish`; after it only usage is read. Raises AnswerRefused where the rules
        say so."""
        tally = self.tally
        if chunk.usage is not None:
            tally.engine_counts(chunk.usage)
        if self.ended:
            return ()
        tally.tokens += chunk.tokens
        for delta in chunk.deltas:
            if type(delta) is ContentText:
                tally.tail.add(delta.text)
                if self._checker is not None:
                    self._checker.see(delta)
            elif type(delta) is ReasoningText:
                tally.reasoning_tokens += chunk.tokens
            else:
                self._called(delta)
        if chunk.finish is None:
            return chunk.deltas
        self.ended = True
        tally.finish_reason = chunk.finish
        finish = Finish(chunk.finish, tally.final_usage())
        if self._checker is not None:
            for failure in self._checker.see(finish):
                count(failure, self._rules, tally, placed=False)
        return (*chunk.deltas, finish)

    def _called(self, delta: Delta) -> None:
        """A part of a call, and the failures that it completes."""
        if type(delta) is ToolCallEnd:
            self.tally.calls += 1
        elif type(delta) is ToolCallArguments:
            self.tally.tail.add(delta.text)
        for failure in self._calls.see(delta):
            count(failure, self._rules, self.tally, placed=False)


class CallChecker:
    """Checks the calls of an engine that parses itself: a known tool, and arguments that are an object of its schema."""

    def __init__(self, check: Callable[[str, str], Sequence[FailureKind]]) -> None:
        self._check = check
        self._names: dict[int, str] = {}
        self._pieces: dict[int, list[str]] = {}

    def see(self, delta: Delta) -> list[ParseFailure]:
        """The failures of the call that ends here."""
        if isinstance(delta, ToolCallStart):
            self._names[delta.index] = delta.name
            self._pieces[delta.index] = []
        elif isinstance(delta, ToolCallArguments):
            self._pieces.setdefault(delta.index, []).append(delta.text)
        elif isinstance(delta, ToolCallEnd):
            text = "".join(self._pieces.pop(delta.index, ()))
            kinds = self._check(self._names.get(delta.index, ""), text)
            return [ParseFailure(kind, delta.index, 0, kind not in _UNREADABLE) for kind in kinds]
        return []


class AnswerChecker:
    """Checks an answer that shall be JSON (`response_format`), once it is whole."""

    def __init__(self, check: Callable[[str], Sequence[FailureKind]]) -> None:
        self._check = check
        self._pieces: list[str] = []

    def see(self, delta: Delta) -> list[ParseFailure]:
        """The failures of the answer that ends here. One that was cut is known by its finish reason."""
        if isinstance(delta, ContentText):
            self._pieces.append(delta.text)
        elif isinstance(delta, Finish) and delta.reason == "stop":
            kinds = self._check("".join(self._pieces))
            return [ParseFailure(kind, None, 0, kind not in _UNREADABLE) for kind in kinds]
        return []
