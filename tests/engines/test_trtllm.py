"""The TensorRT-LLM adapter: what it asks, no field too many, and the ends that its streams have."""

import json
from typing import Any

import pytest

from engines.base import Chunk, EngineInfo, EngineLoad, Work
from engines.trtllm import TrtLlm
from gateway.errors import BadRequest, ContextTooLong, EngineBroke, EngineRefused
from gateway.request import CallAnswer, GenerateRequest, JsonAnswer, Sampling, ToolSpec, Usage
from gateway.wire.sse import SseEvent

STOP, END = 3, 2
DONE = b"[DONE]"


def work(*, logprobs: int | None = None, sampling: Sampling | None = None, **changes: Any) -> Work:
    request = GenerateRequest("small", (), sampling=sampling or Sampling(), logprobs=logprobs)
    return Work(request=request, **{"ids": (1, 2), "max_tokens": 8, **changes})


def body(wanted: Work) -> Any:
    return json.loads(TrtLlm().call(wanted).body)


def said(*ids: int, finish: str | None = None, **choice: object) -> dict[str, object]:
    """As it writes it, null fields and all."""
    about = {
        "index": 0,
        "text": "",
        "token_ids": [*ids],
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        **choice,
    }
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [about], "usage": None}


USAGE = {"prompt_tokens": 5, "total_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def fed(*events: object) -> list[Chunk | None]:
    reader = TrtLlm().reader(work(stop_ids=frozenset({STOP}), special_ids=(STOP, END)))
    return [reader.chunk(SseEvent(each if isinstance(each, bytes) else json.dumps(each).encode())) for each in events]


def test_a_call_says_all_that_the_client_set_and_never_a_stop_string() -> None:
    sampling = Sampling(0.5, 0.9, 40, 0.1, 1.1, 0.2, 0.3, 7, ((5, -50.0),))
    request = GenerateRequest("small", (), sampling=sampling, stop=("x",))
    call = TrtLlm().call(Work(request=request, ids=(1, 2), stop_ids=frozenset({9, 2}), max_tokens=9, model="m", choice=2))
    assert call.path == "/v1/completions"
    assert json.loads(call.body) == {
        "model": "m",
        "prompt": [1, 2],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": False},
        "detokenize": False,
        "max_tokens": 9,
        "stop_token_ids": [2, 9],
        "include_stop_str_in_output": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 9,
        "logit_bias": {"5": -50.0},
    }


def test_what_the_client_did_not_set_is_the_engines_default_but_the_model_has_a_name() -> None:
    asked = body(work())
    assert asked["model"] == "small"
    assert asked.keys() == {
        *("model", "prompt", "stream", "stream_options", "detokenize", "max_tokens"),
        *("stop_token_ids", "include_stop_str_in_output"),
    }


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"logprobs": 0}, "logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"sampling": Sampling(min_tokens=1)}, "min_tokens"),
    ],
)
def test_what_it_lacks_is_refused_with_its_field(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        TrtLlm().call(work(**changes))
    assert caught.value.param == param


@pytest.mark.parametrize(("top_k", "sent"), [(0, 0), (-1, 0), (1, 1)])
def test_every_way_to_say_all_tokens_is_its_own(top_k: int, sent: int) -> None:
    assert body(work(sampling=Sampling(top_k=top_k)))["top_k"] == sent


@pytest.mark.parametrize(("seed", "choice", "sent"), [(2**63 - 1, 1, 0), (-1, 0, 2**63 - 1), (0, 3, 3)])
def test_a_seed_is_one_that_the_engine_takes(seed: int, choice: int, sent: int) -> None:
    assert body(work(sampling=Sampling(seed=seed), choice=choice))["seed"] == sent


def test_with_ignore_eos_ends_of_a_turn_are_biased_away() -> None:
    asked = body(work(sampling=Sampling(ignore_eos=True, logit_bias=((5, 1.0), (END, 50.0))), stop_ids=frozenset({END})))
    assert asked["ignore_eos"] is True
    assert asked["logit_bias"] == {"5": 1.0, str(END): -100.0}
    assert not asked.keys() & {"stop_token_ids", "min_tokens"}


@pytest.mark.parametrize(
    "constraint",
    [JsonAnswer({"type": "null"}, "</think>"), CallAnswer((ToolSpec("f"),), "<c>", "</c>", "\n", "name", "arguments", False)],
)
def test_a_constraint_becomes_a_grammar(constraint: JsonAnswer | CallAnswer) -> None:
    form = body(work(constraint=constraint))["response_format"]
    assert form.keys() == {"type", "ebnf"}
    assert form["type"] == "ebnf"
    assert form["ebnf"].startswith("root ::= ")


def test_the_usage_comes_after_the_last_tokens_and_before_the_end_mark() -> None:
    assert fed(said(5), said(6, STOP, finish="stop", stop_reason=STOP), {"choices": [], "usage": USAGE}, DONE) == [
        Chunk(tokens=1, ids=(5,)),
        None,
        None,
        Chunk(tokens=2, ids=(6,), stop_id=STOP, finish="stop", usage=Usage(5, 3, 4)),
    ]


@pytest.mark.parametrize(
    ("ids", "finish", "before", "stop_id"),
    [
        ((5, END), "stop", (5,), END),  # the end of turn that it knows itself
        ((5,), "stop", (5,), None),  # the same, left out, as not every backend has it
        ((5, STOP), "length", (5,), STOP),
        ((5, END), "length", (5, END), None),
    ],
)
def test_the_last_id_is_none_of_the_answers_where_it_can_have_ended_the_turn(
    ids: tuple[int, ...], finish: str, before: tuple[int, ...], stop_id: int | None
) -> None:
    *_, last = fed(said(*ids, finish=finish), DONE)
    assert last is not None
    assert (last.ids, last.stop_id, last.finish) == (before, stop_id, finish)


@pytest.mark.parametrize("reason", ["timeout", "cancelled", "?"])
def test_an_end_for_another_reason_is_broken(reason: str) -> None:
    with pytest.raises(EngineBroke, match="ended the answer with the reason"):
        fed(said(finish=reason))


def test_a_server_that_streams_text_is_told_of() -> None:
    with pytest.raises(EngineBroke, match="no token ids"):
        fed(said(token_ids=None, text="The"))


def test_a_prompt_that_is_too_long_has_both_sizes() -> None:
    message = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."
    answer = {"object": "error", "message": message, "type": "BadRequestError", "code": "context_length_exceeded"}
    error = TrtLlm().error(400, json.dumps(answer).encode())
    assert isinstance(error, ContextTooLong)
    assert "4096" in error.message
    assert "5000" in error.message


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "[{'type': 'extra_forbidden', 'loc': ('body', 'x'), 'msg': 'Extra inputs are not permitted'}]"},
        {"object": "error", "message": "Extra inputs are not permitted", "type": "BadRequestError", "param": None, "code": 400},
    ],
)
def test_an_error_answer_is_read_in_both_of_its_shapes(answer: dict[str, object]) -> None:
    error = TrtLlm().error(400, json.dumps(answer).encode())
    assert isinstance(error, EngineRefused)
    assert error.status == 400
    assert "not permitted" in error.message


def test_an_engine_says_what_it_is_but_not_how_long_a_context_is() -> None:
    adapter = TrtLlm()
    models = b'{"object":"list","data":[{"id":"qwen","object":"model","created":1,"owned_by":"tensorrt_llm"}]}'
    assert adapter.info([b'{"version":"1.2.1"}', models]) == EngineInfo("1.2.1", "qwen", None)


def test_it_does_not_tokenise() -> None:
    assert TrtLlm().tokenize("x", None) is None  # type: ignore[func-returns-value]  # that it gives none is the point
    with pytest.raises(EngineBroke):
        TrtLlm().token_ids(b"{}")


def test_the_newest_step_is_the_load() -> None:
    cache = {"usedNumBlocks": 25, "maxNumBlocks": 100, "tokensPerBlock": 32}
    steps = [
        {"numActiveRequests": 9, "numQueuedRequests": 9},
        {"numActiveRequests": 3, "numQueuedRequests": 2, "kvCacheStats": cache, "iter": 7},
    ]
    adapter = TrtLlm()
    assert adapter.load(json.dumps(steps).encode(), None) == EngineLoad(3, 2, 0.25)
    assert adapter.load(json.dumps(steps[:1]).encode(), None) == EngineLoad(9, 9, None)
    assert adapter.load(b"[]", None) == EngineLoad(), "nothing was done since it was last read"


def test_a_cache_is_its_blocks() -> None:
    body = b'trtllm_kv_cache_tokens_per_block{a="b"} 32.0\ntrtllm_kv_cache_max_blocks{a="b"} 100.0\n'
    assert TrtLlm().identity([body], EngineInfo(model="m"), None) == EngineInfo(model="m", block_tokens=32, kv_tokens=3200)
    assert TrtLlm().identity([body[:45]], EngineInfo(model="m"), None).kv_tokens is None
