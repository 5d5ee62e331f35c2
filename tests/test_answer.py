"""One choice's reading: stop ids, stop strings, counts and the operator's rules."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.vocabulary import small_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from engines.base import Chunk, TokenLogprob
from gateway.answer import AnswerReader, AnswerRules, CallChecker, PassedReader
from gateway.errors import AnswerRefused
from gateway.formats.base import ParseOptions
from gateway.formats.compiled import compile_format
from gateway.formats.families import hermes
from gateway.prompt.tokenizer import Tokenizer, from_json
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
    ToolSpec,
    Usage,
)

CALL: list[Delta] = [ToolCallStart(0, "c", "f"), ToolCallArguments(0, "{}"), ToolCallEnd(0)]


class Scripted:
    """A parser whose text is content, but for words that stand for deltas."""

    def __init__(self, words: dict[str, Sequence[Delta]] | None = None) -> None:
        self.words = words or {}
        self.calls = False
        self.thinking = False

    def feed(self, text: str) -> list[Delta]:
        deltas = list(self.words.get(text, [ContentText(text)]))
        self.calls |= any(isinstance(delta, ToolCallEnd) for delta in deltas)
        self.thinking = any(isinstance(delta, ReasoningText) for delta in deltas)
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
    return Chunk(finish=reason, usage=usage)


def read(answer: AnswerReader, *chunks: Chunk) -> list[Delta]:
    return [delta for chunk in chunks for delta in answer.read(chunk)]


def test_the_engines_own_end_and_counts() -> None:
    answer = reader()
    deltas = read(answer, token("a"), token("b"), end("length", Usage(9, 3, 4)))
    assert deltas == [ContentText("a"), ContentText("b"), Finish("length", Usage(9, 3, 4, 0))]
    assert answer.ended
    assert answer.tally.finish_reason == "length"


@pytest.mark.parametrize("wrong", [-1, 2**40 + 1, 10**30])
def test_counts_that_none_can_be_are_not_taken_but_counted(wrong: int) -> None:
    answer = reader()
    deltas = read(answer, Chunk(usage=Usage(9, 0, 4)), token("a"), end("length", Usage(wrong, wrong, 5, wrong)))
    assert deltas[-1] == Finish("length", Usage(9, 1, 5, 0))
    assert answer.tally.failures == {"bad_usage": 1}


def test_no_more_is_cached_than_there_is_of_the_prompt() -> None:
    answer = reader()
    assert read(answer, end("length", Usage(9, 1, 10)))[-1] == Finish("length", Usage(9, 1, 9, 0))
    assert answer.tally.failures == {"bad_usage": 1}
    read(whole := reader(), end("length", Usage(9, 1, 9)))
    assert not whole.tally.failures


def test_the_largest_count_is_taken() -> None:
    assert read(reader(), end("length", Usage(2**40, 0, 0)))[-1] == Finish("length", Usage(2**40, 0, 0))


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
    last = passed.read(Chunk(finish="tool_calls", usage=Usage(5, 4, 2, 0)))
    assert thought == (ReasoningText("hm"),)
    assert last == (Finish("tool_calls", Usage(5, 4, 2, 1)),)
    assert passed.read(end()) == ()
    assert passed.tally.calls == 1
    assert passed.tally.failures == {"unknown_tool": 1, "invalid_json": 1}


def test_an_engines_own_counts_are_read_after_its_end_too_and_checked() -> None:
    passed = PassedReader(CallChecker(check), rules=AnswerRules())
    passed.read(end("stop", Usage(5, -1)))
    assert passed.read(Chunk(usage=Usage(-5, 4))) == ()
    assert passed.tally.usage == Usage(5, 4)
    assert passed.tally.failures == {"bad_usage": 2}


def test_an_engines_own_bad_calls_can_be_refused() -> None:
    passed = PassedReader(CallChecker(check), rules=AnswerRules(unknown_tool="refuse"))
    with pytest.raises(AnswerRefused):
        passed.read(Chunk(tokens=1, deltas=(ToolCallStart(0, "c", "g"), ToolCallArguments(0, "{}"), ToolCallEnd(0))))


def test_a_call_without_a_beginning_is_checked_all_the_same() -> None:
    checker = CallChecker(check)
    assert checker.see(ToolCallArguments(1, "{")) == []
    kinds = [failure.kind for failure in checker.see(ToolCallEnd(1))]
    assert kinds == ["unknown_tool", "invalid_json"]


def by_ids(tokenizer: Tokenizer | None = None, *, shown: bool = False, stop: tuple[str, ...] = ()) -> AnswerReader:
    """As for an engine that streams ids: what is a marker is told by its id, and the text is made of the ids."""
    vocabulary = tokenizer or small_tokenizer()
    options = ParseOptions(tools=(ToolSpec("f"),), marker_ids=vocabulary.special_ids)
    return AnswerReader(
        compile_format(hermes.FORMAT).parser(options),
        rules=AnswerRules(),
        prompt_tokens=7,
        stop=stop,
        detokenizer=vocabulary.detokenizer(),
        data_of=vocabulary.data_of if shown else None,
    )


def carried(*tokens: int, stop_id: int | None = None, **more: Any) -> Chunk:
    """An event with these ids; its own text is what an engine that hides special tokens would say."""
    return Chunk(text="hidden", tokens=len(tokens) + (stop_id is not None), ids=tokens, stop_id=stop_id, **more)


def spelled(text: str) -> list[int]:
    """A text in tokens of one byte each, so that no marker in it is one."""
    tokenizer = small_tokenizer()
    token_of = {tokenizer.data_of(token): token for token in range(tokenizer.vocab_size)}
    return [token_of[bytes([byte])] for byte in text.encode()]


def content(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, ContentText))


def test_a_marker_is_its_id_and_the_same_text_in_other_tokens_is_data() -> None:
    special = small_tokenizer().special_ids
    body = spelled('{"name": "f", "arguments": {"a": "</tool_call>"}}')
    call = [special["<tool_call>"], *body, special["</tool_call>"]]
    answer = by_ids()
    deltas = read(answer, carried(*spelled("<tool_call>x")), *(carried(each) for each in call), carried(stop_id=2, finish="stop"))
    assert content(deltas) == "<tool_call>x"
    arguments = "".join(delta.text for delta in deltas if isinstance(delta, ToolCallArguments))
    assert arguments == '{"a": "</tool_call>"}'
    assert deltas[-1] == Finish("tool_calls", Usage(7, 12 + len(call) + 1, 0, 0))
    assert answer.tally.failures == {}


def test_a_call_that_is_only_spelled_is_content_and_counted() -> None:
    answer = by_ids()
    raw = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    deltas = read(answer, carried(*spelled(raw)), end())
    assert content(deltas) == raw
    assert answer.tally.failures == {"special_tokens_missing": 1}


def test_ids_in_any_split_say_the_same() -> None:
    special = small_tokenizer().special_ids
    ids = [special["<think>"], *spelled("é🦙"), special["</think>"], *spelled("ok 🦙 END no")]
    answers = []
    for size in (1, 2, 3, len(ids)):
        answer = by_ids(stop=("END",))
        deltas = read(answer, *(carried(*ids[at : at + size]) for at in range(0, len(ids), size)), end())
        thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningText))
        answers.append((thought, content(deltas), answer.tally.finish_reason))
    assert answers == [("é🦙", "ok 🦙 ", "stop")] * 4


def test_a_stop_string_is_found_over_tokens_and_in_what_the_end_completes() -> None:
    assert content(read(by_ids(stop=("x\ufffd",)), carried(*spelled("ax🦙")[:-1]), end("length"))) == "a"
    cut = by_ids(stop=("b🦙",))
    assert content(read(cut, *(carried(each) for each in spelled("ab🦙c")), end())) == "a"
    assert cut.tally.tokens == 6


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_character_cut_by_the_end_is_replaced_once(missing: int) -> None:
    ids = spelled("a🦙")[:-missing]
    deltas = read(by_ids(), *(carried(each) for each in ids), end("length"))
    assert content(deltas) == "a\ufffd"
    assert deltas[-1] == Finish("length", Usage(7, len(ids), 0, 0))


def test_tokens_are_shown_with_the_one_that_ended_the_turn() -> None:
    first, second = spelled("é")
    chunks = [carried(first), carried(second, stop_id=2, finish="stop")]
    shown = [delta for delta in read(by_ids(shown=True), *chunks) if isinstance(delta, Tokens)]
    assert shown == [
        Tokens((TokenShown(first, b"\xc3"),)),
        Tokens((TokenShown(second, b"\xa9"), TokenShown(2, b"<|im_end|>"))),
    ]


def test_tokens_are_shown_with_their_log_probabilities() -> None:
    (letter,) = spelled("a")
    logprobs = (TokenLogprob(letter, -0.5, ((letter, -0.5), (2, -1.0))), TokenLogprob(2, -0.25))
    deltas = read(by_ids(shown=True), carried(letter, stop_id=2, finish="stop", logprobs=logprobs))
    top = (TokenShown(letter, b"a", -0.5), TokenShown(2, b"<|im_end|>", -1.0))
    assert deltas[0] == Tokens((TokenShown(letter, b"a", -0.5, top), TokenShown(2, b"<|im_end|>", -0.25)))
    assert content(deltas) == "a"


def byte_fallback() -> Tokenizer:
    """A SentencePiece vocabulary: what has no piece of its own is written in bytes."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    merges = [("▁", "a")]
    vocabulary = {name: token for token, name in enumerate(names)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return from_json(backend.to_str().encode())


@pytest.mark.parametrize("text", ["a é b", "🦙a", "é a🦙 a", " a  🦙", "ééa", "", "a", "🦙"])
def test_bytes_of_a_sentencepiece_vocabulary_make_whole_characters(text: str) -> None:
    tokenizer = byte_fallback()
    deltas = read(by_ids(tokenizer), *(carried(each) for each in tokenizer.encode(text)), end())
    assert content(deltas) == text
    assert "\ufffd" not in "".join(delta.text for delta in deltas if isinstance(delta, ContentText))


@pytest.mark.parametrize("before", ["", "a", "é", "a "])
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_cut_character_of_a_sentencepiece_vocabulary_is_replaced_once(before: str, missing: int) -> None:
    tokenizer = byte_fallback()
    ids = tokenizer.encode(before + "🦙")[:-missing]
    assert content(read(by_ids(tokenizer), *(carried(each) for each in ids), end("length"))) == before + "\ufffd"


def test_a_wrong_byte_costs_its_neighbours_nothing() -> None:
    tokenizer = byte_fallback()
    wrong, (a, e1, e2) = tokenizer.id_of("<0xF0>"), tokenizer.encode("aé")
    assert wrong is not None
    ids = [wrong, e1, e2, a, wrong, a]
    assert content(read(by_ids(tokenizer), *(carried(each) for each in ids), end())) == "\ufffdé a\ufffd a"
    assert tokenizer.data_of(wrong) == b"\xf0"
