"""What holds for every engine that takes token ids, through the whole gateway: the same tests over all adapters.

The engines are fakes that say given ids (tests/fakes), so that every id is known. What needs no given ids runs over the real
llama.cpp too, and over the real vLLM where `make test-vllm` asks for it.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import jsonschema_rs
import pytest
from fakes.conforming import CACHED, END, Asked, ConformingEngine, Load, ids_of
from fakes.llamacpp import FakeLlamaCpp
from fakes.sglang import FakeSglang
from fakes.trtllm import FakeTrtLlm
from fakes.vllm import FakeVllm
from support.gateway import PAIR, Served, sample, serving, settings_for, tiny_model
from support.gbnf import Grammar
from support.llamacpp import EngineUnderTest
from support.vllm import ALIAS, VllmUnderTest
from support.vocabulary import small_tokenizer

from engines.base import MAX_LOAD_BYTES, Engine, EngineInfo, EngineLoad
from engines.registry import make

THINK, CLOSER, OPENS_CALL, ENDS_CALL = 5, 6, 7, 8  # <think>, </think>, <tool_call>, </tool_call>
OTHER_STOP = 0  # <|endoftext|>, the vocabulary's second end of turn
MIXED = "Zażółć 🦙 gęślą jaźń, 東京."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "東京"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "trip", "schema": SCHEMA, "strict": True}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
ARGUMENTS = '{"city": "東京", "days": 3}'
CALL = f'\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n'
GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1}


@dataclass(frozen=True)
class Subject:
    """A kind of engine. `names` are its own for the settings of a request, and `lacks` what it refuses with the field's name."""

    kind: str
    fake: Callable[[], ConformingEngine]
    names: Mapping[str, str]
    lacks: frozenset[str] = frozenset()
    stops_at_ids: bool = True
    info: EngineInfo = field(default_factory=EngineInfo)

    @property
    def streams_ids(self) -> bool:
        return "return_token_ids" not in self.lacks


PLAIN = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")
SAME = {name: name for name in (*PLAIN, "top_k", "seed", "repetition_penalty", "logit_bias")}
VLLM = Subject("vllm", FakeVllm, {**SAME, "min_tokens": "min_tokens"}, info=EngineInfo("0.32.0", "tiny", 8192, 16, 16_000))
LLAMA = Subject(
    "llamacpp",
    FakeLlamaCpp,
    {**SAME, "repetition_penalty": "repeat_penalty"},
    frozenset({"min_tokens", "return_token_ids"}),
    stops_at_ids=False,
    info=EngineInfo(None, "tiny.gguf", 8192, 1, 16_384, slots=2),
)
SGLANG_NAMES = {**SAME, "seed": "sampling_seed", "min_tokens": "min_new_tokens"}
SGLANG_INFO = EngineInfo("0.5.23", "tiny", 8192, 16, 16_000)
SGLANG = Subject("sglang", lambda: FakeSglang(incremental=False), SGLANG_NAMES, info=SGLANG_INFO)
INCREMENTAL = Subject("sglang", lambda: FakeSglang(incremental=True), SGLANG_NAMES, info=SGLANG_INFO)
TRTLLM_INFO = EngineInfo("1.2.1", "tiny", None, 16, 16_000)
TRTLLM = Subject("trtllm", FakeTrtLlm, SAME, frozenset({"min_tokens", "logprobs"}), info=TRTLLM_INFO)
SUBJECTS = {"llamacpp": LLAMA, "vllm": VLLM, "sglang": SGLANG, "sglang_incremental": INCREMENTAL, "trtllm": TRTLLM}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    """Every kind, with its fake."""
    return SUBJECTS[request.param]


@contextlib.asynccontextmanager
async def faked(subject: Subject, **changed: Any) -> AsyncIterator[tuple[ConformingEngine, Served]]:
    """The subject's fake, with the gateway in front of it."""
    async with subject.fake().running() as engine:
        assert isinstance(engine, ConformingEngine)
        changed = {"source": str(tiny_model("full")), "format": "hermes", **changed}
        async with serving(settings_for(engine.url, kind=subject.kind, **changed)) as served:
            yield engine, served


@dataclass
class Heard:
    """An answer, streamed or whole."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


async def heard(served: Served, *, stream: bool, **body: Any) -> Heard:
    """A chat's answer, the same way for both."""
    if not stream:
        response = await served.chat(**body)
        assert response.status_code == 200, response.text
        return _folded([response.json()], "message")
    *events, done = await served.stream(stream_options={"include_usage": True}, **body)
    assert done == "[DONE]"
    return _folded(events, "delta")


def _folded(events: Sequence[Any], part: str) -> Heard:
    answer = Heard()
    for each in events:
        answer.usage = each.get("usage") or answer.usage
        for choice in each["choices"]:
            said = choice[part]
            answer.content += said.get("content") or ""
            answer.reasoning += said.get("reasoning_content") or ""
            answer.ids += choice.get("token_ids") or []
            answer.finish = choice["finish_reason"] or answer.finish
            answer.logprobs += (choice.get("logprobs") or {}).get("content") or []
            for at, call in enumerate(said.get("tool_calls") or []):
                _add_call(answer.calls, call.get("index", at), call["function"])
    return answer


def _add_call(calls: list[tuple[str, str]], index: int, function: Mapping[str, Any]) -> None:
    if index == len(calls):
        calls.append((function["name"], ""))
    name, arguments = calls[index]
    calls[index] = (name, arguments + (function.get("arguments") or ""))


def wish(subject: Subject) -> dict[str, Any]:
    """Asks for ids where the kind has them."""
    return {"return_token_ids": True} if subject.streams_ids else {}


BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def test_the_engine_gets_the_ids_of_the_prompt(subject: Subject) -> None:
    async with faked(subject) as (engine, served):
        await served.chat(max_tokens=9)
        shown = (await served.client.post("/v1/chat/completions/render", json={"model": "m", "messages": HELLO})).json()
    (asked,) = engine.asks
    assert asked.prompt == shown["ids"] != []


HELLO = [{"role": "user", "content": "Hello"}]
HOSTILE = [
    pytest.param(body, id=name)
    for name, body in {
        "empty": b"",
        "not_text": bytes(range(256)),
        "html": b"<html>",
        "null": b"null",
        "open": b"{",
        "deep": b"[" * 100_000,
        "strings": b'[{"numActiveRequests":"1","numQueuedRequests":"2","kvCacheStats":{"usedNumBlocks":"1"}}]',
        "objects": b'{"loads":[{"num_running_reqs":{},"num_waiting_reqs":[]}],"max_total_num_tokens":"9","page_size":{}}',
        "negative": b'[{"numActiveRequests":-1,"numQueuedRequests":-2,"kvCacheStats":{"usedNumBlocks":-1,"maxNumBlocks":9}}]',
        "no_blocks": b'[{"kvCacheStats":{"usedNumBlocks":1,"maxNumBlocks":0}}]',
        "huge": b'{"loads":[{"num_running_reqs":1e300,"num_waiting_reqs":1e18}],"max_total_num_tokens":1e308,"dp_size":1e308}',
        "halves": b'{"loads":[{"num_running_reqs":0.5,"token_usage":1.5}],"page_size":0.5,"max_total_num_tokens":-4}',
        "fifty_mb": b'{"loads":[],"version":"' + b"x" * 50_000_000 + b'"}',
        "too_long": b'[{"numActiveRequests":1}]' + b" " * MAX_LOAD_BYTES,
        "figures": b"".join(
            b'%s{engine="0",dp_rank="0",block_size="%s",num_gpu_blocks="None"} %s\n' % (name, value, value)
            for name in (
                b"llamacpp:requests_processing",
                b"vllm:num_requests_running",
                b"vllm:kv_cache_usage_perc",
                b"vllm:cache_config_info",
                b"sglang:num_running_reqs",
                b"sglang:token_usage",
                b"trtllm_num_requests_running",
                b"trtllm_kv_cache_tokens_per_block",
                b"trtllm_kv_cache_max_blocks",
            )
            for value in (b"NaN", b"-1", b"1e99")
        ),
    }.items()
]


def engine_of(subject: Subject) -> Engine:
    """The adapter."""
    return make(subject.kind)


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_characters_of_several_tokens_are_whole_streamed_or_not(subject: Subject, size: int) -> None:
    async with faked(subject) as (engine, served):
        engine.says, engine.size = lambda _: ids_of(MIXED), size
        whole, streamed = [await heard(served, stream=each, max_tokens=99, **wish(subject)) for each in (False, True)]
    assert whole == streamed
    assert whole.content == MIXED
    assert whole.finish == "stop"
    assert whole.ids == ([*ids_of(MIXED), END] if subject.streams_ids else [])


@BOTH
async def test_usage_is_the_engines(subject: Subject, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        said = await heard(served, stream=stream, max_tokens=99)
    (asked,) = engine.asks
    assert said.usage["prompt_tokens"] == len(asked.prompt)
    assert said.usage["completion_tokens"] == len("Hello") + 1
    assert said.usage["prompt_tokens_details"]["cached_tokens"] == CACHED


@BOTH
async def test_at_the_limit_the_answer_is_cut(subject: Subject, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        said = await heard(served, stream=stream, max_tokens=3, **wish(subject))
    assert engine.asks[0].limit == 3
    assert (said.content, said.finish) == ("Hel", "length")
    assert said.usage["completion_tokens"] == 3
    assert said.ids == (ids_of("Hel") if subject.streams_ids else [])


@BOTH
@pytest.mark.parametrize("stop_id", [END, OTHER_STOP])
async def test_a_stop_id_ends_the_turn_and_nothing_leaks(subject: Subject, stop_id: int, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        engine.says = lambda _: [*ids_of("Hello"), stop_id, *ids_of("never")]
        said = await heard(served, stream=stream, max_tokens=99, **wish(subject))
        failures = await served.metrics()
    if subject.stops_at_ids:
        assert engine.asks[0].stop_ids == {END, OTHER_STOP}
    assert (said.content, said.finish) == ("Hello", "stop")
    assert said.ids == ([*ids_of("Hello"), stop_id] if subject.streams_ids else [])
    assert failures.get(sample("interlock_parse_failures_total", **PAIR, format="hermes", kind="stop_leak"), 0) == 0


async def test_an_end_of_turn_that_the_engine_keeps_to_itself_ends_it_too() -> None:
    async with faked(TRTLLM) as (engine, served):
        engine.hides_end = True
        said = await heard(served, stream=False, max_tokens=99, return_token_ids=True)
    assert (said.content, said.finish, said.ids) == ("Hello", "stop", ids_of("Hello"))


@BOTH
async def test_with_ignore_eos_the_answer_goes_on_to_its_limit(subject: Subject, stream: bool) -> None:
    async with faked(subject) as (_, served):
        said = await heard(served, stream=stream, max_tokens=9, ignore_eos=True, **wish(subject))
    assert (said.content, said.finish) == ("Helloxxxx", "length")
    assert END not in said.ids


SETTINGS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
    "seed": 7,
    "logit_bias": {"50": -1.0},
    "min_tokens": 2,
}


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_setting_arrives_under_the_engines_name_or_is_refused_with_its_own(subject: Subject, name: str) -> None:
    async with faked(subject) as (engine, served):
        answer = await served.chat(max_tokens=9, **{name: SETTINGS[name]})
    if name in subject.lacks:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert engine.calls == []
        return
    assert answer.status_code == 200, answer.text
    arrived = engine.asks[0].settings[subject.names[name]]
    assert arrived == SETTINGS[name] or {str(token): bias for token, bias in arrived} == SETTINGS[name]


async def test_settings_at_once_are_all_taken_and_none_is_made_up(subject: Subject) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name not in subject.lacks}
    async with faked(subject) as (engine, served):
        assert (await served.chat(max_tokens=9, **settings)).status_code == 200
        assert (await served.chat(max_tokens=9)).status_code == 200
    first, second = (asked.settings.keys() & set(subject.names.values()) for asked in engine.asks)
    assert first == {subject.names[name] for name in settings}
    assert second == set()


@BOTH
async def test_log_probabilities_have_an_entry_for_each_token_or_are_refused(subject: Subject, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        engine.size = 2
        if "logprobs" in subject.lacks:
            answer = await served.chat(max_tokens=9, logprobs=True, stream=stream)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")
            return
        said = await heard(served, stream=stream, max_tokens=9, logprobs=True, top_logprobs=2)
        bare = await heard(served, stream=stream, max_tokens=9, logprobs=True)
    assert [bytes(entry["bytes"]) for entry in said.logprobs] == [*(letter.encode() for letter in "Hello"), b"<|im_end|>"]
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] == -0.5 for entry in said.logprobs)
    assert [entry["top_logprobs"] for entry in bare.logprobs] == [[]] * 6


def admits(asked: Asked, text: str) -> bool:
    """Whether the grammar that arrived allows the text."""
    assert asked.grammar is not None
    return Grammar.read(asked.grammar).accepts(text)


@BOTH
async def test_a_schema_arrives_as_the_engines_own_constraint(subject: Subject, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        engine.says = lambda _: ids_of(ARGUMENTS)
        said = await heard(served, stream=stream, max_tokens=99, response_format=FORM)
    assert said.content == ARGUMENTS
    assert admits(engine.asks[0], ARGUMENTS)
    assert not admits(engine.asks[0], ARGUMENTS.replace("3", "15"))


@BOTH
async def test_a_required_call_arrives_as_the_engines_own_constraint(subject: Subject, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        engine.says = lambda _: [OPENS_CALL, *ids_of(CALL), ENDS_CALL]
        said = await heard(served, stream=stream, max_tokens=199, tools=TOOLS, tool_choice="required")
        await served.chat(max_tokens=9, tools=TOOLS)
    assert said.calls == [("get_weather", ARGUMENTS)]
    assert said.finish == "tool_calls"
    assert admits(engine.asks[0], f"<tool_call>{CALL}</tool_call>")
    assert not admits(engine.asks[0], "Hello")
    assert engine.asks[1].grammar is None


@BOTH
async def test_a_call_is_told_by_the_ids_of_its_markers(subject: Subject, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        engine.says = lambda _: [*ids_of("So: "), OPENS_CALL, *ids_of(CALL), ENDS_CALL]
        said = await heard(served, stream=stream, max_tokens=199, tools=TOOLS, **wish(subject))
    assert (said.content, said.calls, said.finish) == ("So: ", [("get_weather", ARGUMENTS)], "tool_calls")
    if subject.streams_ids:
        assert said.ids == [*engine.says([]), END]


async def test_a_call_that_is_only_spelled_is_text_where_ids_tell(subject: Subject) -> None:
    spelled = f"<tool_call>{CALL}</tool_call>"
    async with faked(subject) as (engine, served):
        engine.says = lambda _: ids_of(spelled)
        said = await heard(served, stream=False, max_tokens=199, tools=TOOLS)
    assert said.calls == ([] if subject.streams_ids else [("get_weather", ARGUMENTS)])
    assert said.content == (spelled if subject.streams_ids else "")


@BOTH
async def test_a_thought_is_ended_at_its_budget_and_goes_on_from_its_ids(subject: Subject, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        engine.says = lambda prompt: ids_of("Done") if CLOSER in prompt else [THINK, *ids_of("abcdefghij")]
        said = await heard(served, stream=stream, max_tokens=99, reasoning_budget=6, **wish(subject))
    first, second = engine.asks
    delivered = [THINK, *ids_of("abcdef"), CLOSER]
    assert second.prompt == [*first.prompt, *delivered]
    assert second.limit == 99 - len(delivered)
    assert (said.reasoning, said.content, said.finish) == ("abcdef", "Done", "stop")
    assert said.usage["prompt_tokens"] == len(first.prompt)
    assert said.usage["completion_tokens"] == len(delivered) + 5
    assert said.ids == ([*delivered, *ids_of("Done"), END] if subject.streams_ids else [])


async def test_ids_are_refused_where_not_all_come(subject: Subject) -> None:
    async with faked(subject) as (_, served):
        answer = await served.chat(max_tokens=9, return_token_ids=True)
    if subject.streams_ids:
        assert answer.json()["choices"][0]["token_ids"] == [*ids_of("Hello"), END]
    else:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_token_ids")


@BOTH
@pytest.mark.parametrize(("status", "seen"), [(400, 400), (500, 502), (503, 503)])
async def test_a_failure_of_the_engine_is_told_as_whose_it_is(subject: Subject, status: int, seen: int, stream: bool) -> None:
    async with faked(subject) as (engine, served):
        engine.failure = (status, "it is what it is")
        answer = await served.chat(max_tokens=9, stream=stream)
    error = answer.json()["error"]
    assert answer.status_code == seen
    assert ("it is what it is" in error["message"]) is (status != 503)


@pytest.mark.parametrize("cut_after", [1, 3])
async def test_a_cut_stream_is_an_error_and_no_end(subject: Subject, cut_after: int) -> None:
    async with faked(subject) as (engine, served):
        engine.cut_after = cut_after
        *events, last = await served.stream(max_tokens=9)
    assert _folded(events, "delta").content == "Hello"[:cut_after]
    assert last["error"]["type"] == "upstream_error"


@pytest.mark.parametrize("cut_after", [0, 3])
async def test_an_answer_that_was_cut_is_none(subject: Subject, cut_after: int) -> None:
    async with faked(subject) as (engine, served):
        engine.cut_after = cut_after
        answer = await served.chat(max_tokens=9)
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "upstream_error")


async def test_a_client_that_leaves_closes_the_engines_connection(subject: Subject) -> None:
    async with faked(subject) as (engine, served):
        engine.hang_after = 2
        body = {"model": "m", "messages": HELLO, "stream": True, "max_tokens": 9}
        async with served.client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if '"content":"H' in line:
                    break
            else:
                pytest.fail("nothing came")
            assert not engine.calls[0].closed.is_set()
        async with asyncio.timeout(2):
            await engine.calls[0].closed.wait()


async def test_several_choices_are_several_calls_with_seeds_of_their_own(subject: Subject) -> None:
    async with faked(subject) as (engine, served):
        answer = (await served.chat(max_tokens=9, n=2, seed=5)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Hello", "Hello"]
    assert [asked.settings[subject.names["seed"]] for asked in engine.asks] == [5, 6]


async def test_an_engine_says_what_it_is(subject: Subject) -> None:
    async with faked(subject) as (_, served):
        registry = served.gateway.registry
        await until(lambda: registry.info("e") == subject.info, lambda: registry.info("e"))


async def test_an_engine_says_its_load(subject: Subject) -> None:
    async with subject.fake().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.load = Load(3, 2, 0.25)
        async with before(Real(engine.url, subject, {"source": str(tiny_model("full")), "format": "hermes"})) as served:
            await until(lambda: load_of(served) == EngineLoad(3, 2, 0.25), lambda: load_of(served))


async def test_an_engine_that_does_not_measure_says_nothing_and_serves(subject: Subject) -> None:
    elsewhere = subject.kind in ("sglang", "trtllm")  # these say it in a second place
    async with subject.fake().running() as engine:
        assert isinstance(engine, ConformingEngine)
        engine.load, engine.measures = Load(3, 2, 0.25), False
        async with before(Real(engine.url, subject, {"source": str(tiny_model("full")), "format": "hermes"})) as served:
            paths = engine_of(subject).load_paths
            await until(lambda: paths[-1] in [seen.path for seen in engine.seen], lambda: engine.seen)
            assert (await heard(served, stream=True, max_tokens=9)).content == "Hello"
            if elsewhere:
                await until(lambda: load_of(served) == EngineLoad(3, 2, 0.25), lambda: load_of(served))
            assert load_of(served) == (EngineLoad(3, 2, 0.25) if elsewhere else None)


@pytest.mark.parametrize("body", HOSTILE)
def test_no_answer_of_an_engine_is_taken_for_a_figure_that_it_did_not_say(subject: Subject, body: bytes) -> None:
    engine = engine_of(subject)
    for rank in (None, 0):
        assert engine.load(body, rank) == EngineLoad()
        assert engine.kv_usage(body) is None
        info = engine.identity([body for _ in engine.identity_paths], EngineInfo(model="m"), rank)
        assert (info.model, info.block_tokens, info.kv_tokens) == ("m", None, None)
    assert engine.identity([], EngineInfo(model="m"), None).kv_tokens is None


def load_of(served: Served) -> EngineLoad | None:
    """What the engine last said of its load, but for what it is known again by."""
    registry = served.gateway.registry
    found = registry.standing("e").load(registry.now_s())
    return replace(found[1], prompt_tokens=None, started_s=None) if found is not None else None


async def until(happened: Callable[[], bool], seen: Callable[[], object], limit_s: float = 10.0) -> None:
    """Waits until it has; fails with what was seen instead."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while not happened():
                await asyncio.sleep(0.01)
    assert happened(), seen()


async def test_an_engine_with_another_tokenizer_stays_out_where_it_tokenises(subject: Subject) -> None:
    async with subject.fake().running() as engine:
        engine.answers["/tokenize"] = {"tokens": [1, 2, 3]}
        settings = settings_for(engine.url, kind=subject.kind, source=str(tiny_model("full")), format="hermes")
        async with serving(settings, wait=False) as served, asyncio.timeout(5):
            while (problem := served.gateway.registry.problem("e")) == "not_probed":
                await asyncio.sleep(0.01)
    assert problem == (None if subject.kind == "trtllm" else "tokenizer_mismatch")


# What fakes and the real engines have in common


@dataclass(frozen=True)
class Real:
    """An engine that says what it likes: an address, the gateway's settings, and what the subject of its kind is."""

    url: str
    subject: Subject
    settings: dict[str, Any]


REAL = [
    *SUBJECTS,
    pytest.param("real_llamacpp", marks=pytest.mark.engine),
    pytest.param("real_vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(900)]),
]


@pytest.fixture(params=REAL)
async def any_engine(request: pytest.FixtureRequest) -> AsyncIterator[Real]:
    """Each fake and each real engine."""
    name = request.param
    if name == "real_llamacpp":
        local: EngineUnderTest = request.getfixturevalue("local_engine")
        yield Real(local.url, LLAMA, {"source": str(local.model)})
    elif name == "real_vllm":
        real: VllmUnderTest = request.getfixturevalue("vllm")
        patient = {"between_tokens_s": 300, "connect_s": 30}
        yield Real(real.url, VLLM, {"source": str(real.model), "engine": {"model": ALIAS}, "timeouts": patient})
    else:
        subject = SUBJECTS[name]
        async with subject.fake().running() as engine:
            assert isinstance(engine, ConformingEngine)
            engine.says = _speaker(engine)
            yield Real(engine.url, subject, {"source": str(tiny_model("full")), "format": "hermes"})


def _speaker(engine: ConformingEngine) -> Callable[[list[int]], list[int]]:
    """Says what the grammar of the newest request allows, and a sentence where there is none."""

    def says(_prompt: list[int]) -> list[int]:
        grammar = engine.asks[-1].grammar
        if grammar is None:
            return ids_of("A short one.")
        return ids_of(ARGUMENTS if Grammar.read(grammar).accepts(ARGUMENTS) else f"<tool_call>{CALL}</tool_call>")

    return says


@contextlib.asynccontextmanager
async def before(real: Real, **changed: Any) -> AsyncIterator[Served]:
    """The gateway in front of it."""
    async with serving(settings_for(real.url, kind=real.subject.kind, **real.settings, **changed)) as served:
        served.client.timeout = httpx.Timeout(600)
        yield served


async def test_any_engine_says_the_same_streamed_and_whole(any_engine: Real) -> None:
    body = {"messages": HELLO, "max_tokens": 12, **GREEDY, **wish(any_engine.subject)}
    async with before(any_engine) as served:
        await served.chat(**{**body, "max_tokens": 1})  # a prompt that is cached rounds in another way
        whole, streamed = [await heard(served, stream=each, **body) for each in (False, True)]
    assert whole == streamed
    assert whole.content
    assert whole.usage["prompt_tokens"] > 0
    if whole.ids:
        assert len(whole.ids) == whole.usage["completion_tokens"]


async def test_any_engine_is_cut_at_its_limit(any_engine: Real) -> None:
    async with before(any_engine) as served:
        said = await heard(served, stream=True, messages=HELLO, max_tokens=4, ignore_eos=True, **GREEDY)
    assert (said.finish, said.usage["completion_tokens"]) == ("length", 4)


async def test_any_engine_holds_an_answer_to_its_schema(any_engine: Real) -> None:
    async with before(any_engine) as served:
        said = await heard(served, stream=True, messages=HELLO, max_tokens=99, response_format=FORM, **GREEDY)
    assert said.finish == "stop"
    jsonschema_rs.validate(SCHEMA, json.loads(said.content))


async def test_any_engine_makes_the_call_that_is_required(any_engine: Real) -> None:
    wanted = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 199, **GREEDY}
    async with before(any_engine, tools="constrained") as served:
        said = await heard(served, stream=True, messages=HELLO, **wanted)
    assert said.finish == "tool_calls"
    ((name, arguments), *_) = said.calls
    assert name == "get_weather"
    jsonschema_rs.validate(SCHEMA, json.loads(arguments))


async def test_any_engine_finds_a_prompt_in_its_cache(any_engine: Real) -> None:
    long = [{"role": "user", "content": "Count from one to ten thousand in words. " * 12}]
    async with before(any_engine) as served:
        first, second = [await heard(served, stream=False, messages=long, max_tokens=1) for _ in range(2)]
    assert first.usage["prompt_tokens"] == second.usage["prompt_tokens"]
    assert 0 < second.usage["prompt_tokens_details"]["cached_tokens"] < second.usage["prompt_tokens"]


@pytest.mark.engine
async def test_the_real_llamacpp_says_that_it_works_and_that_it_does_not(local_engine: EngineUnderTest) -> None:
    body = {"model": "m", "messages": HELLO, "stream": True, "max_tokens": 2000, "ignore_eos": True}
    async with before(Real(local_engine.url, LLAMA, {"source": str(local_engine.model)})) as served:
        assert served.gateway.registry.info("e") == EngineInfo("b0-unknown", "smollm2", 4096, 1, 8192, slots=2)
        await until(lambda: works(served) == (0, 0), lambda: load_of(served))
        async with served.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await until(lambda: works(served) == (1, 0), lambda: load_of(served), limit_s=30)
            await until(lambda: 0 < ((load_of(served) or EngineLoad()).kv_usage or 0) < 1, lambda: load_of(served), limit_s=30)
        await until(lambda: works(served) == (0, 0), lambda: load_of(served), limit_s=30)
        held = load_of(served)
        assert held is not None
        assert 0 < (held.kv_usage or 0) < 1, "an idle slot holds what it had"


def works(served: Served) -> tuple[int | None, int | None] | None:
    """The requests that the engine last said that it works on, and holds."""
    found = load_of(served)
    return (found.running, found.waiting) if found is not None else None


@pytest.mark.vllm
@pytest.mark.timeout(900)
async def test_the_real_vllm_says_that_it_works_and_what_its_cache_holds(vllm: VllmUnderTest) -> None:
    body = {"model": "m", "messages": HELLO, "stream": True, "max_tokens": 500, "ignore_eos": True}
    settings = {"source": str(vllm.model), "engine": {"model": ALIAS}, "timeouts": {"between_tokens_s": 300, "connect_s": 30}}
    async with before(Real(vllm.url, VLLM, settings)) as served:
        registry = served.gateway.registry
        await until(lambda: registry.info("e").kv_tokens is not None, lambda: registry.info("e"), limit_s=60)
        assert registry.info("e").block_tokens == 32
        async with served.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await until(lambda: (load_of(served) or EngineLoad()).running == 1, lambda: load_of(served), limit_s=60)
            assert ((load_of(served) or EngineLoad()).kv_usage or 0) > 0
        await until(lambda: load_of(served) == EngineLoad(0, 0, 0.0), lambda: load_of(served), limit_s=60)


def test_the_texts_of_these_tests_are_what_their_ids_say() -> None:
    tokenizer = small_tokenizer()
    special = {"<think>": THINK, "</think>": CLOSER, "<tool_call>": OPENS_CALL, "</tool_call>": ENDS_CALL}
    assert {text: tokenizer.special_ids[text] for text in special} == special
    assert (tokenizer.text_of(END), tokenizer.text_of(OTHER_STOP)) == ("<|im_end|>", "<|endoftext|>")
