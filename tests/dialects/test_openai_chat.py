import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.dialects.base import Answer, Dialect, Encoder, Limits
from gateway.dialects.openai_answer import TokenFields
from gateway.dialects.openai_chat import ModelCard, OpenAIChat, models_list
from gateway.dialects.openai_stream import StreamEncoder
from gateway.dialects.openai_whole import WholeEncoder
from gateway.errors import BadRequest, EngineBroke, GatewayError, ModelNotFound, Rejected
from gateway.request import (
    ContentText,
    Delta,
    Finish,
    ParseFailure,
    ReasoningText,
    Tokens,
    TokenShown,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from gateway.wire.sse import SseReader

DIALECT: Dialect = OpenAIChat()
ANSWER = Answer(id="chatcmpl-1", created_s=1_764_400_000, model='my "model"')
USAGE = Usage(prompt_tokens=10, completion_tokens=7, cached_tokens=4, reasoning_tokens=2)
COUNTS = {
    "prompt_tokens": 10,
    "completion_tokens": 7,
    "total_tokens": 17,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
SAME = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_764_400_000, "model": 'my "model"'}
STOP = Finish("stop", USAGE)
FAILURE = ParseFailure("stray_marker", None, 3, True)


def streaming(include_usage: bool = False, answer: Answer = ANSWER, tokens: TokenFields | None = None) -> StreamEncoder:
    return StreamEncoder(answer, include_usage, tokens)


def events(data: bytes) -> list[Any]:
    """The events of a stream as values; `[DONE]` as that text."""
    assert data == b"" or data.endswith(b"\n\n")
    return ["[DONE]" if event.data == b"[DONE]" else json.loads(event.data) for event in SseReader().feed(data)]


def told(data: bytes) -> list[tuple[int, Any, str | None]]:
    """Each chunk's one choice: index, delta, finish reason. The rest is what every chunk says."""
    chunks = events(data)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert {name: chunk[name] for name in SAME} == SAME
        assert chunk.keys() - SAME.keys() == {"choices"}
    return [(choice["index"], choice["delta"], choice["finish_reason"]) for chunk in chunks for choice in chunk["choices"]]


ROLE = (0, {"role": "assistant", "content": ""}, None)


@pytest.mark.parametrize(
    ("deltas", "chunks"),
    [
        ([], []),
        ([ContentText("")], []),
        ([ReasoningText("")], []),
        ([FAILURE], []),
        ([ToolCallEnd(0)], []),
        ([ContentText("é\n")], [ROLE, (0, {"content": "é\n"}, None)]),
        ([ContentText("a"), FAILURE, ContentText("b")], [ROLE, (0, {"content": "ab"}, None)]),
        ([ReasoningText("a"), ReasoningText("b")], [ROLE, (0, {"reasoning_content": "ab", "reasoning": "ab"}, None)]),
        (
            [ReasoningText("a"), ContentText("b"), ReasoningText("c")],
            [
                ROLE,
                (0, {"reasoning_content": "a", "reasoning": "a"}, None),
                (0, {"content": "b"}, None),
                (0, {"reasoning_content": "c", "reasoning": "c"}, None),
            ],
        ),
        ([STOP], [ROLE, (0, {}, "stop")]),
        ([ContentText("a"), Finish("length", USAGE)], [ROLE, (0, {"content": "a"}, None), (0, {}, "length")]),
        (
            [
                *(ToolCallStart(0, "c0", "f"), ToolCallArguments(0, '{"a'), ToolCallArguments(0, '":1}'), ToolCallEnd(0)),
                *(ToolCallStart(1, "c1", "g"), ToolCallArguments(1, ""), ToolCallArguments(1, "{}"), ToolCallEnd(1)),
                Finish("tool_calls", USAGE),
            ],
            [
                ROLE,
                (
                    0,
                    {"tool_calls": [{"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}}]},
                    None,
                ),
                (0, {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]}, None),
                (
                    0,
                    {"tool_calls": [{"index": 1, "id": "c1", "type": "function", "function": {"name": "g", "arguments": ""}}]},
                    None,
                ),
                (0, {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]}, None),
                (0, {}, "tool_calls"),
            ],
        ),
        (
            [ToolCallArguments(0, "a"), ToolCallEnd(0), ToolCallArguments(1, "b")],
            [
                ROLE,
                (0, {"tool_calls": [{"index": 0, "function": {"arguments": "a"}}]}, None),
                (0, {"tool_calls": [{"index": 1, "function": {"arguments": "b"}}]}, None),
            ],
        ),
    ],
)
def test_chunks(deltas: list[Delta], chunks: list[Any]) -> None:
    assert told(streaming().feed(0, deltas)) == chunks


def test_each_choice_has_its_role_once_and_choices_may_interleave() -> None:
    encoder = streaming()
    data = encoder.feed(1, [ContentText("a")]) + encoder.feed(0, [ContentText("b")]) + encoder.feed(1, [ContentText("c"), STOP])
    assert told(data + encoder.feed(0, [STOP])) == [
        (1, {"role": "assistant", "content": ""}, None),
        (1, {"content": "a"}, None),
        ROLE,
        (0, {"content": "b"}, None),
        (1, {"content": "c"}, None),
        (1, {}, "stop"),
        (0, {}, "stop"),
    ]


@pytest.mark.parametrize(
    ("fields", "delta"),
    [
        (("reasoning_content", "reasoning"), {"reasoning_content": "t", "reasoning": "t"}),
        (("reasoning",), {"reasoning": "t"}),
        ((), None),
    ],
)
def test_reasoning_is_given_under_the_names_that_are_set(fields: tuple[str, ...], delta: dict[str, str] | None) -> None:
    answer = Answer("chatcmpl-1", 1_764_400_000, 'my "model"', fields)
    assert told(streaming(answer=answer).feed(0, [ReasoningText("t")])) == ([] if delta is None else [ROLE, (0, delta, None)])
    whole = WholeEncoder(answer)
    whole.feed(0, [ReasoningText("t"), STOP])
    message = json.loads(whole.end(USAGE))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "refusal": None} | (delta or {})


def test_the_end_of_a_stream_without_usage() -> None:
    assert streaming().end(USAGE) == b"data: [DONE]\n\n"


def test_usage_comes_in_a_chunk_of_its_own_and_is_null_before() -> None:
    encoder = streaming(include_usage=True)
    *chunks, last, done = events(encoder.feed(0, [ContentText("a"), STOP]) + encoder.end(USAGE))
    assert [chunk["usage"] for chunk in chunks] == [None] * 3
    assert last == SAME | {"choices": [], "usage": COUNTS}
    assert done == "[DONE]"
    assert ChatCompletionChunk.model_validate(last, strict=True).usage is not None


def test_a_broken_stream_does_not_look_whole() -> None:
    encoder = streaming()
    data = encoder.feed(0, [ContentText("a")]) + encoder.error(EngineBroke("The engine stopped."))
    assert events(data)[-1] == {
        "error": {"message": "The engine stopped.", "type": "upstream_error", "param": None, "code": "engine_broke"}
    }
    assert b"[DONE]" not in data


# --- whole


def whole_of(*deltas: Delta) -> Any:
    encoder = WholeEncoder(ANSWER)
    assert encoder.feed(0, deltas) == b""
    value = json.loads(encoder.end(USAGE))
    ChatCompletion.model_validate(value, strict=True)
    return value


def test_a_whole_answer() -> None:
    assert whole_of(ReasoningText("t"), ContentText("a"), FAILURE, ContentText("b"), STOP) == SAME | {
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab", "refusal": None, "reasoning_content": "t", "reasoning": "t"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": COUNTS,
    }


CALL: list[Delta] = [ToolCallStart(0, "c0", "f"), ToolCallArguments(0, '{"a"'), ToolCallArguments(0, ":1}"), ToolCallEnd(0)]
WRITTEN = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@pytest.mark.parametrize(
    ("deltas", "content", "calls"),
    [
        (CALL, None, [WRITTEN]),
        ([ContentText("a"), *CALL], "a", [WRITTEN]),
        ([*CALL, ToolCallStart(1, "c1", "g"), ToolCallArguments(1, '{"cut')], None, [WRITTEN]),
        (CALL[:-1], "", None),
        ([], "", None),
    ],
)
def test_calls_in_a_whole_answer(deltas: list[Delta], content: str | None, calls: list[Any] | None) -> None:
    message = whole_of(*deltas, STOP)["choices"][0]["message"]
    assert message["content"] == content
    assert message.get("tool_calls") == calls


def test_choices_of_a_whole_answer_are_sorted() -> None:
    encoder = WholeEncoder(ANSWER)
    for choice in (2, 0, 1):
        encoder.feed(choice, [ContentText(str(choice)), STOP])
    choices = json.loads(encoder.end(USAGE))["choices"]
    assert [(choice["index"], choice["message"]["content"]) for choice in choices] == [(0, "0"), (1, "1"), (2, "2")]


def test_an_error_in_place_of_a_whole_answer() -> None:
    error = EngineBroke("The engine stopped.")
    assert WholeEncoder(ANSWER).error(error) == DIALECT.error(error)


# --- tokens

LOGPROBS, IDS, BOTH = TokenFields(True, False), TokenFields(False, True), TokenFields(True, True)
HI = TokenShown(5, b"Hi", -0.5, (TokenShown(5, b"Hi", -0.5), TokenShown(6, b"\xc3", -1.5)))
HALF = TokenShown(6, b"\xc3", -2.0)
END = TokenShown(2, b"<end>", -0.25)
TOLD_HI = {
    "token": "Hi",
    "logprob": -0.5,
    "bytes": [72, 105],
    "top_logprobs": [
        {"token": "Hi", "logprob": -0.5, "bytes": [72, 105]},
        {"token": "\ufffd", "logprob": -1.5, "bytes": [195]},
    ],
}
TOLD_HALF = {"token": "\ufffd", "logprob": -2.0, "bytes": [195], "top_logprobs": []}
TOLD_END = {"token": "<end>", "logprob": -0.25, "bytes": [60, 101, 110, 100, 62], "top_logprobs": []}


def logprobs(*content: Any, missing: int = 0) -> Any:
    return {"content": list(content), "refusal": None} | ({"missing_tokens": missing} if missing else {})


def choices_of(data: bytes) -> list[Any]:
    """Each chunk's one choice but for its index."""
    chunks = events(data)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    return [{key: value for key, value in chunk["choices"][0].items() if key != "index"} for chunk in chunks]


def test_tokens_come_with_the_chunk_that_they_complete_and_the_last_with_the_end() -> None:
    encoder = streaming(tokens=BOTH)
    data = encoder.feed(0, [Tokens((HI,)), ContentText("Hi")])
    assert encoder.feed(0, [Tokens((HALF,))]) == b""
    data += encoder.feed(0, [Tokens((HALF,)), ContentText("é"), Tokens((HI,)), ReasoningText("Hi"), ContentText("!")])
    data += encoder.feed(0, [Tokens((END,)), STOP])
    assert choices_of(data) == [
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
        {"delta": {"content": "Hi"}, "logprobs": logprobs(TOLD_HI), "token_ids": [5], "finish_reason": None},
        {"delta": {"content": "é"}, "logprobs": logprobs(TOLD_HALF, TOLD_HALF), "token_ids": [6, 6], "finish_reason": None},
        {
            "delta": {"reasoning_content": "Hi", "reasoning": "Hi"},
            "logprobs": logprobs(TOLD_HI),
            "token_ids": [5],
            "finish_reason": None,
        },
        {"delta": {"content": "!"}, "finish_reason": None},
        {"delta": {}, "logprobs": logprobs(TOLD_END), "token_ids": [2], "finish_reason": "stop"},
    ]


@pytest.mark.parametrize(("fields", "told"), [(LOGPROBS, {"logprobs": logprobs(TOLD_HI)}), (IDS, {"token_ids": [5]}), (None, {})])
def test_only_what_was_asked_for_is_told(fields: TokenFields | None, told: Any) -> None:
    deltas: list[Delta] = [Tokens((HI,)), ContentText("Hi"), STOP]
    _, chunk, _ = choices_of(streaming(tokens=fields).feed(0, deltas))
    assert chunk == {"delta": {"content": "Hi"}, "finish_reason": None} | told
    whole = WholeEncoder(ANSWER, fields)
    whole.feed(0, deltas)
    body = json.loads(whole.end(USAGE))
    ChatCompletion.model_validate(body, strict=True)
    (choice,) = body["choices"]
    assert {key: choice[key] for key in choice.keys() - {"index", "message", "finish_reason"}} == {"logprobs": None} | told


def test_tokens_that_the_engine_did_not_name_are_counted() -> None:
    unknown = TokenShown(7, b"x")
    encoder = streaming(tokens=BOTH)
    _, first, end = choices_of(encoder.feed(0, [Tokens((HI, unknown), missing=2), ContentText("Hi"), Tokens((), 1), STOP]))
    assert (first["logprobs"], first["token_ids"]) == (logprobs(TOLD_HI, missing=3), [5, 7])
    assert (end["logprobs"], end["token_ids"]) == (logprobs(missing=1), [])


def test_tokens_of_thoughts_that_are_not_shown_come_with_the_next_chunk() -> None:
    encoder = streaming(answer=Answer("chatcmpl-1", 1, "m", ()), tokens=IDS)
    data = encoder.feed(0, [Tokens((HALF,)), ReasoningText("t"), Tokens((HI,)), ContentText("Hi")])
    assert [choice.get("token_ids") for choice in choices_of(data)] == [None, [6, 5]]


@pytest.mark.parametrize(("fields", "told"), [(IDS, [1, 4093]), (LOGPROBS, None)])
def test_the_prompts_ids_come_first(fields: TokenFields, told: Any) -> None:
    answer = Answer("chatcmpl-1", 1, "m", prompt_ids=(1, 4093))
    encoder, whole = streaming(answer=answer, tokens=fields), WholeEncoder(answer, fields)
    chunks = events(encoder.feed(0, [Tokens((HI,)), ContentText("Hi"), STOP]))
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [told, None, None]
    assert chunks[0]["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    whole.feed(0, [STOP])
    assert json.loads(whole.end(USAGE)).get("prompt_token_ids") == told


def test_an_engines_own_prompt_ids_are_in_the_whole_answer() -> None:
    encoder, deaf = WholeEncoder(ANSWER, IDS), WholeEncoder(ANSWER, LOGPROBS)
    for each in (encoder, deaf):
        each.passed(0, b'{"prompt_token_ids":[3,4]}', [])
        each.passed(0, b'{"prompt_token_ids":null}', [Tokens((HI,)), STOP])
    assert json.loads(encoder.end(USAGE))["prompt_token_ids"] == [3, 4]
    assert "prompt_token_ids" not in json.loads(deaf.end(USAGE))
    with pytest.raises(EngineBroke, match="prompt_token_ids cannot be read"):
        WholeEncoder(ANSWER, IDS).passed(0, b'{"prompt_token_ids":["a"]}', [])


# --- streamed equals whole


def answers(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[Delta]]:
    """Answers as a parser gives them: pieces, calls that end or, the last one, perhaps not."""

    @st.composite
    def build(draw: st.DrawFn) -> list[Delta]:
        deltas: list[Delta] = []
        calls = 0
        for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "failure", "call", "tokens"]), max_size=8)):
            if kind == "tokens":
                deltas.append(draw(generated))
            elif kind == "call":
                pieces = draw(st.lists(texts, max_size=3))
                deltas += [
                    ToolCallStart(calls, f"c{calls}", draw(texts)),
                    *(ToolCallArguments(calls, piece) for piece in pieces),
                    ToolCallEnd(calls),
                ]
                calls += 1
            else:
                text = draw(texts)
                pieces_of: dict[str, Delta] = {"content": ContentText(text), "reasoning": ReasoningText(text), "failure": FAILURE}
                deltas.append(pieces_of[kind])
        if draw(st.booleans()):
            deltas += [ToolCallStart(calls, "cut", "f"), ToolCallArguments(calls, '{"')]
        return [*deltas, Finish(draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"])), USAGE)]

    return build()


likely = st.builds(TokenShown, st.integers(0, 9), st.binary(max_size=3), st.floats(-9, 0))
shown = st.builds(
    TokenShown, st.integers(0, 9), st.binary(max_size=3), st.none() | st.floats(-9, 0), st.tuples() | st.tuples(likely)
)
generated = st.builds(Tokens, st.lists(shown, min_size=1, max_size=2).map(tuple), st.integers(0, 2))


def grouped(deltas: Sequence[Delta], places: Sequence[int]) -> list[Sequence[Delta]]:
    bounds = sorted({0, len(deltas), *(place % (len(deltas) + 1) for place in places)})
    return [deltas[a:b] for a, b in pairwise(bounds)]


NO_TOKENS: dict[str, Any] = {"entries": [], "missing": 0, "ids": []}


def folded(chunks: Sequence[Any], ended: set[tuple[int, int]]) -> dict[int, Any]:
    """What a client makes of a stream; calls that did not end are left out, as in a whole answer."""
    choices: dict[int, Any] = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        index, delta = choice["index"], choice["delta"]
        told = choices.setdefault(index, {"role": [], "content": "", "reasoning": "", "calls": {}, "finish": [], **NO_TOKENS})
        if "logprobs" in choice:
            told["entries"] = told["entries"] + choice["logprobs"]["content"]
            told["missing"] += choice["logprobs"].get("missing_tokens", 0)
        told["ids"] = told["ids"] + choice.get("token_ids", [])
        told["content"] += delta.get("content", "")
        told["reasoning"] += delta.get("reasoning", "")
        told["role"] += [delta["role"]] if "role" in delta else []
        told["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
        for call in delta.get("tool_calls", []):
            if "id" in call:
                told["calls"][call["index"]] = {"id": call["id"], "type": call["type"], "function": dict(call["function"])}
            else:
                told["calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    for index, told in choices.items():
        told["calls"] = [call for number, call in told["calls"].items() if (index, number) in ended]
    return choices


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(answers(texts), min_size=1, max_size=3),
    st.lists(st.integers(min_value=0), max_size=6),
    st.booleans(),
    st.sampled_from([None, LOGPROBS, IDS, BOTH]),
)
def test_the_stream_folded_is_the_whole_answer(
    choices: list[list[Delta]], places: list[int], include_usage: bool, tokens: TokenFields | None
) -> None:
    stream, whole = streaming(include_usage, tokens=tokens), WholeEncoder(ANSWER, tokens)
    data = b""
    for index, deltas in enumerate(choices):
        for group in grouped(deltas, places):
            data += stream.feed(index, group)
            assert whole.feed(index, group) == b""
    *chunks, done = events(data + stream.end(USAGE))
    assert done == "[DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    body = json.loads(whole.end(USAGE))
    ChatCompletion.model_validate(body, strict=True)
    assert (chunks[-1]["usage"] == body["usage"]) if include_usage else all("usage" not in chunk for chunk in chunks)
    ended = {(index, delta.index) for index, deltas in enumerate(choices) for delta in deltas if isinstance(delta, ToolCallEnd)}
    streamed = folded(chunks, ended)
    assert sorted(streamed) == [choice["index"] for choice in body["choices"]]
    for choice in body["choices"]:
        told, message = streamed[choice["index"]], choice["message"]
        assert told["role"] == [message["role"]]
        assert told["content"] == (message["content"] or "")
        assert told["reasoning"] == message.get("reasoning", "") == message.get("reasoning_content", "")
        assert told["calls"] == message.get("tool_calls", [])
        assert told["finish"] == [choice["finish_reason"]]
        said = choice["logprobs"] or {"content": []}
        assert (told["entries"], told["missing"]) == (said["content"], said.get("missing_tokens", 0))
        assert told["ids"] == choice.get("token_ids", [])
        generated = [delta for delta in choices[choice["index"]] if isinstance(delta, Tokens)]
        if tokens is not None and tokens.logprobs:
            assert len(told["entries"]) + told["missing"] == sum(len(each.tokens) + each.missing for each in generated)
        if tokens is not None and tokens.ids:
            assert told["ids"] == [token.id for each in generated for token in each.tokens]


# --- an engine's own events

RAW = b'{"id":"e1","object":"chat.completion.chunk","created":5,"model":"engine","choices":[{"index":0,"delta":{"content":"a"}}]}'


MENTIONED = b'{"choices":[{"delta":{"content":"\\"model\\":\\"engine\\"","more":{"model":"engine","id":1}}}],"model":'
OWN = b'"model":"my \\"model\\""'
STAMP = b'"id":"chatcmpl-1","created":1764400000'


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (MENTIONED + b'"engine"}', MENTIONED + OWN.removeprefix(b'"model":') + b"," + STAMP + b"}"),
        (RAW, RAW.replace(b'"model":"engine"', OWN).replace(b'"e1"', b'"chatcmpl-1"').replace(b":5,", b":1764400000,")),
        (b'{"a\\"model":"engine","model":"engine"}', b'{"a\\"model":"engine",' + OWN + b"," + STAMP + b"}"),
        (
            b'{"choices":[1.50, 2e1,"\\u00e9"],"created":null,"model":"e"}',
            b'{"choices":[1.50, 2e1,"\\u00e9"],"created":1764400000,' + OWN + b',"id":"chatcmpl-1"}',
        ),
        (b'{"choices":[{}]}', b'{"choices":[{}],' + STAMP + b"," + OWN + b"}"),
        (b'{"model":"e",\n"choices":[\n{},\r\n{}]\n}', b"{" + OWN + b',"choices":[ {},  {}],' + STAMP + b"}"),
        (b'{"model":"e","choices":[{}],"usage":{"total_tokens":3}}', b"{" + OWN + b',"choices":[{}],' + STAMP + b"}"),
        (b'{"model":"e","choices":[{}],"usage":null}', b"{" + OWN + b',"choices":[{}],' + STAMP + b"}"),
        (
            b'{"model":"e","choices":[],"prompt_filter_results":[]}',
            b"{" + OWN + b',"choices":[],"prompt_filter_results":[],' + STAMP + b"}",
        ),
    ],
)
def test_an_engines_event_is_passed_with_this_answers_id_time_and_model_name(raw: bytes, expected: bytes) -> None:
    assert streaming().passed(0, raw, []) == b"data: " + expected + b"\n\n"


def test_all_chunks_of_a_passed_answer_have_one_id_and_time() -> None:
    encoder = streaming(include_usage=True)
    *chunks, done = events(encoder.passed(0, RAW, []) + encoder.feed(0, [STOP]) + encoder.end(USAGE))
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks} == {("chatcmpl-1", 1_764_400_000, 'my "model"')}
    assert (len(chunks), done) == (3, "[DONE]")


ENGINE_USAGE = b'{"model":"e","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"cost":4}}'


def test_an_engines_usage_is_hidden_where_it_was_not_asked_for() -> None:
    encoder = streaming()
    assert encoder.passed(0, ENGINE_USAGE, []) == b""
    assert encoder.end(USAGE) == b"data: [DONE]\n\n"


def test_an_engines_usage_is_given_once_where_it_was_asked_for() -> None:
    encoder = streaming(include_usage=True)
    data = encoder.passed(0, RAW, []) + encoder.passed(0, ENGINE_USAGE, []) + encoder.end(USAGE)
    assert [event if event == "[DONE]" else event.get("usage") for event in events(data)] == [
        None,
        {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "cost": 4},
        "[DONE]",
    ]


def test_usage_is_given_where_the_engine_gave_none() -> None:
    encoder = streaming(include_usage=True)
    assert events(encoder.passed(0, RAW, []) + encoder.end(USAGE))[1]["usage"] == COUNTS


def test_no_second_role_after_an_engines_own_events() -> None:
    encoder = streaming()
    encoder.passed(0, RAW, [ContentText("a")])
    assert told(encoder.feed(0, [STOP])) == [(0, {}, "stop")]


def test_an_event_that_is_no_object_is_the_engines_fault() -> None:
    with pytest.raises(EngineBroke, match="not a JSON object: expected an object, got an array"):
        streaming().passed(0, b"[]", [])


def test_a_whole_answer_of_an_engines_events_is_the_fold_of_their_deltas() -> None:
    encoder = WholeEncoder(ANSWER)
    assert encoder.passed(0, RAW, [ContentText("a")]) == b""
    assert encoder.passed(0, RAW, [STOP]) == b""
    assert json.loads(encoder.end(USAGE))["choices"][0]["message"]["content"] == "a"


# --- the dialect


def encoder_for(**fields: Any) -> Encoder:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields).encode()
    return DIALECT.encoder(DIALECT.parse(body, Limits()), ANSWER)


def test_the_request_says_which_encoder() -> None:
    assert DIALECT.name == "openai_chat"
    assert DIALECT.path == "/v1/chat/completions"
    assert isinstance(encoder_for(), WholeEncoder)
    asked = encoder_for(logprobs=True, return_token_ids=True, stream=True).feed(0, [Tokens((HI,)), ContentText("Hi")])
    assert choices_of(asked)[1].keys() == {"logprobs", "token_ids", "delta", "finish_reason"}
    assert encoder_for(stream=True).end(USAGE) == b"data: [DONE]\n\n"
    assert encoder_for(stream=True, stream_options={"include_usage": True}).end(USAGE).count(b"data: ") == 2


@pytest.mark.parametrize(
    ("error", "type_", "param", "code"),
    [
        (BadRequest("no", param="n"), "invalid_request_error", "n", None),
        (ModelNotFound("x"), "invalid_request_error", "model", "model_not_found"),
        (Rejected("full", reason="queue_full", retry_after_s=1), "overloaded_error", None, "queue_full"),
        (EngineBroke("broke"), "upstream_error", None, "engine_broke"),
    ],
)
def test_errors(error: GatewayError, type_: str, param: str | None, code: str | None) -> None:
    assert json.loads(DIALECT.error(error)) == {"error": {"message": error.message, "type": type_, "param": param, "code": code}}


def test_the_list_of_models() -> None:
    assert json.loads(models_list([ModelCard("a", 5, 4096), ModelCard("b", 6)])) == {
        "object": "list",
        "data": [
            {"id": "a", "object": "model", "created": 5, "owned_by": "interlock", "max_model_len": 4096},
            {"id": "b", "object": "model", "created": 6, "owned_by": "interlock"},
        ],
    }
