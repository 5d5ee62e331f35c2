"""One choice's reading: stop ids, stop strings, counts and the operator's rules."""

from collections.abc import Sequence
from typing import Any

import pytest

from engines.base import Chunk, EngineFinish
from gateway.answer import AnswerReader, AnswerRules, CallChecker, PassedReader
from gateway.errors import AnswerRefused
from gateway.request import (
    ContentText,
    Delta,
    FailureKind,
    Finish,
    FinishReason,
    ParseFailure,
    ReasoningText,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)

CALL: list[Delta] = [ToolCallStart(0, "c", "f"), ToolCallArguments(0, "{}"), ToolCallEnd(0)]


class Scripted:
    """A parser whose text is content, but for words that stand for deltas."""

    def __init__(self, words: dict[str, Sequence[Delta]] | None = None) -> None:
        self.words = words or {}
        self.calls = False

    def feed(self, text: str) -> list[Delta]:
        deltas = list(self.words.get(text, [ContentText(text)]))
        self.calls |= any(isinstance(delta, ToolCallEnd) for delta in deltas)
        return deltas

    def feed_tokens(self, tokens: Sequence[tuple[int, str]]) -> list[Delta]:
        return [delta for _, text in tokens for delta in self.feed(text)]

    def finish(self, reason: FinishReason, usage: Usage) -> list[Delta]:
        return [Finish("tool_calls" if self.calls and reason == "stop" else reason, usage)]


def reader(
    words: dict[str, Sequence[Delta]] | None = None, stop: tuple[str, ...] = (), rules: AnswerRules | None = None
) -> AnswerReader:
    return AnswerReader(Scripted(words), stop=stop, rules=rules or AnswerRules(), prompt_tokens=7)


def token(text: str) -> Chunk:
    return Chunk(text=text, tokens=1)


def end(reason: FinishReason = "stop", usage: Usage | None = None) -> Chunk:
    return Chunk(finish=EngineFinish(reason), usage=usage)


def read(answer: AnswerReader, *chunks: Chunk) -> list[Delta]:
    return [delta for chunk in chunks for delta in answer.read(chunk)]


def test_the_engines_own_end_and_counts() -> None:
    answer = reader()
    deltas = read(answer, token("a"), token("b"), end("length", Usage(9, 3, 4)))
    assert deltas == [ContentText("a"), ContentText("b"), Finish("length", Usage(9, 3, 4, 0))]
    assert answer.ended
    assert answer.tally.finish_reason == "length"


def test_a_stop_id_ends_the_turn_with_our_own_counts() -> None:
    answer = reader()
    deltas = read(answer, token("a"), Chunk(text="b", tokens=2, stop_id=2), token("never"))
    assert deltas == [ContentText("a"), ContentText("b"), Finish("stop", Usage(7, 3, 0, 0))]


def test_a_stop_string_over_chunks_ends_the_answer_before_it() -> None:
    answer = reader(stop=("END",))
    deltas = read(answer, token("a E"), token("N"), token("D tail"), token("never"))
    assert deltas == [ContentText("a "), Finish("stop", Usage(7, 3, 0, 0))]
    assert answer.ended


def test_held_text_comes_before_what_follows_it() -> None:
    answer = reader({"call": CALL, "think": [ReasoningText("hm")]}, stop=("END",))
    deltas = read(answer, token("think"), token("x E"), token("call"), token("N"), end())
    texts = [ReasoningText("hm"), ContentText("x "), ContentText("E"), *CALL, ContentText("N")]
    assert deltas[:-1] == texts
    assert deltas[-1] == Finish("tool_calls", Usage(7, 4, 0, 1))


def test_a_stop_string_after_a_call_keeps_the_call() -> None:
    answer = reader({"call": CALL}, stop=("END",))
    assert read(answer, token("call"), token("xEND"))[-1] == Finish("tool_calls", Usage(7, 2, 0, 0))
    both = reader({"both": [*CALL, ContentText("xEND")]}, stop=("END",))
    assert read(both, token("both"))[-1] == Finish("tool_calls", Usage(7, 1, 0, 0))


def test_a_stop_string_in_a_thought_or_in_arguments_is_data() -> None:
    words: dict[str, Sequence[Delta]] = {
        "think": [ReasoningText("END")],
        "call": [CALL[0], ToolCallArguments(0, '{"a":"END"}'), CALL[2]],
    }
    deltas = read(reader(words, stop=("END",)), token("think"), token("call"), end())
    assert ReasoningText("END") in deltas
    assert ToolCallArguments(0, '{"a":"END"}') in deltas


def failing(kind: FailureKind, recovered: bool = True) -> dict[str, Sequence[Delta]]:
    return {"bad": [ParseFailure(kind, 0, 0, recovered)]}


@pytest.mark.parametrize(
    ("kind", "recovered", "rules", "refused"),
    [
        ("invalid_json", False, {}, False),
        ("invalid_json", False, {"on_parse_failure": "error"}, True),
        ("double_encoded", True, {"on_parse_failure": "error"}, False),
        ("truncated_call", False, {"on_parse_failure": "error"}, False),
        ("unknown_tool", True, {}, False),
        ("unknown_tool", True, {"unknown_tool": "refuse"}, True),
        ("schema_mismatch", True, {}, False),
        ("schema_mismatch", True, {"on_schema_miss": "retry"}, False),
        ("schema_mismatch", True, {"on_schema_miss": "refuse"}, True),
    ],
)
def test_the_operators_rules(kind: FailureKind, recovered: bool, rules: dict[str, Any], refused: bool) -> None:
    answer = reader(failing(kind, recovered), stop=("END",), rules=AnswerRules(**rules))
    if refused:
        with pytest.raises(AnswerRefused) as caught:
            read(answer, token("bad"))
        assert (caught.value.reason, caught.value.code, caught.value.status) == (kind, kind, 502)
    else:
        read(answer, token("bad"))
    assert answer.tally.failures == {kind: 1}
    assert answer.tally.schema_missed is (kind == "schema_mismatch")


def check(name: str, arguments: str) -> Sequence[FailureKind]:
    kinds: list[FailureKind] = []
    if name != "f":
        kinds.append("unknown_tool")
    if arguments != "{}":
        kinds.append("invalid_json")
    return kinds


def test_an_engines_own_calls_are_counted_and_checked() -> None:
    passed = PassedReader(CallChecker(check), rules=AnswerRules())
    thought = passed.read(Chunk(tokens=1, deltas=(ReasoningText("hm"),)))
    passed.read(Chunk(tokens=1, deltas=(ToolCallStart(0, "c", "g"), ToolCallArguments(0, '{"'))))
    passed.read(Chunk(tokens=1, deltas=(ToolCallEnd(0),)))
    last = passed.read(Chunk(finish=EngineFinish("tool_calls"), usage=Usage(5, 4, 2, 0)))
    assert thought == (ReasoningText("hm"),)
    assert last == (Finish("tool_calls", Usage(5, 4, 2, 1)),)
    assert passed.read(end()) == ()
    assert passed.tally.calls == 1
    assert passed.tally.failures == {"unknown_tool": 1, "invalid_json": 1}


def test_an_engines_own_bad_calls_can_be_refused() -> None:
    passed = PassedReader(CallChecker(check), rules=AnswerRules(unknown_tool="refuse"))
    with pytest.raises(AnswerRefused):
        passed.read(Chunk(tokens=1, deltas=(ToolCallStart(0, "c", "g"), ToolCallArguments(0, "{}"), ToolCallEnd(0))))


def test_a_call_without_a_beginning_is_checked_all_the_same() -> None:
    checker = CallChecker(check)
    assert checker.see(ToolCallArguments(1, "{")) == []
    kinds = [failure.kind for failure in checker.see(ToolCallEnd(1))]
    assert kinds == ["unknown_tool", "invalid_json"]
