"""The llama.cpp adapter: each trap of its protocol from a recorded stream, and with the real engine where it can be provoked."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from msgspec.structs import replace
from support.llamacpp import EngineUnderTest

from engines.base import Chunk, EngineInfo, EngineLoad, Work
from engines.llamacpp import LlamaCpp, LlamaCppReader
from gateway.errors import BadRequest, ContextTooLong, EngineBroke, EngineRefused, GatewayError
from gateway.formats.base import ParseOptions
from gateway.formats.compiled import compile_format
from gateway.formats.families import hermes
from gateway.request import (
    CallAnswer,
    ContentText,
    GenerateRequest,
    JsonAnswer,
    ParseFailure,
    ReasoningText,
    Sampling,
    ToolCallArguments,
    ToolSpec,
    Usage,
)
from gateway.wire.sse import SseEvent, SseReader

DATA = Path(__file__).parent.parent / "data" / "engines" / "llamacpp"
PROMPT = (1, 4093, 198, 31530, 2, 198, 1, 520, 9531, 198)
END, STARS = 2, 7  # <|im_end|>, <gh_stars>


def work(**changes: Any) -> Work:
    sampling = changes.pop("sampling", Sampling(temperature=0.0))
    request = GenerateRequest("small", (), sampling=sampling)
    return Work(request=request, **{"ids": PROMPT, "stop_ids": frozenset({END}), "max_tokens": 8, **changes})


def recorded(name: str, *, stop: int = END, text: str = "", top_logprobs: int = 0) -> list[Chunk]:
    """The chunks of a recorded stream, with this stop id and its text."""
    reader = LlamaCppReader({stop: text}, top_logprobs=top_logprobs)
    lines = (DATA / f"{name}.jsonl").read_bytes().splitlines()
    chunks = [chunk for line in lines if (chunk := reader.chunk(SseEvent(line))) is not None]
    assert reader.done
    assert reader.chunk(SseEvent(lines[-1])) is None
    return chunks


def asked(engine: EngineUnderTest, wanted: Work) -> list[Chunk]:
    """The real engine's answer, read to where a session would stop."""
    adapter = LlamaCpp()
    call = adapter.call(wanted)
    request = urllib.request.Request(engine.url + call.path, call.body, {"Content-Type": "application/json"})
    reader, sse, chunks = adapter.reader(wanted), SseReader(), []
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            while not reader.done and (data := answer.read1(65536)):
                chunks += [chunk for event in sse.feed(data) if (chunk := reader.chunk(event)) is not None]
                if chunks and chunks[-1].stop_id is not None:
                    break
    except urllib.error.HTTPError as error:
        raise adapter.error(error.code, error.read()) from None
    return chunks


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def counts_add_up(chunks: list[Chunk]) -> bool:
    usage = chunks[-1].usage
    return usage is not None and sum(chunk.tokens for chunk in chunks) == usage.completion_tokens


def test_a_call_says_all_that_the_client_set_and_never_a_stop_string() -> None:
    sampling = Sampling(0.5, 0.9, 40, 0.1, 1.1, 0.2, 0.3, 7, ((5, -100.0),), True)
    request = GenerateRequest("small", (), sampling=sampling, stop=("x",))
    call = LlamaCpp().call(Work(request=request, ids=(1, 2), visible=("<a>",), max_tokens=9, model="m", choice=2))
    assert call.path == "/completion"
    assert json.loads(call.body) == {
        "prompt": [1, 2],
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
        "cache_prompt": True,
        "preserved_tokens": ["<a>"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "seed": 9,
        "logit_bias": [[5, -100.0]],
        "ignore_eos": True,
        "n_predict": 9,
        "model": "m",
    }


def test_what_the_client_did_not_set_is_the_engines_default() -> None:
    body = json.loads(LlamaCpp().call(Work(request=GenerateRequest("small", ()), ids=(1,))).body)
    assert body.keys() == {"prompt", "stream", "return_tokens", "return_progress", "cache_prompt", "preserved_tokens"}


@pytest.mark.parametrize(("seed", "choice", "sent"), [(2**32 - 2, 1, 0), (2**40, 0, 256), (-1, 0, 2**32 - 2), (0, 3, 3)])
def test_a_seed_is_never_the_number_that_means_random(seed: int, choice: int, sent: int) -> None:
    body = json.loads(LlamaCpp().call(work(sampling=Sampling(seed=seed), choice=choice)).body)
    assert body["seed"] == sent


def test_min_tokens_is_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        LlamaCpp().call(work(sampling=Sampling(min_tokens=3)))
    assert caught.value.param == "min_tokens"


def test_token_ids_are_refused_since_some_would_be_missing() -> None:
    with pytest.raises(BadRequest, match="loses the ids of tokens that are part of a character") as caught:
        LlamaCpp().call(Work(request=GenerateRequest("small", (), return_token_ids=True), ids=(1,)))
    assert caught.value.param == "return_token_ids"


@pytest.mark.parametrize(("logprobs", "sent"), [(None, None), (0, 1), (1, 1), (20, 20)])
def test_log_probabilities_are_asked_for(logprobs: int | None, sent: int | None) -> None:
    body = json.loads(LlamaCpp().call(Work(request=GenerateRequest("small", (), logprobs=logprobs), ids=(1,))).body)
    assert body.get("n_probs") == sent


def test_a_constraint_becomes_a_grammar_made_once() -> None:
    adapter = LlamaCpp()
    first, second = (json.loads(adapter.call(work(constraint=JsonAnswer({"type": "null"}))).body)["grammar"] for _ in range(2))
    assert first == second
    assert first.startswith("root ::= ")
    with pytest.raises(BadRequest):
        adapter.call(work(constraint=JsonAnswer({"type": "what"})))


def test_an_answer_cut_at_its_limit() -> None:
    *progress, first, second, third, end = recorded("limit")
    assert progress == [Chunk(usage=Usage(prompt_tokens=10))] * 2
    assert [first, second, third] == [
        Chunk(text="The", tokens=1, ids=(504,)),
        Chunk(text=" original", tokens=1, ids=(2798,)),
        Chunk(text=" sentence", tokens=1, ids=(6330,)),
    ]
    assert end.finish == "length"
    assert end.usage == Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=0)


def test_ids_lost_at_split_characters_are_not_given_as_complete() -> None:
    chunks = recorded("split_utf8")
    assert text(chunks) == "é🦙"
    assert [(chunk.text, chunk.tokens, chunk.ids) for chunk in chunks if chunk.text] == [("é", 2, None), ("🦙", 3, None)]
    assert counts_add_up(chunks)


def test_tokens_cut_off_inside_a_character_are_counted() -> None:
    chunks = recorded("cut_utf8")
    assert text(chunks) == "é"
    assert chunks[-1].tokens == 1
    assert counts_add_up(chunks)


def test_the_made_up_ids_of_progress_events_are_no_tokens() -> None:
    chunks = recorded("limit", stop=0)
    assert chunks[0].tokens == 0
    assert all(chunk.stop_id is None for chunk in chunks)


def test_what_was_cached_is_known_before_the_first_token() -> None:
    first, *_ = recorded("stop_word")
    assert first == Chunk(usage=Usage(prompt_tokens=10, cached_tokens=9))


def test_special_tokens_are_counted_whether_shown_or_not() -> None:
    hidden, shown = recorded("special_invisible"), recorded("special_visible")
    assert text(hidden) == ""
    assert text(shown) == "<gh_stars><gh_stars>"
    for chunks in (hidden, shown):
        assert [chunk.ids for chunk in chunks if chunk.ids] == [(STARS,), (STARS,)]
        assert counts_add_up(chunks)


@pytest.mark.parametrize("name", ["eos", "eos_visible"])
def test_the_end_of_turn_comes_with_the_end_event_and_without_its_text(name: str) -> None:
    chunks = recorded(name, text="<|im_end|>")
    assert text(chunks) == ""
    assert [chunk.stop_id for chunk in chunks if chunk.stop_id is not None] == [END]
    end = chunks[-1]
    assert end.stop_id == END
    assert end.finish == "stop"
    assert end.usage == Usage(prompt_tokens=10, completion_tokens=1, cached_tokens=9)


def test_the_end_of_a_grammar_is_a_stop_though_its_token_is_none_of_ours() -> None:
    chunks = recorded("grammar_end")
    assert text(chunks) == "ok"
    assert chunks[-1].stop_id is None
    assert chunks[-1].finish == "stop"


def test_a_stop_id_that_the_engine_does_not_know_ends_the_turn_before_it() -> None:
    *_, first, second, end = recorded("special_visible", stop=STARS, text="<gh_stars>")
    assert first == Chunk(tokens=1, ids=())
    assert second == Chunk(stop_id=STARS, usage=Usage(prompt_tokens=10, completion_tokens=1, cached_tokens=9))
    assert end.stop_id == STARS


def test_text_that_only_spells_the_end_of_turn_is_text() -> None:
    reader = LlamaCppReader({END: "<|im_end|>"})
    chunk = reader.chunk(SseEvent(b'{"content":"<|im_end|>","tokens":[50],"tokens_predicted":1}'))
    assert chunk == Chunk(text="<|im_end|>", tokens=1, ids=(50,))


def test_the_text_of_a_stop_token_is_cut_off_what_came_with_it() -> None:
    """As where every special token is in the text (`--special`), and the token completed a chunk that was held."""
    wanted = work(stop_ids=frozenset({END, 9}), stop_texts={END: "<|im_end|>", 9: "</s>"})
    reader = LlamaCpp().reader(wanted)
    chunk = reader.chunk(SseEvent(b'{"content":"</s><|im_end|>","tokens":[50,2],"tokens_predicted":2}'))
    assert chunk == Chunk(text="</s>", tokens=2, ids=(50,))


def test_a_matched_word_is_a_stop() -> None:
    chunks = recorded("stop_word")
    assert text(chunks) == "The original"
    assert chunks[-1].finish == "stop"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"<html>",
        b'{"content":5}',
        b'{"tokens_predicted":NaN}',
        b'{"tokens":["1"]}',
        b'{"tokens":[1],"tokens_predicted":1,"completion_probabilities":[{"id":1,"logprob":null}]}',
        b'{"tokens":[1],"tokens_predicted":1,"completion_probabilities":[{"logprob":-1}]}',
        b'{"tokens":[1],"tokens_predicted":1,"completion_probabilities":[{"id":1,"logprob":-1},{"id":2,"logprob":-1}]}',
        b'{"tokens":[1],"tokens_predicted":-5}',
        b'{"tokens":[1],"tokens_predicted":1000000000000000000000000000000}',
        b'{"stop":true,"stop_type":"none"}',
        b'{"stop":true}',
        b'{"error":{"code":500,"message":"at http://10.0.0.1:8080/x","type":"server_error"}}',
        b'{"error":"out of memory"}',
    ],
)
def test_an_event_that_is_not_the_protocols_is_a_broken_engine(data: bytes) -> None:
    with pytest.raises(EngineBroke) as caught:
        LlamaCppReader({}).chunk(SseEvent(data))
    assert "10.0.0.1" not in caught.value.message


@pytest.mark.parametrize("top_logprobs", [0, 1, 2])
def test_log_probabilities_come_by_ids_with_as_many_alternatives_as_asked_for(top_logprobs: int) -> None:
    chunks = [chunk for chunk in recorded("logprobs", top_logprobs=top_logprobs) if chunk.tokens]
    assert [chunk.ids for chunk in chunks] == [(504,), (2798,), (6330,)]
    assert [[(entry.id, round(entry.logprob, 2)) for entry in chunk.logprobs] for chunk in chunks] == [
        [(504, -2.18)],
        [(2798, -3.72)],
        [(6330, -0.75)],
    ]
    tops = [[(504, -2.18), (57, -2.42)], [(2798, -3.72), (8715, -3.91)], [(6330, -0.75), (1694, -3.37)]]
    assert [[(token, round(logprob, 2)) for token, logprob in chunk.logprobs[0].top] for chunk in chunks] == [
        top[:top_logprobs] for top in tops
    ]


def test_log_probabilities_are_lost_with_the_ids_of_split_characters() -> None:
    whole, cut = recorded("logprobs_split_utf8", top_logprobs=2), recorded("logprobs_cut_utf8")
    assert [(chunk.tokens, [entry.id for entry in chunk.logprobs]) for chunk in whole if chunk.tokens] == [
        (2, [119]),
        (3, [243]),
        (1, [END]),
    ]
    assert [(chunk.tokens, [entry.id for entry in chunk.logprobs]) for chunk in cut if chunk.tokens] == [(2, [119]), (1, [])]
    for chunks in (whole, cut):
        assert counts_add_up(chunks)


def test_the_end_of_turn_has_its_log_probability_once() -> None:
    chunks = recorded("logprobs_eos_visible", text="<|im_end|>", top_logprobs=1)
    assert [(entry.id, round(entry.logprob, 2), entry.top[0][0]) for chunk in chunks for entry in chunk.logprobs] == [
        (END, -10.46, 504)
    ]
    assert (text(chunks), chunks[-1].stop_id) == ("", END)


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    chunk = LlamaCppReader({}).chunk(SseEvent(b'{"content":"a\xffb\xc3","tokens_predicted":1}'))
    assert chunk == Chunk(text="a\ufffdb\ufffd", tokens=1)


def test_a_count_that_falls_is_a_broken_engine() -> None:
    reader = LlamaCppReader({})
    reader.chunk(SseEvent(b'{"content":"a","tokens":[1],"tokens_predicted":2}'))
    with pytest.raises(EngineBroke, match="count of tokens fell"):
        reader.chunk(SseEvent(b'{"content":"a","tokens":[1],"tokens_predicted":1}'))


def test_errors_say_whose_fault_it_is() -> None:
    adapter = LlamaCpp()
    too_long = adapter.error(400, (DATA / "too_long.json").read_bytes())
    assert isinstance(too_long, ContextTooLong)
    assert "4096 tokens" in too_long.message
    assert "5000 tokens" in too_long.message
    loading = adapter.error(503, (DATA / "loading.json").read_bytes())
    assert (type(loading), loading.status) == (EngineRefused, 503)
    bad = adapter.error(400, (DATA / "bad_token.json").read_bytes())
    assert (type(bad), bad.status) == (EngineRefused, 400)
    assert "Prompt contains invalid tokens" in bad.message


def test_info_has_the_context_of_one_slot_and_the_cache_of_all() -> None:
    info = LlamaCpp().info([(DATA / "props.json").read_bytes()])
    assert info == EngineInfo("b0-unknown", "smollm2", 4096, block_tokens=1, kv_tokens=8192, slots=2)


def test_load_is_that_of_its_own_metrics() -> None:
    idle = (DATA / "metrics.txt").read_bytes()
    busy = idle.replace(b"_processing 0", b"_processing 2").replace(b"_deferred 0", b"_deferred 5")
    assert LlamaCpp().load(idle, None) == EngineLoad(0, 0, None, prompt_tokens=3)
    assert LlamaCpp().load(busy, None) == EngineLoad(2, 5, None, prompt_tokens=3)


SLOT = '{"id":0,"n_ctx":4096,"speculative":false,"is_processing":false%s}'
USED = ',"id_task":1,"n_prompt_tokens":%d,"next_token":[{"n_decoded":0}],"params":{"seed":1}'


@pytest.mark.parametrize(
    ("slots", "usage"),
    [
        (["", ""], 0.0),  # none has had a task
        ([USED % 2048, ""], 0.25),
        ([USED % 4096, USED % 4096], 1.0),
        ([USED % 9000, ""], 1.0),
        ([',"id_task":7', ""], None),  # it does not say what it holds
        ([USED % -5, ""], None),
        ([], None),
    ],
)
def test_how_full_its_slots_are(slots: list[str], usage: float | None) -> None:
    body = f"[{','.join(SLOT % each for each in slots)}]".encode()
    assert LlamaCpp().kv_usage(body) == usage


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'[{"n_ctx":0}]', b'[{"n_ctx":"x"}]', b"[1]", b'{"error":{"code":501}}'])
def test_what_cannot_be_read_of_slots_is_none(body: bytes) -> None:
    assert LlamaCpp().kv_usage(body) is None


@pytest.mark.parametrize("alias", ["/models/a.gguf", "C:\\\\models\\\\a.gguf"])
def test_a_model_without_alias_is_named_by_its_file_not_its_path(alias: str) -> None:
    assert LlamaCpp().info([f'{{"model_alias":"{alias}"}}'.encode()]) == EngineInfo(model="a.gguf")


@pytest.mark.parametrize("bodies", [[], [b""], [b"<html>"], [b"{}"], [b'{"build_info":5}']])
def test_info_that_cannot_be_read_is_none(bodies: list[bytes]) -> None:
    assert LlamaCpp().info(bodies) == EngineInfo()


@pytest.mark.engine
def test_real_split_characters(local_engine: EngineUnderTest) -> None:
    chunks = asked(local_engine, work(constraint=JsonAnswer({"const": "é🦙"}), max_tokens=20))
    assert text(chunks) == '"é🦙"'
    assert any(chunk.ids is None and chunk.tokens > 1 for chunk in chunks)
    assert counts_add_up(chunks)
    assert chunks[-1].finish == "stop"


@pytest.mark.engine
def test_real_log_probabilities_are_of_the_whole_vocabulary_whatever_is_sampled(local_engine: EngineUnderTest) -> None:
    asked(local_engine, work(max_tokens=1))
    plain, hot, forced, grammar = (
        asked(local_engine, replace(each, request=replace(each.request, logprobs=3)))[-2].logprobs[0]
        for each in (
            work(max_tokens=1),
            work(max_tokens=1, sampling=Sampling(temperature=1.5, top_k=2, seed=3)),
            work(max_tokens=1, sampling=Sampling(temperature=0.0, logit_bias=((STARS, 100.0),))),
            work(max_tokens=1, constraint=JsonAnswer({"const": "a"})),
        )
    )
    assert plain.top[0] == (plain.id, plain.logprob)
    assert plain.top == hot.top == forced.top == grammar.top
    assert [logprob for _, logprob in plain.top] == sorted([logprob for _, logprob in plain.top], reverse=True)
    assert forced.id == STARS
    assert forced.logprob < plain.top[-1][1]


@pytest.mark.engine
def test_real_split_characters_lose_log_probabilities_but_the_end_has_its_own(local_engine: EngineUnderTest) -> None:
    wanted = work(constraint=JsonAnswer({"const": "é🦙"}), max_tokens=20)
    chunks = asked(local_engine, replace(wanted, request=replace(wanted.request, logprobs=0)))
    assert text(chunks) == '"é🦙"'
    named = [entry.id for chunk in chunks for entry in chunk.logprobs]
    assert sum(chunk.tokens for chunk in chunks) == len(named) + 3
    assert not any(entry.top for chunk in chunks for entry in chunk.logprobs)
    assert named[-1] in (0, END)


@pytest.mark.engine
def test_real_progress_counts_no_tokens_and_a_repeated_prompt_is_cached(local_engine: EngineUnderTest) -> None:
    prompt = (1, *range(1000, 1100))
    first = asked(local_engine, work(ids=prompt, max_tokens=2))
    again = asked(local_engine, work(ids=prompt, max_tokens=2))
    assert first[0].tokens == 0
    assert again[0].usage == Usage(prompt_tokens=101, cached_tokens=100)
    for chunks in (first, again):
        assert counts_add_up(chunks)
    assert again[-1].usage == Usage(prompt_tokens=101, completion_tokens=2, cached_tokens=100)


@pytest.mark.engine
def test_real_special_tokens_are_seen_where_asked_for(local_engine: EngineUnderTest) -> None:
    stars = Sampling(temperature=0.0, logit_bias=((STARS, 100.0),))
    hidden = asked(local_engine, work(sampling=stars, max_tokens=2))
    shown = asked(local_engine, work(sampling=stars, max_tokens=2, visible=("<gh_stars>", "no token")))
    assert (text(hidden), text(shown)) == ("", "<gh_stars><gh_stars>")
    assert [chunk.ids for chunk in hidden if chunk.ids] == [(STARS,), (STARS,)]


@pytest.mark.engine
@pytest.mark.parametrize("visible", [(), ("<|im_end|>",)])
def test_real_end_of_turn(local_engine: EngineUnderTest, visible: tuple[str, ...]) -> None:
    end = Sampling(temperature=0.0, logit_bias=((END, 100.0),))
    chunks = asked(local_engine, work(sampling=end, visible=visible, stop_texts={END: "<|im_end|>"}))
    assert text(chunks) == ""
    assert chunks[-1].stop_id == END
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 1


@pytest.mark.engine
@pytest.mark.parametrize("visible", [(), ("<gh_stars>",)])
def test_real_stop_at_an_id_that_the_engine_does_not_know(local_engine: EngineUnderTest, visible: tuple[str, ...]) -> None:
    stars = Sampling(temperature=0.0, logit_bias=((STARS, 100.0),))
    asked(local_engine, work(max_tokens=1))
    chunks = asked(
        local_engine, work(sampling=stars, visible=visible, stop_ids=frozenset({STARS}), stop_texts={STARS: "<gh_stars>"})
    )
    assert text(chunks) == ""
    assert chunks[-1].stop_id == STARS
    assert chunks[-1].usage == Usage(prompt_tokens=10, completion_tokens=1, cached_tokens=9)


@pytest.mark.engine
def test_real_choices_differ_and_a_seed_repeats(local_engine: EngineUnderTest) -> None:
    sampling = Sampling(temperature=2.0, seed=5)
    first, again, other = (text(asked(local_engine, work(sampling=sampling, choice=choice))) for choice in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.engine
def test_real_refusals(local_engine: EngineUnderTest) -> None:
    with pytest.raises(ContextTooLong, match="4096 tokens"):
        asked(local_engine, work(ids=(1,) * 4200))
    with pytest.raises(EngineRefused, match="invalid tokens") as caught:
        asked(local_engine, work(ids=(10**6,)))
    assert caught.value.status == 400


@pytest.mark.engine
def test_real_info_and_health(local_engine: EngineUnderTest) -> None:
    adapter = LlamaCpp()
    bodies = []
    for path in (adapter.health_path, *adapter.info_paths):
        with urllib.request.urlopen(local_engine.url + path, timeout=5) as answer:
            bodies.append(answer.read())
    assert adapter.info(bodies[1:]) == EngineInfo("b0-unknown", "smollm2", 4096, block_tokens=1, kv_tokens=8192, slots=2)


NESTED: list[Any] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "home": {
                "type": "object",
                "properties": {"unit": {"enum": ["m", "km"]}, "far": {"type": ["boolean", "null"]}},
                "required": ["far"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "home", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"type": "number", "minimum": -1, "maximum": 1}, "minItems": 3, "maxItems": 5},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]},
            {"anyOf": [{"properties": {"b": {"type": "integer", "minimum": 10}}, "required": ["b"]}, {"required": ["c"]}]},
            {"properties": {"c": {"type": "null"}}},
        ]
    },
    {
        "$defs": {
            "node": {
                "properties": {"v": {"const": "é\n"}, "leaf": {"$ref": "#/$defs/leaf"}, "next": {"$ref": "#/$defs/node"}},
                "required": ["v"],
            },
            "leaf": {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": [1, None]}], "items": False},
        },
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
    },
]


@pytest.mark.engine
@pytest.mark.parametrize("schema", NESTED)
def test_real_answers_satisfy_their_schema(local_engine: EngineUnderTest, schema: Any) -> None:
    sampling = Sampling(temperature=1.0, seed=7)
    chunks = asked(local_engine, work(sampling=sampling, constraint=JsonAnswer(schema), max_tokens=150))
    assert chunks[-1].finish == "stop", text(chunks)
    jsonschema_rs.validator_for(schema).validate(json.loads(text(chunks)))


@pytest.mark.engine
def test_real_calls_are_of_the_tools(local_engine: EngineUnderTest) -> None:
    days = {"type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 14}}, "required": ["days"]}
    tools = (ToolSpec("get_weather", parameters=days), ToolSpec("get_forecast", parameters=days))
    constraint = CallAnswer(tools, "<tool_call>\n", "\n</tool_call>", "\n", "name", "arguments", or_text=False, max_calls=1)
    answer = text(asked(local_engine, work(constraint=constraint, max_tokens=80)))
    call = json.loads(answer.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert call["name"] in ("get_weather", "get_forecast")
    jsonschema_rs.validator_for(days).validate(call["arguments"])


def tokens(engine: EngineUnderTest, words: str) -> tuple[int, ...]:
    asked_for = json.dumps({"content": words, "parse_special": True}).encode()
    request = urllib.request.Request(f"{engine.url}/tokenize", asked_for, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return tuple(json.loads(answer.read())["tokens"])


TURN = "<|im_start|>user\nSay {} in JSON.<|im_end|>\n<|im_start|>assistant\n<think>\n"
THOUGHT = "They want JSON.\n</think>\n\n"
DAYS = {"type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 14}}, "required": ["days"]}


@pytest.mark.engine
@pytest.mark.parametrize(
    "constraint",
    [
        JsonAnswer(DAYS),
        CallAnswer((ToolSpec("f", parameters=DAYS),), "<tool_call>\n", "\n</tool_call>", "\n", "name", "arguments", False, 1),
    ],
)
def test_real_answers_come_after_the_thought_that_the_template_opened(
    local_engine: EngineUnderTest, constraint: JsonAnswer | CallAnswer
) -> None:
    form = compile_format(hermes.FORMAT)
    prompt = TURN.format("3 days") + THOUGHT + '{"days": 3}<|im_end|>\n' + TURN.format("5 days")
    held = replace(constraint, thought_closer=form.open_thought(TURN))
    chunks = asked(local_engine, work(ids=tokens(local_engine, prompt), constraint=held, max_tokens=200))
    parser = form.parser(ParseOptions(tools=(ToolSpec("f"),), prompt_tail=TURN))
    deltas = [*parser.feed(text(chunks)), *parser.finish("stop", Usage())]
    thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningText))
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentText))
    arguments = "".join(delta.text for delta in deltas if isinstance(delta, ToolCallArguments))
    assert thought
    assert not [delta for delta in deltas if isinstance(delta, ParseFailure)]
    assert (content == "") is isinstance(constraint, CallAnswer)
    jsonschema_rs.validator_for(DAYS).validate(json.loads(content or arguments))


@pytest.mark.engine
def test_real_text_beside_calls_is_free(local_engine: EngineUnderTest) -> None:
    constraint = CallAnswer((ToolSpec("now"),), "<tool_call>\n", "\n</tool_call>", "\n", "name", "arguments", or_text=True)
    assert text(asked(local_engine, work(constraint=constraint))) == text(asked(local_engine, work()))


@pytest.mark.engine
@pytest.mark.parametrize(
    "constraint",
    [
        JsonAnswer({"properties": {f"p{number}": {"type": "string", "maxLength": 256} for number in range(60)}}),
        CallAnswer(
            tuple(ToolSpec(f"tool_{n}", parameters={"properties": {f"p{n}_{m}": {} for m in range(10)}}) for n in range(60)),
            *('[é]^-\\"', "]", "\n", "name", "arguments"),
            or_text=True,
        ),
        JsonAnswer({"type": "integer", "minimum": -(10**18) + 7, "maximum": 10**19}),
        JsonAnswer(),
    ],
    ids=["long strings", "many tools", "integer bounds", "any object"],
)
def test_real_engine_takes_large_and_odd_grammars(local_engine: EngineUnderTest, constraint: Any) -> None:
    try:
        chunks = asked(local_engine, work(constraint=constraint, max_tokens=2))
    except GatewayError as error:
        pytest.fail(error.message)
    assert chunks[-1].finish is not None


@pytest.mark.parametrize(("predicted", "ended"), [(1, None), (2, Chunk(finish="length"))])
def test_an_answer_as_long_as_it_may_be_needs_no_end(predicted: int, ended: Chunk | None) -> None:
    reader = LlamaCppReader({}, max_tokens=2)
    reader.chunk(SseEvent(b'{"content":"a","tokens":[50],"tokens_predicted":%d}' % predicted))
    assert reader.ended() == ended
