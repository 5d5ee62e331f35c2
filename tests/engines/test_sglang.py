"""The SGLang adapter: what it asks, and each trap of a stream whose events have all ids, or the new ones."""

import json
from typing import Any

import pytest

from engines.base import Chunk, EngineInfo, EngineLoad, TokenLogprob, Work
from engines.sglang import Sglang, SglangReader
from gateway.errors import BadRequest, ContextTooLong, EngineBroke, EngineRefused, GatewayError
from gateway.request import CallAnswer, GenerateRequest, JsonAnswer, Sampling, ToolSpec, Usage
from gateway.wire.sse import SseEvent

STOP, END, STARS = 3, 2, 7
DONE = b"[DONE]"


def work(*, logprobs: int | None = None, sampling: Sampling | None = None, **changes: Any) -> Work:
    request = GenerateRequest("small", (), sampling=sampling or Sampling(), logprobs=logprobs)
    return Work(request=request, **{"ids": (1, 2), "max_tokens": 8, **changes})


def body(wanted: Work) -> Any:
    return json.loads(Sglang().call(wanted).body)


def reader_for(logprobs: int | None = None) -> SglangReader:
    return SglangReader(frozenset({STOP}), (STOP, END, STARS), alternatives=logprobs)


def fed(*events: object, reader: SglangReader | None = None) -> list[Chunk | None]:
    reader = reader or reader_for()
    return [reader.chunk(SseEvent(each if isinstance(each, bytes) else json.dumps(each).encode())) for each in events]


def said(ids: list[int], count: int, end: dict[str, object] | None = None, **meta: object) -> dict[str, object]:
    about = {"id": "r", "finish_reason": end, "prompt_tokens": 5, "cached_tokens": 4, "completion_tokens": count, **meta}
    return {"text": "never read", "output_ids": ids, "meta_info": about}


def stopped(at: int) -> dict[str, object]:
    return {"type": "stop", "matched": at}


LENGTH: dict[str, object] = {"type": "length", "length": 8}


def test_a_call_says_all_that_the_client_set_and_never_a_stop_string() -> None:
    sampling = Sampling(0.5, 0.9, 40, 0.1, 1.1, 0.2, 0.3, 7, ((5, -100.0),), min_tokens=3)
    request = GenerateRequest("small", (), sampling=sampling, stop=("x",), logprobs=4)
    call = Sglang().call(Work(request=request, ids=(1, 2), stop_ids=frozenset({9, 2}), max_tokens=9, model="m", choice=2))
    assert call.path == "/generate"
    assert json.loads(call.body) == {
        "input_ids": [1, 2],
        "stream": True,
        "return_logprob": True,
        "top_logprobs_num": 4,
        "sampling_params": {
            "max_new_tokens": 9,
            "stop_token_ids": [2, 9],
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.2,
            "frequency_penalty": 0.3,
            "sampling_seed": 9,
            "logit_bias": {"5": -100.0},
            "min_new_tokens": 3,
        },
    }


def test_what_the_client_did_not_set_is_the_engines_default_but_for_its_limit_of_128_tokens() -> None:
    asked = body(work(max_tokens=None))
    assert asked.keys() == {"input_ids", "stream", "sampling_params"}
    assert asked["sampling_params"] == {"max_new_tokens": None, "stop_token_ids": []}


@pytest.mark.parametrize(("top_k", "sent"), [(0, -1), (-1, -1), (1, 1)])
def test_every_way_to_say_all_tokens_is_sglangs(top_k: int, sent: int) -> None:
    assert body(work(sampling=Sampling(top_k=top_k)))["sampling_params"]["top_k"] == sent


@pytest.mark.parametrize(("seed", "choice", "sent"), [(2**63 - 1, 1, 0), (-1, 0, 2**63 - 1), (0, 3, 3)])
def test_a_seed_is_one_that_the_engine_takes(seed: int, choice: int, sent: int) -> None:
    assert body(work(sampling=Sampling(seed=seed), choice=choice))["sampling_params"]["sampling_seed"] == sent


def test_with_ignore_eos_no_end_of_turn_is_generated() -> None:
    asked = body(work(sampling=Sampling(ignore_eos=True, min_tokens=2), stop_ids=frozenset({END})))["sampling_params"]
    assert asked["min_new_tokens"] == asked["max_new_tokens"] == 8
    assert asked["stop_token_ids"] == [END]
    assert "ignore_eos" not in asked


@pytest.mark.parametrize(
    ("sampling", "max_tokens", "param"),
    [(Sampling(repetition_penalty=2.1), 8, "repetition_penalty"), (Sampling(ignore_eos=True), None, "max_tokens")],
)
def test_what_sglang_does_not_take_is_refused_with_its_field(sampling: Sampling, max_tokens: int | None, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Sglang().call(work(sampling=sampling, max_tokens=max_tokens))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "constraint",
    [JsonAnswer({"type": "null"}, "</think>"), CallAnswer((ToolSpec("f"),), "<c>", "</c>", "\n", "name", "arguments", False)],
)
def test_a_constraint_becomes_a_grammar(constraint: JsonAnswer | CallAnswer) -> None:
    asked = body(work(constraint=constraint))["sampling_params"]
    assert asked["ebnf"].startswith("root ::= ")
    assert not asked.keys() & {"json_schema", "regex", "structural_tag"}


ALL = [said([5], 1), said([5, 6, 8], 3), said([5, 6, 8, STOP], 4, stopped(STOP)), DONE]
NEW = [said([5], 1), said([6, 8], 3), said([STOP], 4, stopped(STOP)), DONE]


@pytest.mark.parametrize("events", [ALL, NEW], ids=["cumulative", "incremental"])
def test_both_ways_to_stream_are_told_apart_by_the_count(events: list[object]) -> None:
    assert fed(*events) == [
        Chunk(tokens=1, ids=(5,), usage=Usage(5, 1, 4)),
        Chunk(tokens=2, ids=(6, 8)),
        None,
        Chunk(tokens=1, ids=(), stop_id=STOP, finish="stop", usage=Usage(5, 4, 4)),
    ]


@pytest.mark.parametrize(
    "events",
    [
        [said([], 0), said([5, 5], 2), said([5, 5], 2), said([5, 5, 5, 5], 4, LENGTH), DONE],
        [said([], 0), said([5, 5], 2), said([], 2), said([5, 5], 4, LENGTH), DONE],
        [said([5, 5, 5, 5], 4, LENGTH), DONE],
    ],
)
def test_repeated_tokens_and_events_without_any_are_no_riddle(events: list[object]) -> None:
    chunks = [chunk for chunk in fed(*events) if chunk is not None]
    assert [token for chunk in chunks for token in chunk.ids or ()] == [5, 5, 5, 5]
    assert sum(chunk.tokens for chunk in chunks) == 4
    assert chunks[-1].finish == "length"


@pytest.mark.parametrize(
    ("ids", "end", "before", "stop_id"),
    [
        ([5, STOP], stopped(STOP), (5,), STOP),
        ([5, END], stopped(END), (5,), END),
        ([5, 6], stopped(6), (5, 6), None),
        ([], {"type": "stop", "matched": None}, (), None),
        ([5, STOP], LENGTH, (5,), STOP),
        ([5, END], LENGTH, (5, END), None),
    ],
)
def test_the_last_id_is_none_of_the_answers_where_it_can_have_ended_the_turn(
    ids: list[int], end: dict[str, object], before: tuple[int, ...], stop_id: int | None
) -> None:
    _, last = fed(said(ids, len(ids), end), DONE)
    assert last is not None
    assert (last.ids, last.stop_id, last.tokens) == (before, stop_id, len(ids))


def sent(events: list[tuple[list[int], dict[str, object] | None]], *, new: bool) -> list[object]:
    """These ids, event by event, as either way to stream has them."""
    seen: list[int] = []
    found: list[object] = []
    for ids, end in events:
        seen = [*seen, *ids]
        found.append(said(ids if new else seen, len(seen), end))
    return found


@pytest.mark.parametrize("new", [True, False])
def test_a_stop_id_without_a_reason_is_the_end_where_nothing_follows(new: bool) -> None:
    ended = Chunk(tokens=2, ids=(6,), stop_id=STOP, finish="stop", usage=Usage(5, 3, 4))
    events = sent([([5], None), ([6, STOP], None)], new=new)
    cut = reader_for()
    assert fed(*events, reader=cut)[1:] == [None]
    assert (cut.ended(), cut.done) == (ended, False)
    assert fed(*events, DONE)[1:] == [None, ended]
    assert fed(*events, *sent([([5], None), ([6, STOP], None), ([], stopped(STOP))], new=new)[2:], DONE)[1:] == [
        None,
        None,
        ended,
    ]


@pytest.mark.parametrize("new", [True, False])
def test_a_stop_id_that_others_follow_is_one_of_the_answers(new: bool) -> None:
    events = sent([([5], None), ([6, STOP], None), ([], None), ([7], None), ([STOP], LENGTH)], new=new)
    _, *chunks = fed(*events, DONE)
    assert chunks[:2] == [None, None]
    assert chunks[2] == Chunk(tokens=3, ids=(6, STOP, 7), usage=Usage(5, 3, 4))  # as it was told when they were held
    assert chunks[-1] == Chunk(tokens=1, ids=(), stop_id=STOP, finish="length", usage=Usage(5, 5, 4))
    with pytest.raises(EngineBroke, match="without saying why"):
        fed(*events[:-1], DONE)


def test_the_first_event_tells_what_was_cached_though_it_was_held() -> None:
    *_, chunk = fed(said([STOP], 1), said([STOP, 5], 2))
    assert chunk is not None
    assert chunk.usage is not None
    assert chunk.usage.cached_tokens == 4


def test_after_the_end_nothing_is_read() -> None:
    reader = reader_for()
    fed(*NEW, reader=reader)
    assert reader.done
    assert reader.chunk(SseEvent(b"nonsense")) is None


def entries(*ids: int) -> list[list[object]]:
    return [[-0.5, token, None] for token in ids]


def test_log_probabilities_are_of_the_new_tokens_either_way() -> None:
    top = [[[-0.5, 5, None], [-1.5, 6, None], [None, 9, None]], None, [[-0.1, 3, None]]]
    whole = [
        said([5], 1, output_token_logprobs=entries(5), output_top_logprobs=top[:1]),
        said([5, 6, STOP], 3, stopped(STOP), output_token_logprobs=entries(5, 6, STOP), output_top_logprobs=top),
        DONE,
    ]
    parts = [
        whole[0],
        said([6, STOP], 3, stopped(STOP), output_token_logprobs=entries(6, STOP), output_top_logprobs=top[1:]),
        DONE,
    ]
    for events in (whole, parts):
        first, _, last = fed(*events, reader=reader_for(2))
        assert first is not None
        assert last is not None
        assert first.logprobs == (TokenLogprob(5, -0.5, ((5, -0.5), (6, -1.5))),)
        assert last.logprobs == (TokenLogprob(6, -0.5), TokenLogprob(STOP, -0.5, ((3, -0.1),)))


def test_log_probabilities_without_alternatives_and_without_a_number() -> None:
    chunk, *_ = fed(said([5], 1, output_token_logprobs=[[None, 5, None]]), reader=reader_for(0))
    assert chunk is not None
    assert chunk.logprobs == (TokenLogprob(5, -9999.0),)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"output_token_logprobs": []},
        {"output_token_logprobs": entries(6), "output_top_logprobs": [None]},
        {"output_token_logprobs": entries(5)},
        {"output_token_logprobs": entries(5), "output_top_logprobs": []},
    ],
)
def test_log_probabilities_that_do_not_fit_the_tokens_are_broken(meta: dict[str, Any]) -> None:
    with pytest.raises(EngineBroke):
        fed(said([5], 1, **meta), reader=reader_for(2))


@pytest.mark.parametrize(
    "events",
    [
        [DONE],
        [said([5], 1), DONE],
        [said([5], 1, LENGTH), said([5, 6], 2)],
        [said([5], 2)],
        [said([5], 1), said([5, 6, 7], 2)],
        [said([5, 6], 2), said([5], 1)],
        [said([5, 6], 2), said([5, 7, 8], 3)],
        [said([-1], 1)],
        [said([2**31], 1)],
        [{"output_ids": [5]}],
        [{"text": "5", "meta_info": {}}],
        [said([5], 1, {"type": "stop", "matched": "NaN happened"})],
        [said([5], 1, {"type": "abort", "message": "Aborted", "status_code": None})],
        [said([5], 1, {"type": "abort", "message": "out of memory", "status_code": 500})],
        [said([5], 1, {"type": "other"})],
    ],
)
def test_what_the_protocol_does_not_say_is_broken(events: list[object]) -> None:
    with pytest.raises(EngineBroke):
        fed(*events)


TOO_LONG = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
TOO_MUCH = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 tokens: 4000 "
    "tokens from the input messages and 1000 tokens for the completion."
)


def error(message: str, code: int = 400) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code, "retryable": False}}


@pytest.mark.parametrize("message", [TOO_LONG, TOO_MUCH])
def test_a_prompt_that_is_too_long_has_both_sizes(message: str) -> None:
    with pytest.raises(ContextTooLong) as caught:
        fed(error(message))
    assert "5000" in caught.value.message
    assert "4096" in caught.value.message


@pytest.mark.parametrize(
    "event",
    [error("logit_bias must has keys"), said([], 0, {"type": "abort", "message": "Failed to compile ebnf", "status_code": 400})],
)
def test_a_refusal_in_the_stream_is_the_clients_error(event: object) -> None:
    with pytest.raises(EngineRefused) as caught:
        fed(event)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("status", "answer", "error", "says"),
    [
        (400, b'{"error":"unknown field `x`, expected one of `a`"}', EngineRefused, "unknown field"),
        (400, b'{"object":"error","message":"no","type":"Bad Request","param":null,"code":400}', EngineRefused, "no"),
        (401, b'{"error":"Unauthorized"}', EngineRefused, "key"),
        (503, b"", EngineBroke, "503"),
    ],
)
def test_an_error_answer_is_read(status: int, answer: bytes, error: type[GatewayError], says: str) -> None:
    found = Sglang().error(status, answer)
    assert type(found) is error
    assert says in found.message


def test_an_engine_says_what_it_is() -> None:
    adapter = Sglang()
    card = b'{"object":"list","data":[{"id":"qwen","object":"model","root":"qwen","max_model_len":4096}]}'
    assert adapter.info([card]) == EngineInfo(None, "qwen", 4096)
    lora = b'{"data":[{"id":"qwen","max_model_len":4096},{"id":"lora","parent":"qwen","max_model_len":null}]}'
    assert adapter.info([lora]) == EngineInfo(context_tokens=4096)


def test_a_text_to_ids() -> None:
    adapter = Sglang()
    call = adapter.tokenize("<s>Hi", None)
    assert call.path == "/tokenize"
    assert json.loads(call.body) == {"prompt": "<s>Hi", "add_special_tokens": False}
    assert adapter.token_ids(b'{"tokens":[1,2],"count":2,"max_model_len":4096}') == (1, 2)


def test_a_rank_is_told_and_no_rank_is_not() -> None:
    assert "routed_dp_rank" not in body(work())
    assert body(work(rank=0)) == {**body(work()), "routed_dp_rank": 0}


def test_a_cache_is_that_of_all_ranks_or_of_one() -> None:
    said = {"version": "0.5.23", "page_size": 64, "max_total_num_tokens": 640, "dp_size": 2, "internal_states": [{}, {}]}
    bodies = [json.dumps(said).encode()]
    assert Sglang().identity(bodies, EngineInfo(model="m"), None) == EngineInfo("0.5.23", "m", None, 64, 1280)
    assert Sglang().identity(bodies, EngineInfo(model="m"), 1) == EngineInfo("0.5.23", "m", None, 64, 640)
    known = EngineInfo("0.5.23", "m", 9, 64, 640)
    assert Sglang().identity([b"<html>"], known, None) == EngineInfo(None, "m", 9), "it may be another by now"


def test_loads_of_ranks_are_told_in_two_ways_alike() -> None:
    ranks: list[dict[str, float]] = [
        {"num_running_reqs": 3, "num_waiting_reqs": 2, "token_usage": 0.5},
        {"num_running_reqs": 1, "num_waiting_reqs": 0, "token_usage": 0.25},
    ]
    loads = json.dumps({"loads": [{"dp_rank": at, **each} for at, each in enumerate(ranks)]}).encode()
    names = {"num_running_reqs": (3, 1), "num_queue_reqs": (2, 0), "token_usage": (0.5, 0.25)}
    scrape = "".join(
        f'sglang:{name}{{dp_rank="{rank}",tp_rank="{tp}"}} {value}\n'
        for name, said in names.items()
        for rank, value in enumerate(said)
        for tp in (0, 1)
    ).encode()
    for body in (loads, scrape):
        assert Sglang().load(body, None) == EngineLoad(4, 2, 0.5)
        assert Sglang().load(body, 1) == EngineLoad(1, 0, 0.25)
        assert Sglang().load(body, 2) == EngineLoad()
