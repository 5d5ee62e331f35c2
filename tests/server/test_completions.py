"""The whole way of a request on real sockets, against an engine that does what each test says."""

import asyncio
import json
from typing import Any

import pytest
from support.gateway import HELLO, IN_FLIGHT, PAIR, events_of, outcome, sample, scripted
from support.scripted_engine import (
    CLOSE,
    HANG,
    HEAD,
    RESET,
    Step,
    chat,
    chat_chunk,
    chunked,
    completion,
    event,
    llama_end,
    llama_token,
)


async def test_whole_and_streamed_answers_say_the_same() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion("Good", " day", "!")
        whole = (await served.chat()).json()
        chunks = await served.stream(stream_options={"include_usage": True})
    message = whole["choices"][0]["message"]
    streamed = "".join(choice["delta"].get("content") or "" for chunk in chunks[:-1] for choice in chunk["choices"])
    assert message["content"] == streamed == "Good day!"
    assert whole["usage"] == chunks[-2]["usage"]
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert chunks[-1] == "[DONE]"
    sent = engine.calls[0].body
    assert sent["stream"] is True
    assert all(isinstance(token, int) for token in sent["prompt"])
    assert "stop" not in sent


async def test_every_request_is_one_line_and_one_outcome() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion("a", "b", pause_s=0.02)
        await served.chat()
        await served.stream()
        metrics = await served.metrics()
    assert metrics[outcome("ok")] == 2
    assert metrics[IN_FLIGHT] == 0
    assert metrics[sample("interlock_time_to_first_token_seconds_count", **PAIR)] == 2
    assert metrics[sample("interlock_inter_token_latency_seconds_count", **PAIR)] == 2
    assert 0.02 < metrics[sample("interlock_inter_token_latency_seconds_sum", **PAIR)] < 2
    assert metrics[sample("interlock_completion_tokens_total", **PAIR)] == 4
    assert metrics[sample("interlock_cached_prompt_tokens_total", **PAIR)] == 6


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_frees_the_engine_at_once(stream: bool, begun: bool) -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), HANG] if begun else [HANG]
        request = asyncio.create_task(served.chat(stream=stream))
        while not engine.calls:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        request.cancel()
        async with asyncio.timeout(0.5):
            await engine.calls[0].closed.wait()
        await served.settled(outcome("client_gone"), 1)
        await served.settled(IN_FLIGHT, 0)


SHORT: dict[str, Any] = {
    "timeouts": {"connect_s": 0.3, "headers_s": 0.3, "first_token_s": 0.3, "between_tokens_s": 0.3, "total_s": 5}
}
COMMENT = b"9\r\n: alive\n\n\r\n"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([HANG], "headers"),
        ([HEAD, HANG], "first_token"),
        ([HEAD, event(llama_token("a", 1)), HANG], "between_tokens"),
        ([HEAD, event(llama_token("a", 1)), *[0.1, COMMENT] * 20, HANG], "between_tokens"),
    ],
)
async def test_a_silent_engine_is_a_timeout_of_its_stage(steps: list[Step], reason: str) -> None:
    async with scripted(**SHORT) as (engine, served):
        engine.script = lambda seen: steps
        response = await served.chat()
        failures = await served.metrics()
        async with asyncio.timeout(1):
            await engine.calls[0].closed.wait()
    assert response.status_code == 504
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("engine_timeout", "upstream_error")
    assert failures[sample("interlock_request_failures_total", model="m", outcome="timeout", reason=reason)] == 1
    assert failures[outcome("timeout")] == 1


@pytest.mark.parametrize(
    "steps",
    [
        [RESET],
        [HEAD, RESET],
        [HEAD, event(llama_token("a", 1)), RESET],
        [HEAD, event(llama_token("a", 1)), CLOSE],
        [HEAD, event(llama_token("a", 1)), b"0\r\n\r\n", CLOSE],
        [HEAD, event({"error": {"message": "slot failed", "code": 500}}), CLOSE],
        [HEAD, b"5\r\nhello\r\n0\r\n\r\n", CLOSE],
        [HEAD, event("not an object"), CLOSE],
        [HEAD, b"zzz\r\n", CLOSE],
        [b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\nhello", CLOSE],
        [b"HTTP/1.1 500 Oops\r\ncontent-length: 5\r\n\r\nhello", CLOSE],
        [b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n", CLOSE],
        [b"garbage\r\n\r\n", CLOSE],
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_broken_engine_is_an_error_that_cannot_be_mistaken(steps: list[Step], stream: bool) -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: steps
        response = await served.chat(stream=stream)
        metrics = await served.metrics()
    if response.status_code == 200:
        last = events_of(response.content)[-1]
        assert last["error"]["type"] == "upstream_error"
        assert b"[DONE]" not in response.content
    else:
        assert response.status_code in (500, 502)
        assert response.json()["error"]["type"] == "upstream_error"
    assert metrics[outcome("upstream_error")] == 1
    assert metrics[IN_FLIGHT] == 0


async def test_an_answer_without_end_is_bounded() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [HEAD, *[b"100000\r\n" + b"x" * 0x100000 + b"\r\n"] * 8, HANG]
        response = await served.chat()
    assert response.status_code == 502
    assert "event" in response.json()["error"]["message"]


async def test_no_connection_is_told_and_takes_the_engine_out() -> None:
    async with scripted() as (engine, served):
        served.gateway.registry.set_ready("e", True)
        engine.up = False
        await asyncio.sleep(0)
        await served.settled(IN_FLIGHT, 0)
        async with asyncio.timeout(5):
            while served.gateway.registry.view("m").ready:
                await served.gateway.registry.changed()
        response = await served.chat()
        ready = await served.client.get("/ready")
        metrics = await served.metrics()
    assert response.status_code == 503
    assert (
        metrics[sample("interlock_queue_wait_seconds_sum", model="m", engine="none")] == 0
    )  # known to be down: it is told at once
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "no_engine"
    assert ready.status_code == 503
    assert ready.json()["models"] == {"m": False}


async def test_a_stop_string_over_chunks_closes_the_engines_answer() -> None:
    async with scripted() as (engine, served):
        tokens = [event(llama_token(text, at)) for at, text in enumerate(["one", " ST", "OP", " two"], 1)]
        engine.script = lambda seen: [HEAD, *tokens[:3], HANG]
        body = (await served.chat(stop=["STOP"])).json()
        async with asyncio.timeout(1):
            await engine.calls[0].closed.wait()
    assert body["choices"][0]["message"]["content"] == "one "
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_n_answers_come_interleaved_and_are_counted_together() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion("a", "b")
        whole = (await served.chat(n=3, seed=5)).json()
        chunks = await served.stream(n=2)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in whole["choices"]} == {"ab"}
    assert whole["usage"]["completion_tokens"] == 6
    assert sorted(call.body["seed"] for call in engine.calls[:3]) == [5, 6, 7]
    roles = [choice["index"] for chunk in chunks[:-1] for choice in chunk["choices"] if choice["delta"].get("role")]
    assert sorted(roles) == [0, 1]


async def test_one_failing_answer_of_n_fails_the_request_and_frees_the_others() -> None:
    async with scripted() as (engine, served):
        scripts: list[list[Step]] = [[HEAD, event(llama_token("a", 1)), HANG], [RESET]]
        engine.script = lambda seen: scripts.pop(0)
        response = await served.chat(n=2)
        async with asyncio.timeout(1):
            await engine.calls[0].closed.wait()
        await served.settled(IN_FLIGHT, 0)
    assert response.status_code == 502


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (b"{", 400, None, None),
        (b'{"model":"m","messages":[]}', 400, "messages", None),
        (b'{"model":"other","messages":[{"role":"user","content":"x"}]}', 404, "model", "model_not_found"),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}],"n":99}', 400, "n", None),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template":"{{1}}"}', 400, "chat_template", None),
    ],
)
async def test_bad_requests_name_the_field_and_reach_no_engine(
    body: bytes, status: int, param: str | None, code: str | None
) -> None:
    async with scripted() as (engine, served):
        response = await served.client.post("/v1/chat/completions", content=body)
        metrics = await served.metrics()
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error")
    if code is not None:
        assert error["code"] == code
    assert engine.calls == []
    model = "m" if b'"model":"m"' in body else "unknown"
    assert metrics[outcome("client_error", engine="none", model=model)] == 1


async def test_a_prompt_over_the_context_never_reaches_the_engine() -> None:
    async with scripted() as (engine, served):
        response = await served.chat(messages=[{"role": "user", "content": "word " * 9000}])
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "maximum context length is 8192 tokens" in error["message"]
    assert engine.calls == []


async def test_bodies_are_bounded_and_uncompressed() -> None:
    async with scripted(server={"max_body_bytes": 1000}) as (_engine, served):
        declared = await served.client.post("/v1/chat/completions", content=b"x" * 1001)

        async def pieces() -> Any:
            for _ in range(11):
                yield b"x" * 100

        streamed = await served.client.post("/v1/chat/completions", content=pieces())
        packed = await served.client.post("/v1/chat/completions", content=b"{}", headers={"content-encoding": "gzip"})
        method = await served.client.get("/v1/chat/completions")
        nowhere = await served.client.post("/v1/nowhere", content=b"{}")
    assert [each.status_code for each in (declared, streamed, packed, method, nowhere)] == [413, 413, 415, 405, 404]
    assert all(each.json()["error"]["message"] for each in (declared, streamed, packed, method, nowhere))
    assert declared.headers["connection"] == "close"


async def test_unknown_fields_are_ignored_by_name() -> None:
    async with scripted() as (_engine, served):
        response = await served.chat(frobnicate=1, user="someone")
    assert response.status_code == 200
    assert "frobnicate" in response.headers["x-interlock-ignored"]


async def test_a_slow_first_token_gets_headers_and_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.stream.PING_S", 0.05)
    async with scripted(server={"headers_grace_s": 0.05}) as (engine, served):
        engine.script = lambda seen: [HEAD, 0.4, event(llama_token("a", 1)), event(llama_end(1)), b"0\r\n\r\n", CLOSE]
        body = (await served.chat(stream=True)).content
        engine.script = lambda seen: [0.3, RESET]
        broken = await served.chat(stream=True)
    assert body.startswith(b": ping\n\n")
    assert body.endswith(b"data: [DONE]\n\n")
    assert broken.status_code == 200
    assert events_of(broken.content)[-1]["error"]["type"] == "upstream_error"
    assert b"[DONE]" not in broken.content


async def test_a_client_that_stalls_is_not_the_engines_silence() -> None:
    big = "x" * 200_000
    async with scripted(timeouts={"between_tokens_s": 0.5}) as (engine, served):
        tokens = [event(llama_token(big, at)) for at in range(1, 60)]
        engine.script = lambda seen: [HEAD, *tokens, event(llama_end(59)), b"0\r\n\r\n", CLOSE]
        async with served.client.stream("POST", "/v1/chat/completions", json={**HELLO, "stream": True}) as response:
            got = 0
            async for piece in response.aiter_raw():
                if got == 0:
                    await asyncio.sleep(1.2)
                got += len(piece)
        metrics = await served.metrics()
    assert got > 59 * 200_000
    assert metrics[outcome("ok")] == 1
    assert metrics[sample("interlock_client_stall_seconds_sum", **PAIR)] > 0.3


async def test_the_engines_key_is_sent_to_it_and_the_clients_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-canary-engine")
    async with scripted(engine={"api_key_env": "ENGINE_KEY"}) as (engine, served):
        await served.client.post("/v1/chat/completions", json=HELLO, headers={"authorization": "Bearer sk-canary-client"})
    assert engine.calls[0].headers["authorization"] == "Bearer sk-canary-engine"
    assert "sk-canary-client" not in json.dumps(engine.calls[0].headers)


async def test_an_engine_that_templates_itself_is_passed_on_under_the_clients_name() -> None:
    async with scripted(kind="openai", engine={"model": "engine-name"}) as (engine, served):
        engine.script = lambda seen: chat("Good", " day")
        whole = (await served.chat(seed=1)).json()
        chunks = await served.stream()
        counted = await served.stream(stream_options={"include_usage": True})
        metrics = await served.metrics()
    sent = engine.calls[0].body
    assert (sent["model"], sent["stream"], sent["seed"], sent["messages"]) == ("engine-name", True, 1, HELLO["messages"])
    assert sent["stream_options"]["include_usage"] is True
    assert whole["model"] == "m"
    assert whole["choices"][0]["message"]["content"] == "Good day"
    assert whole["usage"]["prompt_tokens"] == 7
    assert {chunk["model"] for chunk in chunks[:-1]} == {"m"}
    assert not any(chunk.get("usage") for chunk in chunks[:-1])
    assert counted[-2]["usage"]["completion_tokens"] == 2
    assert metrics[outcome("ok")] == 3


async def test_a_passed_engines_calls_are_checked() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}}
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        }
    ]
    async with scripted(kind="openai") as (engine, served):
        chunks = [chat_chunk({"role": "assistant", "tool_calls": [call]}), chat_chunk({}, "tool_calls")]
        engine.script = lambda seen: [HEAD, *map(event, chunks), b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", CLOSE]
        whole = (await served.chat(tools=tools)).json()
        metrics = await served.metrics()
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "x"}'}
    labels = {**PAIR, "format": "engine"}
    assert metrics[sample("interlock_parse_failures_total", kind="schema_mismatch", **labels)] == 1
    assert metrics[sample("interlock_tool_calls_total", **labels)] == 1
    assert metrics[sample("interlock_requests_with_tools_total", **labels)] == 1


async def test_models_and_errors_of_the_cold_routes() -> None:
    async with scripted(aliases=["alias"]) as (_engine, served):
        listed = (await served.client.get("/v1/models")).json()
        one = (await served.client.get("/v1/models/alias")).json()
        missing = await served.client.get("/v1/models/nope")
        health = (await served.client.get("/health")).json()
        document = (await served.client.get("/openapi.json")).json()
    assert [model["id"] for model in listed["data"]] == ["m"]
    assert one["id"] == "m"
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert health == {"status": "ok"}
    assert "/v1/chat/completions" in document["paths"]


async def test_an_answer_that_misses_its_schema_is_asked_again_before_the_first_byte() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}]
    bad, good = (
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    )
    async with scripted(tools="constrained", on_schema_miss="retry") as (engine, served):
        answers = [bad, good]
        engine.script = lambda seen: completion(answers[len(engine.calls) - 1])
        whole = (await served.chat(tools=tools)).json()
        assert len(engine.calls) == 2
        answers += [bad, bad, bad]
        kept = (await served.chat(tools=tools)).json()
        metrics = await served.metrics()
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert kept["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert len(engine.calls) == 5
    assert metrics[outcome("ok")] == 2
    assert metrics[IN_FLIGHT] == 0


async def test_tools_that_the_template_would_drop_are_refused() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with scripted() as (engine, served):
        response = await served.chat(tools=tools)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "tools")
    assert "tools: constrained" in error["message"]
    assert engine.calls == []


async def test_going_down_cuts_the_rest_with_an_error() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [HEAD, event(llama_token("a", 1)), HANG]
        request = asyncio.create_task(served.chat(stream=True))
        while not engine.calls:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        served.stop.set()
        response = await request
    assert events_of(response.content)[-1]["error"]["code"] == "draining"
    assert b"[DONE]" not in response.content


async def test_tool_choice_none_offers_no_tools_and_reads_no_calls() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    async with scripted(tools="constrained") as (engine, served):
        engine.script = lambda seen: completion(call)
        whole = (await served.chat(tools=tools, tool_choice="none")).json()
        metrics = await served.metrics()
    assert whole["choices"][0]["message"]["content"] == call
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert "grammar" not in engine.calls[0].body
    counted = [value for name, value in metrics.items() if name.startswith("interlock_requests_with_tools_total")]
    assert sum(counted) == 0


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}}}
MISS = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
FIT = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


async def test_a_streamed_answer_that_is_asked_again_is_whole_from_its_role_on() -> None:
    async with scripted(tools="constrained", on_schema_miss="retry", hold_arguments=True) as (engine, served):
        engine.script = lambda seen: completion(MISS if len(engine.calls) == 1 else FIT)
        chunks = await served.stream(tools=[TOOL])
    deltas = [choice["delta"] for chunk in chunks[:-1] for choice in chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta for delta in deltas if "role" in delta] == deltas[:1]
    assert deltas[1]["tool_calls"][0]["function"]["name"] == "f"
    assert len(engine.calls) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_where_parallel_calls_are_forbidden_the_answer_ends_before_the_second(stream: bool) -> None:
    async with scripted(format="hermes", tools="constrained") as (engine, served):
        engine.script = lambda seen: [*completion(FIT, "\n", FIT)[:-3], HANG]
        response = await served.chat(tools=[TOOL], parallel_tool_calls=False, stream=stream)
        async with asyncio.timeout(1):
            await engine.calls[0].closed.wait()
        metrics = await served.metrics()
    assert response.status_code == 200
    assert response.text.count('"name":"f"') == 1
    assert '"finish_reason":"tool_calls"' in response.text
    assert metrics[sample("interlock_tool_calls_total", format="hermes", **PAIR)] == 1


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 5}}, "required": ["a"]}
WANTED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.mark.parametrize(("answer", "kind"), [('{"a": 5}', None), ('{"a": 1}', "schema_mismatch"), ('{"a": ', "invalid_json")])
async def test_an_answer_in_json_is_checked_against_its_schema(answer: str, kind: str | None) -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion(answer)
        whole = await served.chat(response_format=WANTED)
        await served.stream(response_format=WANTED)
        metrics = await served.metrics()
    assert whole.json()["choices"][0]["message"]["content"] == answer
    failures = {name: value for name, value in metrics.items() if name.startswith("interlock_parse_failures") and value}
    counted = {sample("interlock_parse_failures_total", format="plain", kind=kind, **PAIR): 2.0} if kind else {}
    assert failures == counted


async def test_an_answer_in_json_that_misses_its_schema_is_asked_again_or_refused() -> None:
    async with scripted(on_schema_miss="retry") as (engine, served):
        engine.script = lambda seen: completion('{"a": 1}' if len(engine.calls) == 1 else '{"a": 7}')
        whole = (await served.chat(response_format=WANTED)).json()
    assert whole["choices"][0]["message"]["content"] == '{"a": 7}'
    async with scripted(kind="openai", on_schema_miss="refuse") as (engine, served):
        engine.script = lambda seen: chat('{"a": ', "1}")
        refused = await served.chat(response_format=WANTED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "schema_mismatch")


async def test_broken_calls_of_an_engine_that_parses_itself_can_be_refused() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    async with scripted(kind="openai", on_parse_failure="error") as (engine, served):
        chunks = [chat_chunk({"role": "assistant", "tool_calls": [call]}), chat_chunk({}, "tool_calls")]
        engine.script = lambda seen: [HEAD, *map(event, chunks), b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", CLOSE]
        response = await served.chat(tools=[TOOL])
    assert (response.status_code, response.json()["error"]["code"]) == (502, "invalid_json")


async def test_an_engine_that_repeats_its_key_does_not_tell_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-canary-engine")
    refusal = json.dumps({"error": {"message": "key sk-canary-engine may not do this", "code": 400}}).encode()
    async with scripted(engine={"api_key_env": "ENGINE_KEY"}) as (engine, served):
        engine.script = lambda seen: [b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\n\r\n%s" % (len(refusal), refusal), CLOSE]
        response = await served.chat()
    assert response.status_code == 400
    assert "may not do this" in response.text
    assert "canary" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_in_a_call_that_the_limit_cut_is_data(stream: bool) -> None:
    texts = ["<tool_call>", '{"name": "f", ', '"arguments": {"city": "', "Paris", " and more"]
    async with scripted(format="hermes", tools="constrained", hold_arguments=True) as (engine, served):
        engine.script = lambda seen: completion(*texts, stop_type="limit")
        response = await served.chat(tools=[TOOL], stop=["Paris"], stream=stream)
    assert '"finish_reason":"length"' in response.text
    assert "and more" in response.text


async def test_an_answer_that_the_clients_stop_string_cut_is_not_blamed_on_the_model() -> None:
    async with scripted(on_parse_failure="error") as (engine, served):
        engine.script = lambda seen: completion('{"a": 1, ', '"b"', ": 2}")
        whole = await served.chat(response_format={"type": "json_object"}, stop=['"b"'])
    assert whole.status_code == 200
    assert whole.json()["choices"][0]["message"]["content"] == '{"a": 1, '


async def test_another_try_has_another_seed_and_greedy_answers_are_not_asked_again() -> None:
    async with scripted(on_schema_miss="retry") as (engine, served):
        engine.script = lambda seen: completion('{"a": 1}')
        await served.chat(response_format=WANTED, seed=5, n=2)
        seeds = sorted(call.body["seed"] for call in engine.calls)
        engine.seen.clear()
        await served.chat(response_format=WANTED, seed=5, temperature=0)
        greedy = len(engine.calls)
    assert seeds == [5, 6, 7, 8, 9, 10]
    assert greedy == 1


async def test_a_passed_answer_begins_with_more_than_a_role() -> None:
    role = event(chat_chunk({"role": "assistant", "content": ""}))
    failure = event({"error": {"message": "out of memory", "code": 500}})
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: [HEAD, role, 0.1, failure, CLOSE]
        response = await served.chat(stream=True)
    assert response.status_code == 502
    assert response.json()["error"]["type"] == "upstream_error"


async def test_a_passed_answer_has_one_end_a_choice() -> None:
    late = [event(chat_chunk({"content": "late"})), event(chat_chunk({}, "stop"))]
    usage = {**chat_chunk({}), "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}}
    spaced = chunked(b"data: " + json.dumps(usage).replace("[]", "[ ]").encode() + b"\n\n")
    first = [event(chat_chunk({"content": "a"}, "")), event(chat_chunk({}, "stop"))]
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: [HEAD, *first, *late, spaced, chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE]
        whole = (await served.chat()).json()
        chunks = await served.stream()
        counted = await served.stream(stream_options={"include_usage": True})
    assert whole["choices"][0]["message"]["content"] == "a"
    finishes = [choice["finish_reason"] for chunk in chunks[:-1] for choice in chunk["choices"] if choice["finish_reason"]]
    assert finishes == ["stop"]
    assert all(chunk["choices"] for chunk in chunks[:-1])
    assert sum(chunk["usage"] is not None for chunk in counted[:-1] if "usage" in chunk) == 1


async def test_half_a_character_from_an_engine_is_mended() -> None:
    half = chunked(
        b'data: {"index":0,"content":"a\\ud83d","tokens":[5],"stop":false,"tokens_predicted":1,"tokens_evaluated":9}\n\n'
    )
    async with scripted() as (engine, served):
        engine.script = lambda seen: [HEAD, half, event(llama_end(1)), b"0\r\n\r\n", CLOSE]
        whole = (await served.chat()).json()
    assert whole["choices"][0]["message"]["content"] == "a\ufffd"


async def test_an_engines_wait_reaches_the_client() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: 2\r\n\r\n{}", CLOSE]
        response = await served.chat()
    assert (response.status_code, response.headers["retry-after"]) == (503, "7")


async def test_the_time_to_come_back_is_rounded_up_so_that_nobody_comes_too_early() -> None:
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: [b"HTTP/1.1 503 Busy\r\nretry-after: 2\r\ncontent-length: 2\r\n\r\n{}", CLOSE]
        await served.chat()
        await asyncio.sleep(0.6)
        response = await served.chat()
    assert (response.json()["error"]["code"], response.headers["retry-after"]) == ("engines_busy", "2")


async def test_an_engines_key_is_not_passed_on_from_an_error_within_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    error = {"error": {"message": "the key sk-secret is not known", "code": 404}}
    async with scripted(engine={"api_key_env": "ENGINE_KEY"}) as (engine, served):
        engine.script = lambda seen: [HEAD, event(error), CLOSE]
        said = (await served.chat()).json()["error"]["message"]
    assert "[redacted] is not known" in said
    assert "sk-secret" not in said
