"""An answer over several engines is that of one: whatever it says and wherever it is cut, its deltas are the unbroken ones.

An engine here is a list of ids: from the ids of a part of it, it says the rest. One of vLLM's kind tells every id; one of
llama.cpp's tells the text, and of a character that took several tokens the last id only, which does not do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.vocabulary import CONTROL, small_tokenizer

from engines.base import Chunk, TokenLogprob, Work
from gateway.answer import AnswerReader, AnswerRules
from gateway.errors import EngineDiffers
from gateway.formats import registry
from gateway.formats.base import ParseOptions
from gateway.prompt.thought_end import ThoughtEnd
from gateway.request import (
    ContentText,
    Delta,
    Finish,
    GenerateRequest,
    ReasoningText,
    Sampling,
    Tokens,
    ToolCallArguments,
    ToolSpec,
    Usage,
)
from gateway.thought import ThoughtLimit
from gateway.transcript import MAX_IDS, Transcript

TOKENIZER = small_tokenizer()
FORMATS = registry.load()
STOP = CONTROL.index("<|im_end|>")
PROMPT = (1, 2, 3, 4, 5)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é🦙"}}\n</tool_call>'
PIECES = ("the ", "é", "日本", "🦙", "a", "STOP", "ST", CALL, "<tool_call>", "<think>x", "</think>", "\n")
WORK = Work(GenerateRequest(model="m", messages=()), ids=PROMPT, max_tokens=4096)


def reader(*, ids: bool, stop: tuple[str, ...] = ("STOP",), tail: str = "", tools: bool = True) -> AnswerReader:
    options = ParseOptions(
        tools=(ToolSpec("f"),) if tools else (),
        prompt_tail=tail,
        marker_ids=TOKENIZER.special_ids if ids else {},
        new_call_id=lambda: "call_1",
    )
    return AnswerReader(
        FORMATS["hermes"].parser(options),
        rules=AnswerRules(),
        prompt_tokens=len(PROMPT),
        stop=stop,
        detokenizer=TOKENIZER.detokenizer() if ids else None,
        data_of=TOKENIZER.data_of,
    )


@dataclass(frozen=True)
class Engine:
    """Says these ids, after those of them that its prompt holds."""

    ids: tuple[int, ...]
    tells_ids: bool

    def chunks(self, work: Work) -> Iterator[Chunk]:
        prompt = tuple(work.ids)
        known = prompt[len(PROMPT) :]
        assert prompt[: len(PROMPT)] == PROMPT
        assert known == self.ids[: len(known)], "the ids in the prompt are those that were made"
        cached = len(prompt) - 1
        made = 0
        held: list[int] = []
        if not self.tells_ids:
            yield Chunk(usage=Usage(len(prompt), 0, cached))
        for token in self.ids[len(known) :]:
            made += 1
            held.append(token)
            logprob = (TokenLogprob(token, -0.5),)
            if self.tells_ids:
                yield Chunk(tokens=1, ids=(token,), logprobs=logprob)
                held.clear()
                continue
            try:
                text = b"".join(map(TOKENIZER.data_of, held)).decode()
            except UnicodeDecodeError:
                continue
            yield Chunk(text=text, tokens=len(held), ids=(token,) if len(held) == 1 else None, logprobs=logprob)
            held.clear()
        yield Chunk(tokens=1, stop_id=STOP, finish="stop", usage=Usage(len(prompt), made + 1, cached))


def merged(deltas: Sequence[Delta]) -> list[object]:
    """Neighbours of one kind joined, ids of tokens apart."""
    found: list[object] = []
    for delta in deltas:
        last = found[-1] if found else None
        same_call = not isinstance(delta, ToolCallArguments) or (
            isinstance(last, ToolCallArguments) and last.index == delta.index
        )
        if isinstance(delta, Tokens):
            continue
        if isinstance(delta, ContentText | ReasoningText | ToolCallArguments) and type(last) is type(delta) and same_call:
            text = last.text + delta.text
            found[-1] = ToolCallArguments(delta.index, text) if isinstance(delta, ToolCallArguments) else type(delta)(text)
        else:
            found.append(delta)
    return found


def shown(deltas: Sequence[Delta]) -> list[int]:
    return [token.id for delta in deltas if isinstance(delta, Tokens) for token in delta.tokens]


def missing(deltas: Sequence[Delta]) -> int:
    return sum(delta.missing for delta in deltas if isinstance(delta, Tokens))


def told(engine: Engine, cuts: Sequence[int], stop: tuple[str, ...] = ("STOP",)) -> tuple[list[Delta], AnswerReader, int]:
    """The deltas of an answer that is cut after so many chunks, of each engine in turn; and how many were cut."""
    reading = reader(ids=engine.tells_ids, stop=stop)
    transcript = Transcript(reading, TOKENIZER)
    deltas: list[Delta] = []
    work: Work | None = WORK
    for done, cut in enumerate([*cuts, 1 << 20]):
        assert work is not None
        for at, chunk in enumerate(engine.chunks(work)):
            if at == cut:
                break
            deltas += transcript.read(chunk)
            if transcript.ended:
                return deltas, reading, done
        work = transcript.resumed(WORK)
    raise AssertionError("an answer has an end")


ANSWERS = st.lists(st.sampled_from(PIECES), max_size=8).map(lambda pieces: tuple(TOKENIZER.encode("".join(pieces))))
CUTS = st.lists(st.integers(0, 60), max_size=4)


@given(ANSWERS, CUTS, st.booleans())
@example(tuple(TOKENIZER.encode("é")), [1, 1], False)
@example(tuple(TOKENIZER.encode("aé🦙the " + CALL)), [6, 3, 20], False)
@example(tuple(TOKENIZER.encode("aSTOP")), [2, 1, 1], True)
def test_cuts_change_nothing(ids: tuple[int, ...], cuts: list[int], tells_ids: bool) -> None:
    engine = Engine(ids, tells_ids)
    deltas, reading, _ = told(engine, cuts)
    unbroken, whole, _ = told(engine, [])
    assert merged(deltas)[:-1] == merged(unbroken)[:-1]
    assert isinstance(deltas[-1], Finish)
    assert isinstance(unbroken[-1], Finish)
    assert deltas[-1].reason == unbroken[-1].reason
    assert (shown(deltas), missing(deltas)) == (shown(unbroken), missing(unbroken)), "each token once"
    assert reading.tally.tokens == whole.tally.tokens
    used, expected = reading.tally.final_usage(), whole.tally.final_usage()
    assert (used.prompt_tokens, used.completion_tokens) == (expected.prompt_tokens, expected.completion_tokens)
    assert 0 <= used.cached_tokens <= used.prompt_tokens


def llama(text: str, *, lost: bool = False) -> Chunk:
    ids = tuple(TOKENIZER.encode(text))
    return Chunk(text=text, tokens=len(ids), ids=None if lost else ids)


def cut_after(*chunks: Chunk) -> tuple[Transcript, Work]:
    transcript = Transcript(reader(ids=False, stop=()), TOKENIZER)
    for chunk in chunks:
        transcript.read(chunk)
    work = transcript.resumed(WORK)
    assert work is not None
    return transcript, work


def test_an_engine_goes_on_from_the_last_id_before_one_that_was_lost() -> None:
    transcript, work = cut_after(llama("ab"), llama("é", lost=True), llama("cd"))
    assert tuple(work.ids) == (*PROMPT, *TOKENIZER.encode("ab"))
    assert work.max_tokens == 4096 - 2
    assert transcript.read(llama("é", lost=True)) == []
    assert transcript.repeats
    assert transcript.read(llama("cd")) == []
    (tokens, content) = transcript.read(llama("x"))
    assert isinstance(tokens, Tokens)
    assert content == ContentText("x")


@pytest.mark.parametrize("other", ["b", "ß", "éx", "é" * 50])
@pytest.mark.parametrize("lost", [True, False])
def test_other_words_are_an_error_and_are_forgotten(other: str, lost: bool) -> None:
    transcript, work = cut_after(llama("ab"), llama("é", lost=True), llama("cd"))
    with pytest.raises(EngineDiffers):
        transcript.read(llama(other, lost=lost))
    again = transcript.resumed(WORK)
    assert again == work
    deltas = [delta for chunk in (llama("é", lost=True), llama("cd"), llama("e")) for delta in transcript.read(chunk)]
    assert merged(deltas) == [ContentText("e")]


@pytest.mark.parametrize("end", [Chunk(tokens=1, stop_id=STOP), Chunk(finish="length"), Chunk(finish="stop")])
def test_an_end_before_the_known_text_is_said_is_other_words(end: Chunk) -> None:
    transcript, _ = cut_after(llama("é", lost=True), llama("cd"))
    transcript.read(llama("é", lost=True))
    with pytest.raises(EngineDiffers):
        transcript.read(end)


def test_text_that_goes_beyond_the_known_is_given_from_there() -> None:
    transcript, _ = cut_after(llama("é", lost=True))
    assert merged(transcript.read(llama("éx"))) == [ContentText("x")]


def test_the_counts_are_those_of_one_answer() -> None:
    ids = tuple(TOKENIZER.encode("abcdef"))
    _, reading, cuts = told(Engine(ids, tells_ids=False), [4])
    assert cuts == 1
    assert reading.tally.final_usage() == Usage(5, 7, 4, 0)  # the first engine's word on what was cached


def test_what_was_made_counts_for_the_least_that_shall_be() -> None:
    work = replace(WORK, request=replace(WORK.request, sampling=Sampling(min_tokens=3)))
    transcript = Transcript(reader(ids=True), TOKENIZER)
    leasts = []
    for token in TOKENIZER.encode("abcde"):
        transcript.read(Chunk(tokens=1, ids=(token,)))
        rest = transcript.resumed(work)
        assert rest is not None
        leasts.append(rest.request.sampling.min_tokens)
    assert leasts == [2, 1, 0, 0, 0]


def test_no_token_is_left_and_there_is_no_more_work() -> None:
    transcript = Transcript(reader(ids=True), TOKENIZER)
    for token in TOKENIZER.encode("abc"):
        transcript.read(Chunk(tokens=1, ids=(token,)))
    assert transcript.resumed(replace(WORK, max_tokens=3)) is None
    assert transcript.resumed(replace(WORK, max_tokens=None)) is not None


def test_of_a_very_long_answer_not_all_is_kept() -> None:
    transcript = Transcript(reader(ids=True), TOKENIZER)
    (token,) = TOKENIZER.encode("a")
    transcript.read(Chunk(tokens=MAX_IDS, ids=(token,) * MAX_IDS))
    assert transcript.resumable
    transcript.read(Chunk(tokens=1, ids=(token,)))
    assert not transcript.resumable


def test_a_cut_after_the_gateway_ended_a_thought_keeps_its_end() -> None:
    transcript = Transcript(reader(ids=True, tail="<think>\n", stop=()), TOKENIZER, keep_all=True)
    end = ThoughtEnd("\n</think>\n\n", "</think>!")
    limit = ThoughtLimit(transcript, tokens=2, end=end, tokenizer=TOKENIZER)
    thought, answer = TOKENIZER.encode("ab"), TOKENIZER.encode("yes")
    for token in thought:
        limit.read(Chunk(tokens=1, ids=(token,)))
    limit.end_thought(WORK.max_tokens)
    assert transcript.continued(WORK) is not None
    limit.read(Chunk(tokens=1, ids=answer[:1]))
    rest = transcript.resumed(WORK)
    assert rest is not None
    assert tuple(rest.ids) == (*PROMPT, *thought, *TOKENIZER.encode_after(end.before_any), answer[0])
    assert not limit.reached
    assert merged(limit.read(Chunk(tokens=1, ids=answer[1:2]))) == [ContentText(TOKENIZER.text_of(answer[1]))]


def test_nothing_goes_on_behind_a_stop_id() -> None:
    (token,) = TOKENIZER.encode("a")
    transcript = Transcript(reader(ids=True), TOKENIZER, stop_ids=frozenset({STOP}))
    transcript.read(Chunk(tokens=1, ids=(token,)))
    assert transcript.resumed(WORK) is not None
    transcript.read(Chunk(tokens=3, ids=(token, STOP, token)))
    assert transcript.went_on
    with pytest.raises(ValueError, match="had its end"):
        transcript.resumed(WORK)
