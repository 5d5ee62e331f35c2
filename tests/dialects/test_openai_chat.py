import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.dialects.base import Answer, Dialect, Encoder, Limits
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


def streaming(include_usage: bool = False, answer: Answer = ANSWER) -> StreamEncoder:
    return StreamEncoder(answer, include_usage)


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


# --- streamed equals whole


def answers(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[Delta]]:
    """Answers as a parser gives them: pieces, calls that end or, the last one, perhaps not."""

    @st.composite
    def build(draw: st.DrawFn) -> list[Delta]:
        deltas: list[Delta] = []
        calls = 0
        for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "failure", "call"]), max_size=8)):
            if kind == "call":
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


def grouped(deltas: Sequence[Delta], places: Sequence[int]) -> list[Sequence[Delta]]:
    bounds = sorted({0, len(deltas), *(place % (len(deltas) + 1) for place in places)})
    return [deltas[a:b] for a, b in pairwise(bounds)]


def folded(chunks: Sequence[Any], ended: set[tuple[int, int]]) -> dict[int, Any]:
    """What a client makes of a stream; calls that did not end are left out, as in a whole answer."""
    choices: dict[int, Any] = {}
    for choice in [choice for chunk in chunks for choice in chunk["choices"]]:
        index, delta = choice["index"], choice["delta"]
        told = choices.setdefault(index, {"role": [], "content": "", "reasoning": "", "calls": {}, "finish": []})
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
@given(st.lists(answers(texts), min_size=1, max_size=3), st.lists(st.integers(min_value=0), max_size=6), st.booleans())
def test_the_stream_folded_is_the_whole_answer(choices: list[list[Delta]], places: list[int], include_usage: bool) -> None:
    stream, whole = streaming(include_usage), WholeEncoder(ANSWER)
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
