"""The pass-through adapter: the client's bytes go out, the engine's come back, and what they say is read beside them."""

import json
import urllib.request
from typing import Any

import pytest
from support.llamacpp import EngineUnderTest

from engines.base import Chunk, EngineInfo, Work
from engines.openai_compatible import OpenAiCompatible, OpenAiReader, TokensReader
from gateway.errors import BadRequest, ContextTooLong, EngineBroke, EngineRefused
from gateway.request import (
    ContentText,
    Delta,
    GenerateRequest,
    ReasoningText,
    Tokens,
    TokenShown,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from gateway.wire.sse import SseEvent, SseReader


def work(body: bytes, model: str | None = "theirs") -> Work:
    return Work(request=GenerateRequest("ours", (), body=body), model=model)


def event(delta: Any = None, finish: str | None = None, **changes: Any) -> bytes:
    choice = {"index": changes.pop("index", 0), "delta": delta or {}, "finish_reason": finish}
    return json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice], **changes}).encode()


def read(*events: bytes) -> list[Chunk]:
    reader = OpenAiReader()
    return [chunk for one in events if (chunk := reader.chunk(SseEvent(one))) is not None]


def called(index: int | None, arguments: str | None = None, id: str | None = None, name: str | None = None) -> dict[str, Any]:
    piece: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, "type": "function"}
    return {"tool_calls": [piece | ({} if index is None else {"index": index}) | ({} if id is None else {"id": id})]}


def test_only_three_fields_of_the_body_change() -> None:
    body = b'{ "messages":[ {"role":"user", "content":"\xc3\xa9\\u00e9"} ],"model":"ours","top_p":0.10, "stream":false, "x":null}'
    call = OpenAiCompatible().call(work(body))
    assert call.path == "/v1/chat/completions"
    assert call.body == (
        b'{"messages":[ {"role":"user", "content":"\xc3\xa9\\u00e9"} ],"top_p":0.10,"stream":true,"x":null,'
        b'"stream_options":{"include_usage":true},"model":"theirs"}'
    )


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b'{"stream_options":null}', {"include_usage": True}),
        (b'{"stream_options":{"include_usage":false,"chunk":3}}', {"include_usage": True, "chunk": 3}),
    ],
)
def test_other_stream_options_stay(given: bytes, sent: Any) -> None:
    assert json.loads(OpenAiCompatible().call(work(given)).body)["stream_options"] == sent


def test_without_a_name_of_its_own_the_engine_is_sent_none() -> None:
    assert "model" not in json.loads(OpenAiCompatible().call(work(b'{"model":"ours"}', None)).body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"stream_options":5}'])
def test_a_body_that_cannot_be_spliced_is_the_clients_fault(body: bytes) -> None:
    with pytest.raises(BadRequest):
        OpenAiCompatible().call(work(body))


def test_text_thought_finish_and_usage() -> None:
    first, thought, other, text, end, used = events = (
        event({"role": "assistant", "content": ""}),
        event({"reasoning_content": "hm"}),
        event({"reasoning": "hm"}, usage=None),
        event({"content": "Hi", "reasoning_content": None}),
        event({}, "stop"),
        json.dumps(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 9,
                    "completion_tokens": 4,
                    "prompt_tokens_details": {"cached_tokens": 8},
                    "completion_tokens_details": {"reasoning_tokens": 2},
                },
            }
        ).encode(),
    )
    assert read(*events, b"[DONE]", b"anything") == [
        Chunk(raw=first),
        Chunk(raw=thought, tokens=1, deltas=(ReasoningText("hm"),)),
        Chunk(raw=other, tokens=1, deltas=(ReasoningText("hm"),)),
        Chunk(raw=text, tokens=1, deltas=(ContentText("Hi"),)),
        Chunk(raw=end, finish="stop"),
        Chunk(raw=used, usage=Usage(9, 4, 8, 2)),
    ]


# Tokens


def entry(token: str, logprob: float, data: Any = None, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": data, **more}


def with_tokens(content: str | None = None, finish: str | None = None, **told: Any) -> bytes:
    delta = {} if content is None else {"content": content}
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **told}]}).encode()


HALF = entry("\\xc3", -1.0, [195], top_logprobs=[entry("Hi", -0.5), entry("\\xc3", -1.0, [195])])
HALF_SHOWN = (TokenShown(-1, b"Hi", -0.5), TokenShown(-1, b"\xc3", -1.0))


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        ({}, ()),
        ({"logprobs": None, "token_ids": None}, ()),
        ({"logprobs": {"content": None, "refusal": None}, "token_ids": []}, ()),
        ({"token_ids": [5, 6]}, (TokenShown(5, b""), TokenShown(6, b""))),
        ({"logprobs": {"content": [entry("Hi", -0.5)]}}, (TokenShown(-1, b"Hi", -0.5),)),
        (
            {"logprobs": {"content": [HALF, entry("é", 0, top_logprobs=None)]}, "token_ids": [7, 8]},
            (TokenShown(7, b"\xc3", -1.0, HALF_SHOWN), TokenShown(8, "é".encode(), 0.0)),
        ),
    ],
)
def test_tokens_are_read_as_openai_and_vllm_tell_them(told: Any, tokens: tuple[TokenShown, ...]) -> None:
    reader = TokensReader()
    chunk, end = (reader.chunk(SseEvent(one)) for one in (with_tokens("Hi", **told), with_tokens(None, "stop", **told)))
    assert chunk is not None
    assert end is not None
    before: tuple[Delta, ...] = (Tokens(tokens),) if tokens else ()
    assert (chunk.deltas, end.deltas) == ((*before, ContentText("Hi")), before)


@pytest.mark.parametrize(
    "told",
    [
        {"token_ids": [1], "logprobs": {"content": [entry("a", -1), entry("b", -1)]}},
        {"token_ids": ["a"]},
        {"token_ids": [-1]},
        {"logprobs": {"content": [entry("a", -1, [256])]}},
        {"logprobs": {"content": [{"token": "a"}]}},
        {"logprobs": []},
    ],
)
def test_tokens_that_cannot_be_true_are_a_broken_engine(told: Any) -> None:
    with pytest.raises(EngineBroke):
        TokensReader().chunk(SseEvent(with_tokens("a", **told)))
    (chunk,) = read(with_tokens("a", **told))  # of no concern where they were not asked for
    assert chunk.deltas == (ContentText("a"),)


@pytest.mark.parametrize(
    ("asked", "reader"),
    [
        ({}, OpenAiReader),
        ({"logprobs": 0}, TokensReader),
        ({"return_token_ids": True}, TokensReader),
        ({"logprobs": 2, "stream": True}, OpenAiReader),  # the events pass as they are
    ],
)
def test_tokens_are_read_only_where_they_are_asked_for(asked: Any, reader: type) -> None:
    assert type(OpenAiCompatible().reader(Work(request=GenerateRequest("m", (), **asked)))) is reader


def test_done_is_the_end_mark_only() -> None:
    reader = OpenAiReader()
    ends = [(reader.chunk(SseEvent(data)) is None, reader.done) for data in (event({}, "stop"), b"[DONE]", b"<html>")]
    assert ends == [(False, False), (True, True), (True, True)]


def test_sglangs_place_of_reasoning_tokens_and_null_details() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "reasoning_tokens": 1, "prompt_tokens_details": None}
    (chunk,) = read(json.dumps({"choices": [], "usage": usage}).encode())
    assert chunk.usage == Usage(1, 2, 0, 1)


def test_calls_begin_once_and_end_with_the_answer() -> None:
    chunks = read(
        event(called(0, "", "a", "f")),
        event(called(0, '{"x"')),
        event(called(1, None, "b", "g")),
        event(called(0, ":1}", "a", "f")),
        event(called(1, "{}")),
        event({}, "tool_calls"),
    )
    assert [chunk.deltas for chunk in chunks] == [
        (ToolCallStart(0, "a", "f"),),
        (ToolCallArguments(0, '{"x"'),),
        (ToolCallStart(1, "b", "g"),),
        (ToolCallArguments(0, ":1}"),),
        (ToolCallArguments(1, "{}"),),
        (ToolCallEnd(0), ToolCallEnd(1)),
    ]
    assert [chunk.tokens for chunk in chunks] == [1, 1, 1, 1, 1, 0]


def test_calls_without_index_are_told_apart_by_their_id() -> None:
    chunks = read(event(called(None, "{", "a", "f")), event(called(None, "}")), event(called(None, "{}", "b", "g")))
    assert [type(delta).__name__ for chunk in chunks for delta in chunk.deltas] == [
        *("ToolCallStart", "ToolCallArguments", "ToolCallArguments", "ToolCallStart", "ToolCallArguments")
    ]
    assert chunks[-1].deltas[0] == ToolCallStart(1, "b", "g")


def test_the_last_call_of_a_cut_answer_is_not_whole() -> None:
    *_, end = read(event(called(0, "{}", "a", "f")), event(called(1, "{", "b", "g")), event({}, "length"))
    assert end.deltas == (ToolCallEnd(0),)


def test_a_call_is_told_from_where_its_name_is_known() -> None:
    chunks = read(
        event(called(0, None, "a")),
        event(called(0, '{"x"')),
        event(called(0, ":1", None, "f")),
        event(called(0, "}", None, "f")),
        event({}, "tool_calls"),
    )
    assert [chunk.deltas for chunk in chunks] == [
        (),
        (),
        (ToolCallStart(0, "a", "f"), ToolCallArguments(0, '{"x":1')),
        (ToolCallArguments(0, "}"),),
        (ToolCallEnd(0),),
    ]
    assert [chunk.tokens for chunk in chunks] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(("finish", "ends"), [("stop", (ToolCallEnd(0),)), ("length", ())])
def test_a_call_that_never_has_a_name_is_told_at_the_end(finish: str, ends: tuple[Any, ...]) -> None:
    first, end = read(event({"tool_calls": [{"index": 0}, {"index": 0, "function": {"arguments": "{}"}}]}), event({}, finish))
    assert first.deltas == ()
    assert end.deltas == (ToolCallStart(0, "", ""), ToolCallArguments(0, "{}"), *ends)


def test_not_much_is_held_for_a_call_without_a_name() -> None:
    assert read(event(called(0, "x" * 70_000, "a", "f")))[0].deltas[-1] == ToolCallArguments(0, "x" * 70_000)
    with pytest.raises(EngineBroke, match="without its name"):
        read(event(called(0, "x" * 40_000, "a")), event(called(0, "x" * 40_000)))


def test_an_id_that_is_said_again_begins_no_second_call() -> None:
    chunks = read(event(called(None, "{", "a", "f")), event(called(None, "}", "a")))
    assert chunks[-1].deltas == (ToolCallArguments(0, "}"),)


def test_bytes_that_are_not_utf8_are_replaced_and_never_passed_on() -> None:
    data = event({"content": "a?é", "extra": "?"}).replace(b"?", b"\xff")
    (chunk,) = read(data)
    assert chunk.deltas == (ContentText("a\ufffdé"),)
    assert chunk.raw == data.replace(b"\xff", "\ufffd".encode())


def test_choices_are_kept_apart() -> None:
    chunks = read(
        event(called(0, "{}", "a", "f"), index=1), event({"content": "x"}), event({}, "tool_calls", index=1), event({}, "stop")
    )
    assert [(chunk.choice, len(chunk.deltas)) for chunk in chunks] == [(1, 2), (0, 1), (1, 1), (0, 0)]


def test_usage_along_the_way_counts_better_than_events() -> None:
    chunks = read(
        event({"content": "a"}, usage={"completion_tokens": 3}),
        event({"content": "b"}),
        event({"content": "c"}, usage={"completion_tokens": 9}),
        event({"content": "d"}, "stop", usage={"completion_tokens": None}),
    )
    assert [chunk.tokens for chunk in chunks] == [3, 1, 5, 1]


@pytest.mark.parametrize("said", [-3, 2**40 + 1, 10**30])
def test_usage_along_the_way_that_cannot_be_is_not_counted_by(said: int) -> None:
    chunks = read(event({"content": "a"}, usage={"completion_tokens": said}), event({"content": "b"}))
    assert [chunk.tokens for chunk in chunks] == [1, 1]


@pytest.mark.parametrize(
    ("said", "meant"),
    [("eos", "stop"), ("model_length", "length"), ("function_call", "tool_calls"), ("content_filter", "content_filter")],
)
def test_finish_reasons(said: str, meant: str) -> None:
    (chunk,) = read(event({}, said))
    assert chunk.finish == meant


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[1]",
        b"<html>",
        b'{"choices":{}}',
        b'{"choices":[{"delta":{"content":5}}]}',
        b'{"choices":[{},{}]}',
        b'{"choices":[{"finish_reason":"abort"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":NaN}}',
        b'{"error":{"message":"at 10.0.0.1:80","type":"x","code":500}}',
        b'{"object":"error","message":"at 10.0.0.1:80","type":"x","code":500}',
        b'{"error":{"message":"bad key","code":401}}',
        b'{"error":"boom"}',
    ],
)
def test_an_event_that_is_not_the_protocols_is_a_broken_engine(data: bytes) -> None:
    with pytest.raises(EngineBroke) as caught:
        read(data)
    assert "10.0.0.1" not in caught.value.message


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":{"message":"too many tools","code":422,"type":"BadRequest"}}',
        b'{"object":"error","message":"too many tools","code":422}',
    ],
)
def test_a_clients_fault_that_is_told_in_the_stream_stays_the_clients(data: bytes) -> None:
    with pytest.raises(EngineRefused, match="too many tools") as caught:
        read(data)
    assert caught.value.status == 422


def test_an_event_without_a_delta_or_choices_means_nothing_but_passes() -> None:
    assert read(b'{"choices":[{"index":0}]}', b"{}") == [Chunk(raw=b'{"choices":[{"index":0}]}'), Chunk(raw=b"{}")]


def test_errors_are_read_in_both_shapes() -> None:
    adapter = OpenAiCompatible()
    said = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the messages)."
    assert isinstance(adapter.error(400, json.dumps({"error": {"message": said, "code": 400}}).encode()), ContextTooLong)
    assert isinstance(adapter.error(400, json.dumps({"object": "error", "message": said, "code": 400}).encode()), ContextTooLong)


@pytest.mark.parametrize(
    ("body", "info"),
    [
        (b'{"data":[{"id":"m","max_model_len":4096}]}', EngineInfo(model="m", context_tokens=4096)),
        (b'{"data":[{"id":"m","meta":{"n_ctx":512}}]}', EngineInfo(model="m", context_tokens=512)),
        (b'{"data":[{"id":"m"}]}', EngineInfo(model="m")),
        (b'{"data":[{"id":"m"},{"id":"n"}]}', EngineInfo()),
        (b'{"data":[]}', EngineInfo()),
        (b"<html>", EngineInfo()),
    ],
)
def test_info(body: bytes, info: EngineInfo) -> None:
    assert OpenAiCompatible().info([body]) == info


def test_info_without_an_answer() -> None:
    assert OpenAiCompatible().info([]) == EngineInfo()


@pytest.mark.engine
def test_real_log_probabilities(local_engine: EngineUnderTest) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 2}
    asked = Work(request=GenerateRequest("ours", (), body=json.dumps(body).encode(), logprobs=2))
    _, chunks = answered(local_engine, asked)
    deltas = [delta for chunk in chunks for delta in chunk.deltas]
    tokens = [token for delta in deltas if isinstance(delta, Tokens) for token in delta.tokens]
    assert len(tokens) == 5
    assert b"".join(token.data for token in tokens).decode() == "".join(d.text for d in deltas if isinstance(d, ContentText))
    assert all(len(token.top) == 2 and token.logprob == token.top[0].logprob for token in tokens)


CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 5, "model": "ours"}


def answered(engine: EngineUnderTest, asked: Work) -> tuple[list[SseEvent], list[Chunk]]:
    """The real engine's events, and what the adapter makes of them."""
    adapter = OpenAiCompatible()
    call = adapter.call(asked)
    request = urllib.request.Request(engine.url + call.path, call.body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        events = SseReader().feed(answer.read())
    reader = adapter.reader(asked)
    chunks = [chunk for one in events if (chunk := reader.chunk(one)) is not None]
    assert reader.done
    return events, chunks


@pytest.mark.engine
def test_a_real_chat(local_engine: EngineUnderTest) -> None:
    adapter = OpenAiCompatible()
    events, chunks = answered(local_engine, work(json.dumps(CHAT).encode(), None))
    assert [chunk.raw for chunk in chunks] == [one.data for one in events[:-1]]
    assert "".join(delta.text for chunk in chunks for delta in chunk.deltas if isinstance(delta, ContentText)).strip()
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["length"]
    (usage,) = (chunk.usage for chunk in chunks if chunk.usage)
    assert usage.completion_tokens == 5
    with urllib.request.urlopen(local_engine.url + adapter.info_paths[0], timeout=5) as models:
        assert adapter.info([models.read()]) == EngineInfo(model="smollm2", context_tokens=4096)
