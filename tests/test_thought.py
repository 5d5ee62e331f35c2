"""What counts as a thought's token, and what the engine goes on from."""

from collections.abc import Sequence

import pytest
from support.vocabulary import small_tokenizer

from engines.base import Chunk, Work
from gateway.answer import AnswerReader, AnswerRules
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
    TokenShown,
    ToolSpec,
    Usage,
)
from gateway.thought import MAX_ENDED, ThoughtLimit
from gateway.transcript import Transcript

END = ThoughtEnd("\n</think>\n\n", "</think>!")
ENCODE = small_tokenizer().encode


def limit(tokens: int, *, form: str = "hermes", tail: str = "<think>\n", ids: bool = True) -> ThoughtLimit:
    tokenizer = small_tokenizer()
    options = ParseOptions(
        tools=(ToolSpec("f"),), prompt_tail=tail, marker_ids=tokenizer.special_ids if ids else {}, hold_arguments=True
    )
    reader = AnswerReader(
        registry.load()[form].parser(options),
        rules=AnswerRules(),
        prompt_tokens=10,
        detokenizer=tokenizer.detokenizer() if ids else None,
        data_of=tokenizer.data_of,
    )
    return ThoughtLimit(Transcript(reader, tokenizer), tokens=tokens, end=END, tokenizer=tokenizer)


def feed(reading: ThoughtLimit, text: str) -> list[Delta]:
    return reading.read(Chunk(tokens=len(ENCODE(text)), ids=ENCODE(text)))


def said(deltas: Sequence[Delta], kind: type[ReasoningText] | type[ContentText] = ReasoningText) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


@pytest.mark.parametrize(
    ("budget", "text", "thought"),
    [
        (4, "abcdef", "abcd"),
        (4, "ab<cdef", "ab<c"),  # no marker begins there
        (4, "ab<tdef", "ab<td"),  # one may, until the next token
        (6, "ab<toodef", "ab<tood"),
        (2, "ab</think>answer", "ab"),
        (1, "🦙abc", "🦙"),
        (0, "abc", ""),
    ],
)
def test_the_thought_is_read_up_to_its_last_token(budget: int, text: str, thought: str) -> None:
    reading = limit(budget)
    assert said(feed(reading, text)) == thought
    assert reading.reached


def test_what_may_be_a_call_is_read_to_its_end_and_counted_where_it_was_thought() -> None:
    reading = limit(8)
    assert said(feed(reading, 'ab<tool_call>{"name": "f", "arguments": {}')) == "ab"
    assert not reading.reached
    assert said(feed(reading, " no call")) == '<tool_call>{"name": "f", "arguments": {} n'
    assert reading.reached


def test_tokens_of_the_answer_are_none_of_the_thought() -> None:
    reading = limit(3)
    deltas = feed(reading, "ab</think>much more than three")
    assert said(deltas, ContentText) == "much more than three"
    assert not reading.reached


def test_a_second_thought_has_what_the_first_left() -> None:
    reading = limit(5, form="inkling", tail="", ids=False)
    first, second = (
        "<|message_model|><|content_thinking|>",
        "<|content_text|>ok<|end_message|><|message_model|><|content_thinking|>",
    )
    for piece in (first, "a", "b", "<|end_message|><|message_model|>", second, "c", "d"):
        reading.read(Chunk(text=piece, tokens=1))
    assert not reading.reached
    reading.read(Chunk(text="e", tokens=1))
    assert reading.reached


def test_the_end_is_a_part_of_the_answer_and_of_the_prompt_that_is_left() -> None:
    reading = limit(2)
    feed(reading, "abc")
    deltas = reading.end_thought(100)
    ids = ENCODE(END.before_any)
    assert not reading.reached
    assert deltas[0] == Tokens(tuple(TokenShown(token, small_tokenizer().data_of(token)) for token in ids))
    request = GenerateRequest("m", (), sampling=Sampling(min_tokens=50))
    rest = reading.transcript.continued(Work(request=request, ids=(1, 2), max_tokens=100))
    assert rest is not None
    assert rest.ids == (1, 2, *ENCODE("ab"), *ids)
    assert rest.max_tokens == 98 - len(ids)
    assert rest.request.sampling.min_tokens == 48 - len(ids)
    assert reading.transcript.continued(Work(request=request, max_tokens=2 + len(ids))) is None


def test_the_engines_counts_are_those_of_one_answer() -> None:
    reading = limit(2)
    reading.read(Chunk(usage=Usage(10, 0, 7)))
    feed(reading, "ab")
    reading.end_thought(100)
    work = Work(request=GenerateRequest("m", ()), max_tokens=100)
    rest = reading.transcript.continued(work)
    assert rest is not None
    given = len(rest.ids)
    (finish,) = reading.read(Chunk(finish="stop", usage=Usage(10 + given, 4, 10 + given)))[-1:]
    assert finish == Finish("stop", Usage(10, given + 4, 7, 2))


def test_a_model_that_thinks_again_and_again_is_let() -> None:
    reading = limit(1, form="inkling", tail="<|content_thinking|>", ids=False)
    ended = 0
    while True:
        reading.read(Chunk(text="a", tokens=1))
        if not reading.reached:
            break
        ended += 1
        reading.end_thought(100)
        reading.read(Chunk(text="<|end_message|><|message_model|><|content_thinking|>", tokens=1))
    assert ended == MAX_ENDED
