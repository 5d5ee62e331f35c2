"""The vLLM adapter: each trap of its protocol from a recorded stream. `tests/vllm` asks the real engine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.base import Chunk, EngineInfo, EngineLoad, TokenLogprob, Work
from engines.completions import CompletionsReader
from engines.vllm import Vllm
from gateway.errors import BadRequest, ContextTooLong, EngineBroke, EngineRefused
from gateway.request import CallAnswer, GenerateRequest, JsonAnswer, Sampling, ToolSpec, Usage
from gateway.wire.sse import SseEvent

DATA = Path(__file__).parent.parent / "data" / "engines" / "vllm"
END, STARS = 2, 7  # <|im_end|>, <gh_stars>
STOP = 3


def work(*, logprobs: int | None = None, sampling: Sampling | None = None, **changes: Any) -> Work:
    request = GenerateRequest("small", (), sampling=sampling or Sampling(), logprobs=logprobs)
    return Work(request=request, **{"ids": (1, 2), "max_tokens": 8, **changes})


def reader_for(logprobs: int | None) -> CompletionsReader:
    """Of a model that has one stop id, and special tokens that are none."""
    return CompletionsReader(frozenset({STOP}), (STOP, END, STARS), alternatives=logprobs)


def body(wanted: Work) -> Any:
    return json.loads(Vllm().call(wanted).body)


def recorded(name: str, *, logprobs: int | None = None) -> list[Chunk]:
    reader = reader_for(logprobs)
    lines = (DATA / f"{name}.jsonl").read_bytes().splitlines()
    chunks = [chunk for line in lines if (chunk := reader.chunk(SseEvent(line))) is not None]
    assert reader.done
    assert reader.chunk(SseEvent(lines[0])) is None
    assert all(chunk.finish is None and chunk.usage is None for chunk in chunks[:-1])
    usage = chunks[-1].usage
    assert usage is not None
    assert sum(chunk.tokens for chunk in chunks) == usage.completion_tokens
    return chunks


def ids(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.ids or ()]


def fed(*events: object) -> list[Chunk | None]:
    reader = reader_for(None)
    return [reader.chunk(SseEvent(each if isinstance(each, bytes) else json.dumps(each).encode())) for each in events]


def token(*tokens: int, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": "", "finish_reason": finish, "token_ids": list(tokens)}]}


def test_a_call_says_all_that_the_client_set_and_never_a_stop_string() -> None:
    sampling = Sampling(0.5, 0.9, 40, 0.1, 1.1, 0.2, 0.3, 7, ((5, -100.0),), min_tokens=3)
    request = GenerateRequest("small", (), sampling=sampling, stop=("x",), logprobs=4)
    call = Vllm().call(Work(request=request, ids=(1, 2), stop_ids=frozenset({9, 2}), max_tokens=9, model="m", choice=2))
    assert call.path == "/v1/completions"
    assert json.loads(call.body) == {
        "model": "m",
        "prompt": [1, 2],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "max_tokens": 9,
        "stop_token_ids": [2, 9],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 9,
        "logit_bias": {"5": -100.0},
        "min_tokens": 3,
        "logprobs": 4,
        "return_tokens_as_token_ids": True,
    }


def test_what_the_client_did_not_set_is_the_engines_default() -> None:
    assert body(work()).keys() == {
        "prompt",
        "stream",
        "stream_options",
        "return_token_ids",
        "max_tokens",
        "stop_token_ids",
    }


def test_without_a_limit_the_answer_is_refused_rather_than_cut_at_sixteen_tokens() -> None:
    with pytest.raises(BadRequest) as caught:
        Vllm().call(work(max_tokens=None))
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(("top_k", "sent"), [(0, -1), (-1, -1), (1, 1)])
def test_every_way_to_say_all_tokens_is_vllms(top_k: int, sent: int) -> None:
    assert body(work(sampling=Sampling(top_k=top_k)))["top_k"] == sent


@pytest.mark.parametrize(("seed", "choice", "sent"), [(2**63 - 1, 1, 0), (-1, 0, 2**63 - 1), (0, 3, 3)])
def test_a_seed_is_one_that_the_engine_takes(seed: int, choice: int, sent: int) -> None:
    assert body(work(sampling=Sampling(seed=seed), choice=choice))["seed"] == sent


def test_with_ignore_eos_no_end_of_turn_is_generated() -> None:
    said = body(work(sampling=Sampling(ignore_eos=True, min_tokens=2), stop_ids=frozenset({END})))
    assert said["min_tokens"] == said["max_tokens"] == 8
    assert said["stop_token_ids"] == [END]
    assert "ignore_eos" not in said


@pytest.mark.parametrize(
    "constraint",
    [
        JsonAnswer({"type": "null"}),
        JsonAnswer({"type": "null"}, "</think>"),
        CallAnswer((ToolSpec("f"),), "<c>", "</c>", "\n", "name", "arguments", False),
    ],
)
def test_a_constraint_becomes_a_grammar_made_once(constraint: JsonAnswer | CallAnswer) -> None:
    adapter = Vllm()
    first, second = (json.loads(adapter.call(work(constraint=constraint)).body)["structured_outputs"] for _ in range(2))
    assert first == second
    assert first.keys() == {"grammar"}
    assert first["grammar"].startswith("root ::= ")


def test_a_schema_that_no_grammar_holds_is_the_clients_fault() -> None:
    with pytest.raises(BadRequest):
        Vllm().call(work(constraint=JsonAnswer({"type": "what"})))


def test_an_answer_cut_at_its_limit() -> None:
    assert recorded("limit") == [
        Chunk(tokens=1, ids=(504,)),
        Chunk(tokens=1, ids=(2798,)),
        Chunk(tokens=1, ids=(6330,), finish="length", usage=Usage(10, 3, 0)),
    ]


def test_one_event_may_carry_several_tokens() -> None:
    assert [chunk.tokens for chunk in recorded("several")] == [1, 4, 4, 1]


def test_ids_are_complete_where_a_character_is_several_tokens() -> None:
    assert ids(recorded("split_utf8")) == [142, 119, 10813, 116, 243]
    assert ids(recorded("cut_utf8")) == [142, 119, 10813]


@pytest.mark.parametrize(("name", "stop_id", "before"), [("eos", END, [95, 91]), ("stop_id", STARS, [])])
def test_the_id_that_ended_the_turn_is_none_of_the_answers(name: str, stop_id: int, before: list[int]) -> None:
    chunks = recorded(name)
    assert ids(chunks) == before
    assert (chunks[-1].stop_id, chunks[-1].tokens, chunks[-1].finish) == (stop_id, 1, "stop")


def test_an_end_of_turn_that_only_the_engine_knows_ends_it_too() -> None:
    chunks = recorded("unknown_eos")  # it was asked with no stop ids
    assert ids(chunks) == [95, 91]
    assert chunks[-1].stop_id == END


@pytest.mark.parametrize(
    ("tokens", "finish", "before", "stop_id"),
    [
        ((5, STOP), "stop", (5,), STOP),
        ((5, END), "stop", (5,), END),
        ((5, 6), "stop", (5, 6), None),
        ((), "stop", (), None),
        ((5, STOP), "length", (5,), STOP),
        ((5, END), "length", (5, END), None),
        ((STOP, 5), "length", (STOP, 5), None),
    ],
)
def test_the_last_id_is_none_of_the_answers_where_it_can_have_ended_the_turn(
    tokens: tuple[int, ...], finish: str, before: tuple[int, ...], stop_id: int | None
) -> None:
    _, last = fed(token(*tokens, finish=finish), b"[DONE]")
    assert last is not None
    assert (last.ids, last.stop_id, last.tokens) == (before, stop_id, len(tokens))


def test_a_reader_knows_the_stop_ids_and_special_tokens_of_its_work() -> None:
    for last in (8, 9):
        reader = Vllm().reader(work(stop_ids=frozenset({8}), special_ids={"<end>": 9}.values()))
        reader.chunk(SseEvent(json.dumps(token(8, last, finish="stop")).encode()))
        chunk = reader.chunk(SseEvent(b"[DONE]"))
        assert chunk is not None
        assert (chunk.ids, chunk.stop_id) == ((8,), last)


def test_special_tokens_are_ids_like_others() -> None:
    assert ids(recorded("special")) == [STARS, STARS]


def test_what_was_cached_comes_with_the_end_in_whole_blocks() -> None:
    assert recorded("cached")[-1].usage == Usage(70, 1, 64)


@pytest.mark.parametrize("details", [{}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": None}}])
def test_a_server_need_not_say_what_was_cached(details: dict[str, object]) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6, **details}
    *_, last = fed(token(9, finish="length"), {"choices": [], "usage": usage}, b"[DONE]")
    assert last is not None
    assert last.usage == Usage(5, 1, 0)


def test_log_probabilities_have_an_entry_for_each_token_and_the_stop_last() -> None:
    chunks = recorded("logprobs", logprobs=2)
    assert [entry.id for chunk in chunks for entry in chunk.logprobs] == [95, 91, END]
    first = chunks[0].logprobs[0]
    assert first == TokenLogprob(95, -0.1867825835943222, ((95, -0.1867825835943222), (2231, -1.7697484493255615)))
    assert recorded("logprobs")[0].logprobs == ()


def test_a_token_that_is_none_of_the_likeliest_is_not_listed_among_them() -> None:
    (entry,) = recorded("logprobs_sampled", logprobs=2)[0].logprobs
    assert entry.id == 47123
    assert [token for token, _ in entry.top] == [504, 49]
    assert entry.logprob < entry.top[1][1] < entry.top[0][1]


def test_log_probabilities_without_alternatives() -> None:
    entries = [entry for chunk in recorded("logprobs_none", logprobs=0) for entry in chunk.logprobs]
    assert [(entry.id, entry.top) for entry in entries] == [(504, ()), (2798, ())]
    assert entries[0].logprob == -2.1340491771698


NO_NAMES = (
    *("The", "5", "token_id:", "token_id:-5", "token_id:5 ", "token_id:٣", "token_id:²"),
    *("token_id:2147483648", "token_id:" + "9" * 5000),
)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        {"token_logprobs": [], "top_logprobs": []},
        {"token_logprobs": [None], "top_logprobs": [{}]},
        *({"token_logprobs": [-1.0], "top_logprobs": [{name: -1.0}]} for name in NO_NAMES),
    ],
)
def test_log_probabilities_that_do_not_fit_the_tokens_are_broken(logprobs: object) -> None:
    choice = {"index": 0, "text": "", "token_ids": [5], "finish_reason": None, "logprobs": logprobs}
    with pytest.raises(EngineBroke):
        reader_for(2).chunk(SseEvent(json.dumps({"choices": [choice]}).encode()))


@pytest.mark.parametrize("reason", ["abort", "error", "tool_calls", "?"])
def test_an_end_for_another_reason_is_broken(reason: str) -> None:
    with pytest.raises(EngineBroke, match="ended the answer with the reason"):
        fed(token(finish=reason))


def test_an_answer_that_went_in_circles_is_cut() -> None:
    *_, last = fed(token(5, 5, finish="repetition"), b"[DONE]")
    assert last == Chunk(tokens=2, ids=(5, 5), finish="length")


def test_a_server_that_streams_no_ids_is_told_of() -> None:
    with pytest.raises(EngineBroke, match="no token ids"):
        fed({"choices": [{"index": 0, "text": "The", "finish_reason": None}]})


@pytest.mark.parametrize(
    "events",
    [
        [b"[DONE]"],
        [token(5), b"[DONE]"],
        [token(5, finish="stop"), token(6)],
        [{"choices": token(5)["choices"] + token(6)["choices"]}],  # type: ignore[operator]  # both are lists
        [{"choices": [{"index": 1, "text": "", "finish_reason": None, "token_ids": [5]}]}],
        [token(-1)],
        [token(5, 2**31)],
        [token(2**70)],
    ],
)
def test_what_the_protocol_does_not_say_is_broken(events: list[object]) -> None:
    with pytest.raises(EngineBroke):
        fed(*events)


@pytest.mark.parametrize(("name", "says"), [("bad_id", "out of vocabulary"), ("bad_grammar", "Invalid grammar")])
def test_a_refusal_in_the_stream_is_the_clients_error(name: str, says: str) -> None:
    with pytest.raises(EngineRefused, match=says) as caught:
        recorded(name)
    assert caught.value.status == 400


def test_a_failure_in_the_stream_is_the_engines() -> None:
    error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    with pytest.raises(EngineBroke):
        fed(token(5), {"error": error})


def test_a_prompt_that_is_too_long_has_both_sizes() -> None:
    error = Vllm().error(400, (DATA / "too_long.json").read_bytes())
    assert isinstance(error, ContextTooLong)
    assert "2048" in error.message
    assert "2500" in error.message


def test_a_model_that_the_engine_lacks() -> None:
    error = Vllm().error(404, (DATA / "no_model.json").read_bytes())
    assert isinstance(error, EngineRefused)
    assert (error.status, error.param) == (404, "model")


def test_an_engine_says_what_it_is() -> None:
    adapter = Vllm()
    bodies = [(DATA / "version.json").read_bytes(), (DATA / "models.json").read_bytes()]
    assert adapter.info_paths == ("/version", "/v1/models")
    assert adapter.info(bodies) == EngineInfo("0.32.0", "smollm2", 2048)
    assert adapter.info([b"", bodies[1]]) == EngineInfo(None, "smollm2", 2048)


def test_one_of_several_names_is_not_guessed() -> None:
    cards = (
        b'{"data":[{"id":"a","max_model_len":9},{"id":"b","max_model_len":9},{"id":"lora","parent":"a","max_model_len":null}]}'
    )
    assert Vllm().info([b"", cards]) == EngineInfo(context_tokens=9)


def test_a_text_to_ids() -> None:
    adapter = Vllm()
    call = adapter.tokenize("<|im_start|>user\nHi", "smollm2")
    assert call.path == "/tokenize"
    assert json.loads(call.body) == {"model": "smollm2", "prompt": "<|im_start|>user\nHi", "add_special_tokens": False}
    assert "model" not in json.loads(adapter.tokenize("x", None).body)
    assert adapter.token_ids(b'{"count":4,"max_model_len":2048,"tokens":[1,4093,198,26843],"token_strs":null}') == (
        1,
        4093,
        198,
        26843,
    )
    with pytest.raises(EngineBroke):
        adapter.token_ids(b'{"count":4}')


def test_an_event_that_holds_nothing_is_skipped() -> None:
    *_, last = fed({"choices": []}, token(5, finish="length"), b"[DONE]")
    assert last == Chunk(tokens=1, ids=(5,), finish="length")


def test_an_answer_that_said_why_it_ended_needs_no_end_mark() -> None:
    reader = Vllm().reader(work(ids=(1,), max_tokens=9))
    assert reader.ended() is None
    assert reader.chunk(SseEvent(json.dumps(token(5, finish="length")).encode())) is None
    assert reader.ended() == Chunk(tokens=1, ids=(5,), finish="length")


def test_an_answer_as_long_as_it_may_be_needs_no_reason() -> None:
    reader = Vllm().reader(work(ids=(1,), max_tokens=2))
    assert reader.chunk(SseEvent(json.dumps(token(5)).encode())) == Chunk(tokens=1, ids=(5,))
    assert reader.ended() is None
    assert reader.chunk(SseEvent(json.dumps(token(6)).encode())) == Chunk(tokens=1, ids=(6,))
    assert reader.chunk(SseEvent(b"[DONE]")) == Chunk(finish="length")
    assert reader.done


def test_a_rank_is_told_in_a_header_and_no_rank_is_not() -> None:
    assert Vllm().call(work()).headers == {}
    assert Vllm().call(work(rank=0)).headers == {"X-data-parallel-rank": "0"}
    assert Vllm().call(work(rank=3)).body == Vllm().call(work()).body


ENDED = Chunk(tokens=2, ids=(5,), stop_id=STOP, finish="stop")


def test_a_stop_id_without_a_reason_is_the_end_where_nothing_follows() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    assert fed(token(5, STOP), b"[DONE]") == [None, ENDED]
    assert fed(token(5, STOP), usage, b"[DONE]") == [None, None, replace_usage(ENDED, Usage(5, 2, 0))]
    assert fed(token(5, STOP), token(), {"choices": []}, b"[DONE]") == [None, None, None, ENDED]
    assert fed(token(5, STOP), token(finish="stop"), b"[DONE]") == [None, None, ENDED]
    cut = reader_for(None)
    assert cut.ended() is None
    assert cut.chunk(SseEvent(json.dumps(token(5, STOP)).encode())) is None
    assert (cut.ended(), cut.done) == (ENDED, False)


def replace_usage(chunk: Chunk, usage: Usage) -> Chunk:
    return msgspec.structs.replace(chunk, usage=usage)


def test_a_stop_id_that_others_follow_is_one_of_the_answers() -> None:
    whole = Chunk(tokens=3, ids=(5, STOP, 6))
    assert fed(token(5, STOP), token(6)) == [None, whole]
    assert fed(token(5, STOP), token(), token(6)) == [None, None, whole]
    assert fed(token(STOP, 5)) == [Chunk(tokens=2, ids=(STOP, 5))]
    assert fed(token(5, STOP), token(6, STOP), token(7)) == [None, None, Chunk(tokens=5, ids=(5, STOP, 6, STOP, 7))]
    with pytest.raises(EngineBroke, match="without saying why"):
        fed(token(5, STOP), token(6), b"[DONE]")


def test_a_stop_id_at_the_limit_is_the_end_of_the_turn() -> None:
    reader = Vllm().reader(work(stop_ids=frozenset({STOP}), max_tokens=2))
    assert reader.chunk(SseEvent(json.dumps(token(5, STOP)).encode())) is None
    assert reader.chunk(SseEvent(b"[DONE]")) == ENDED


def test_what_was_held_keeps_its_log_probabilities() -> None:
    def event(id_: int) -> SseEvent:
        logprobs = {"token_logprobs": [-id_ / 2], "top_logprobs": [{f"token_id:{id_}": -id_ / 2}]}
        choice = {"index": 0, "text": "", "token_ids": [id_], "finish_reason": None, "logprobs": logprobs}
        return SseEvent(json.dumps({"choices": [choice]}).encode())

    reader = reader_for(1)
    assert reader.chunk(event(STOP)) is None
    ended, more = reader.ended(), reader.chunk(event(6))
    assert ended is not None
    assert more is not None
    assert [entry.id for entry in ended.logprobs] == [STOP]
    assert [(entry.id, entry.logprob) for entry in more.logprobs] == [(STOP, -1.5), (6, -3.0)]


def cache_info(engine: int, **labels: object) -> str:
    said = {"block_size": 32, "num_gpu_blocks": 3000, "num_gpu_blocks_override": None, "engine": engine, **labels}
    labels_text = ",".join([f'{name}="{value}"' for name, value in said.items()])
    return f"vllm:cache_config_info{{{labels_text}}} 1.0\n"


@pytest.mark.parametrize(
    ("labels", "whole", "rank"),
    [
        ({"kv_cache_size_tokens": 46_592}, 93_184, 46_592),
        ({"kv_cache_size_tokens": None}, 96_000, 48_000),
        ({}, 96_000, 48_000),
        ({"num_gpu_blocks": None}, None, None),
        ({"num_gpu_blocks": -1}, None, None),
    ],
)
def test_a_cache_is_that_of_all_ranks_or_of_one(labels: dict[str, object], whole: int | None, rank: int | None) -> None:
    """vLLM's blocks are those of all its ranks, in the series of each."""
    body = (cache_info(0, **labels) + cache_info(1, **labels)).encode()
    bare = EngineInfo("0.32.0", "m", 8192)
    assert Vllm().identity([body], bare, None) == replace(bare, block_tokens=32, kv_tokens=whole)
    assert Vllm().identity([body], bare, 1) == replace(bare, block_tokens=32, kv_tokens=rank)
    assert Vllm().identity([body], bare, 2) == bare


def test_load_is_that_of_all_ranks_or_of_one() -> None:
    named = (("num_requests_running", "8 0"), ("num_requests_waiting", "4 0"), ("kv_cache_usage_perc", "0.5 0.125"))
    body = "".join(
        f'vllm:{name}{{engine="{rank}",model_name="m"}} {value}\n'
        for name, said in named
        for rank, value in enumerate(said.split())
    ).encode()
    assert Vllm().load(body, None) == EngineLoad(8, 4, 0.5)
    assert Vllm().load(body, 1) == EngineLoad(0, 0, 0.125)
