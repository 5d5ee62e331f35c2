"""What the gateway makes of requests and texts, over HTTP: the engine's prompt, and refusals as on the chat route."""

import asyncio
import threading
import time
from typing import Any

import pytest
from support.gateway import HELLO, Served, scripted, serving, settings_for, tiny_model
from support.gguf_writer import gguf
from support.llamacpp import EngineUnderTest, smollm2_file
from support.scripted_engine import ScriptedEngine
from support.vocabulary import small_tokenizer, template_text, tokenizer_fields

from gateway.prompt.tokenizer import Detokenizer, Tokenizer
from gateway.server import debugging
from gateway.wire.jsonio import Decoder

RENDER = "/v1/chat/completions/render"
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
PROMPT = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


async def post(served: Served, path: str, body: Any) -> Any:
    response = await served.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_render_gives_what_the_engine_is_sent() -> None:
    async with scripted() as (engine, served):
        shown = await post(served, RENDER, {**HELLO, "stream": True, "stop": ["x"], "max_tokens": 5, "bogus": 1})
        assert engine.calls == []
        await served.chat(stop=["x"], max_tokens=5)
    assert shown == {
        "text": PROMPT,
        "ids": engine.calls[0].body["prompt"],
        "stop_ids": [0, 2],
        "stop_strings": ["x"],
        "format": "plain",
        "max_tokens": engine.calls[0].body["n_predict"],
        "constraint": None,
        "notes": [],
        "ignored": ["bogus"],
    }
    assert shown["ids"] == list(small_tokenizer().encode(PROMPT))


@pytest.mark.parametrize(
    ("changed", "form", "constraint"),
    [
        ({"tools": [TOOL]}, "hermes", "calls"),
        ({"tools": [TOOL], "tool_choice": "none"}, "plain", None),
        ({"response_format": {"type": "json_object"}}, "plain", "json"),
    ],
)
async def test_render_says_what_the_answer_must_be_and_how_it_is_read(changed: Any, form: str, constraint: str | None) -> None:
    async with scripted(tools="constrained") as (_, served):
        shown = await post(served, RENDER, {**HELLO, **changed})
    assert (shown["format"], shown["constraint"]) == (form, constraint)


async def test_notes_are_shown() -> None:
    async with scripted(source=str(tiny_model("strict"))) as (_, served):
        messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
        shown = await post(served, RENDER, {"model": "m", "messages": messages})
    assert any("developer" in note for note in shown["notes"])


async def test_a_text_and_back() -> None:
    text = "the <|im_start|>user</tool_call> 12 é 🦙\n"
    ids = list(small_tokenizer().encode(text))
    async with scripted() as (_, served):
        told = await post(served, "/tokenize", {"model": "m", "prompt": text})
        assert told == {"count": len(ids), "max_model_len": 8192, "tokens": ids}
        spelled = await post(served, "/tokenize", {"model": "m", "prompt": "12 the", "return_token_strs": True})
        assert spelled["token_strs"] == ["12", "Ġthe"]
        assert await post(served, "/detokenize", {"model": "m", "tokens": ids}) == {"prompt": text}
        assert await post(served, "/detokenize", {"model": "m", "tokens": ids[:-2]}) == {
            "prompt": text[:-2] + "\N{REPLACEMENT CHARACTER}"
        }
        assert await post(served, "/detokenize", {"model": "m", "tokens": []}) == {"prompt": ""}
        assert await post(served, "/tokenize", {"model": "m", "prompt": ""}) == {"count": 0, "max_model_len": 8192, "tokens": []}


async def test_messages_are_the_prompt_of_the_chat_route() -> None:
    async with scripted() as (engine, served):
        told = await post(served, "/tokenize", {**HELLO, "return_token_strs": True})
        open_ended = await post(served, "/tokenize", {**HELLO, "add_generation_prompt": False})
        await served.chat()
    assert told["tokens"] == engine.calls[0].body["prompt"]
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert open_ended["tokens"] == list(small_tokenizer().encode(PROMPT.removesuffix("<|im_start|>assistant\n")))


@pytest.mark.parametrize(
    ("fields", "bos"),
    [
        ({"prompt": "the"}, True),
        ({"prompt": "the", "add_special_tokens": True}, True),
        ({"prompt": "the", "add_special_tokens": False}, False),
        ({"messages": HELLO["messages"]}, False),
        ({"messages": HELLO["messages"], "add_special_tokens": True}, True),
    ],
)
async def test_the_vocabulary_s_own_bos_stands_before_a_text_unless_it_is_not_wanted(
    fields: Any, bos: bool, tmp_path: Any
) -> None:
    file = tmp_path / "bos.gguf"
    about: Any = {"general.architecture": "tiny", "tiny.context_length": 8192}
    file.write_bytes(gguf({**about, **tokenizer_fields(template=template_text("echo"), add_bos_token=True)}))
    async with scripted(source=str(file)) as (_, served):
        told = await post(served, "/tokenize", {"model": "m", **fields})
    text = fields.get("prompt", PROMPT)
    assert told["tokens"] == [*([3] if bos else []), *small_tokenizer().encode(text)]


REFUSED = [
    (RENDER, {**HELLO, "model": "x"}, 404, "model"),
    ("/tokenize", {"model": "x", "prompt": "a"}, 404, "model"),
    ("/detokenize", {"model": "x", "tokens": []}, 404, "model"),
    (RENDER, {"model": "m"}, 400, "messages"),
    (RENDER, {"model": "m", "messages": [{"role": "wizard", "content": "a"}]}, 400, "messages[0].role"),
    (RENDER, {**HELLO, "tools": [TOOL]}, 400, "tools"),
    (RENDER, {"model": "m", "messages": [{"role": "user", "content": "é" * 9000}]}, 400, "messages"),
    (RENDER, {**HELLO, "logit_bias": {"8": 1, "99999": -1}}, 400, "logit_bias.99999"),
    ("/v1/chat/completions", {**HELLO, "logit_bias": {"99999": 1}}, 400, "logit_bias.99999"),
    ("/tokenize", {"prompt": "a"}, 400, "model"),
    ("/tokenize", {"model": "m"}, 400, "prompt"),
    ("/tokenize", {**HELLO, "prompt": "a"}, 400, "prompt"),
    ("/tokenize", {"model": "m", "prompt": 5}, 400, "prompt"),
    ("/tokenize", {"model": "m", "prompt": "a", "tools": [TOOL]}, 400, "tools"),
    ("/tokenize", {"model": "m", "prompt": "a", "add_generation_prompt": True}, 400, "add_generation_prompt"),
    *(
        ("/tokenize", {"model": "m", "prompt": "a", name: value}, 400, name)
        for name, value in (("continue_final_message", True), ("chat_template", "a"), ("chat_template_kwargs", {"a": 1}))
    ),
    ("/tokenize", {"model": "m", "prompt": "a", "add_special_tokens": "yes"}, 400, "add_special_tokens"),
    ("/tokenize", {"model": "m", "prompt": "é" * (8192 * 8 + 1)}, 400, "prompt"),
    ("/detokenize", {"model": "m", "tokens": [1] * 8193}, 400, "tokens"),
    ("/detokenize", {"model": "m", "tokens": [1] * 100_000}, 400, "tokens"),
    ("/tokenize", {"model": "m", "messages": []}, 400, "messages"),
    ("/tokenize", {"model": "m", "messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ("/detokenize", {"model": "m"}, 400, "tokens"),
    ("/detokenize", {"model": "m", "tokens": "a"}, 400, "tokens"),
    ("/detokenize", {"model": "m", "tokens": [1, True]}, 400, "tokens[1]"),
    ("/detokenize", {"model": "m", "tokens": [1, 2.5]}, 400, "tokens[1]"),
    ("/detokenize", {"model": "m", "tokens": [0, -1]}, 400, "tokens[1]"),
    ("/detokenize", {"model": "m", "tokens": [0, 0, small_tokenizer().vocab_size]}, 400, "tokens[2]"),
    ("/detokenize", {"model": "m", "tokens": [10**30]}, 400, "tokens[0]"),
]


async def test_what_cannot_be_is_refused_by_its_field() -> None:
    async with scripted() as (engine, served):
        for path, body, status, param in REFUSED:
            response = await served.client.post(path, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error"), (path, body)
        assert engine.calls == []


@pytest.mark.parametrize("path", [RENDER, "/tokenize", "/detokenize"])
async def test_bodies_and_methods_are_held_to_the_chat_route_s_rules(path: str) -> None:
    async with scripted(server={"max_body_bytes": 1024}) as (_, served):
        client = served.client
        for content in (b"", b"nonsense", b"[]", b'{"model": "\xff"}', b"[" * 900):
            response = await client.post(path, content=content)
            assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
        large = await client.post(path, content=b"x" * 1025)
        unsized = await client.post(path, content=pieces())
        zipped = await client.post(path, content=b"{}", headers={"content-encoding": "gzip"})
        assert [each.status_code for each in (large, unsized, zipped)] == [413, 413, 415]
        assert {each.headers["connection"] for each in (large, unsized, zipped)} == {"close"}
        for method in ("GET", "HEAD", "PUT"):
            refused = await client.request(method, path)
            assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


async def pieces() -> Any:
    for _ in range(11):  # the last one is too much
        yield b" " * 100


@pytest.mark.parametrize(
    ("path", "fields"), [(RENDER, HELLO), ("/tokenize", {"prompt": "a"}), ("/tokenize", HELLO), ("/detokenize", {"tokens": [1]})]
)
async def test_an_engine_that_speaks_for_itself_has_no_vocabulary_here(path: str, fields: Any) -> None:
    async with ScriptedEngine().running() as engine, serving(settings_for(engine.url, kind="openai")) as served:
        response = await served.client.post(path, json={"model": "m", **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "model"
    assert "`format: engine`" in error["message"]


async def test_they_are_in_the_api_s_description_and_not_on_the_admin_port() -> None:
    async with scripted() as (_, served):
        paths = (await served.client.get("/openapi.json")).json()["paths"]
        admin = await served.client.post(f"{served.admin_url}/tokenize", json={"model": "m", "prompt": "a"})
    for path in (RENDER, "/tokenize", "/detokenize"):
        schema = schema_in(paths[path])
        assert "model" in schema["required"]
    chat = schema_in(paths["/v1/chat/completions"])
    assert chat == schema_in(paths[RENDER])
    assert chat["required"] == ["model", "messages"]
    assert chat["properties"]["messages"]["items"]["properties"]["tool_call_id"] == {"type": "string"}
    assert chat["properties"]["stop"] == {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    assert paths["/v1/chat/completions"]["post"]["summary"] == "OpenAI Chat Completions"
    tokenized = schema_in(paths["/tokenize"])["properties"]
    assert {"prompt", "add_special_tokens", "return_token_strs"} < set(tokenized)
    assert tokenized["messages"] == chat["properties"]["messages"]
    assert schema_in(paths["/detokenize"])["properties"]["tokens"] == {"type": "array", "items": {"type": "integer"}}
    assert admin.status_code == 404


def schema_in(path: Any) -> Any:
    return path["post"]["requestBody"]["content"]["application/json"]["schema"]


async def test_fields_that_nothing_reads_are_named() -> None:
    async with scripted() as (_, served):
        text = await post(served, "/tokenize", {"model": "m", "prompt": "the", "zeta": 1, "nothing": None})
        said = await post(served, "/tokenize", {**HELLO, "return_token_strs": True, "zeta": 1})
        back = await post(served, "/detokenize", {"model": "m", "tokens": [1], "zeta": 1})
    assert [each["ignored"] for each in (text, said, back)] == [["zeta"]] * 3


async def test_long_texts_are_worked_on_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    text, threads = "the one and only é 🦙 " * 300, []
    encode, detokenizer = Tokenizer.encode, Tokenizer.detokenizer

    def seen_encode(self: Tokenizer, text: str) -> tuple[int, ...]:
        threads.append(threading.current_thread())
        return encode(self, text)

    def seen_detokenizer(self: Tokenizer) -> Detokenizer:
        threads.append(threading.current_thread())
        return detokenizer(self)

    async with scripted() as (_, served):
        monkeypatch.setattr(Tokenizer, "encode", seen_encode)
        monkeypatch.setattr(Tokenizer, "detokenizer", seen_detokenizer)
        for asked, here in (("the", True), (text, False)):
            told = await post(served, "/tokenize", {"model": "m", "prompt": asked})
            assert await post(served, "/detokenize", {"model": "m", "tokens": told["tokens"]}) == {"prompt": asked}
            assert [thread is threading.main_thread() for thread in threads] == [here, here]
            threads.clear()


async def test_long_texts_are_worked_on_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most, encode = 0, 0, Tokenizer.encode

    def seen(self: Tokenizer, text: str) -> tuple[int, ...]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        time.sleep(0.01)
        now -= 1
        return encode(self, text)

    async with scripted() as (_, served):
        monkeypatch.setattr(Tokenizer, "encode", seen)
        asked = (post(served, "/tokenize", {"model": "m", "prompt": "the one " * 2000}) for _ in range(8))
        assert len({told["count"] for told in await asyncio.gather(*asked)}) == 1
    assert most == 1


async def test_what_is_too_long_is_refused_before_it_costs_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    async with scripted() as (_, served):
        monkeypatch.setattr(Tokenizer, "encode", never)
        monkeypatch.setattr(Tokenizer, "detokenizer", never)
        monkeypatch.setattr(debugging, "_DETOKENIZE", Decoder(int))
        text = await served.client.post("/tokenize", json={"model": "m", "prompt": "a" * 1_000_000})
        ids = await served.client.post("/detokenize", json={"model": "m", "tokens": [1] * 1_000_000})
    assert [each.json()["error"]["param"] for each in (text, ids)] == ["prompt", "tokens"]
    assert "more than the context holds, got 1000000" in text.text
    assert "at most 131088 bytes" in ids.text


async def test_half_a_character_is_read_as_on_the_chat_route() -> None:
    body = b'{"model": "m", "prompt": "a\\ud83e", "\\ud83e": 1, "messages": null}'
    async with scripted() as (_, served):
        response = await served.client.post("/tokenize", content=body)
        odd = await served.client.post("/tokenize", content=b'{"model": "m", "prompt": "a", "\xff": 1}')
    assert response.status_code == 200, response.text
    told = response.json()
    assert told["tokens"] == list(small_tokenizer().encode("a\N{REPLACEMENT CHARACTER}"))
    assert told["ignored"][0] == "lone-surrogates"
    assert odd.status_code == 400


async def test_a_path_with_one_slash_too_many_is_no_path_and_each_answer_has_an_id() -> None:
    async with scripted() as (_, served):
        found = [
            await served.client.post(f"{path}/", json={"model": "m", "prompt": "a"}) for path in ("/tokenize", "/detokenize")
        ]
        assert [(each.status_code, each.json()["error"]["code"]) for each in found] == [(404, "unknown_url")] * 2
        found.append(await served.client.post("/tokenize", json={"model": "m", "prompt": "a"}))
        found.append(await served.client.get(f"{served.admin_url}/health"))
        found.append(await served.chat())
    assert len({each.headers["x-request-id"] for each in found}) == 5


async def test_a_client_that_leaves_in_mid_body_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted() as (_, served):
        _, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        writer.write(b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await served.client.get("/health")).status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


# ---- the real engine ------------------------------------------------------------------------------------------------------

CONVERSATION: Any = [
    {"role": "system", "content": "Sé breve. 你好 🦙 هذا"},
    {"role": "user", "content": "What is 12345 + 67890?\n\n    def f(x):\n\t\treturn x"},
    {"role": "assistant", "content": "80235  "},
    {"role": "user", "content": "e\u0301 नमस्ते — thanks\r\n"},
]


@pytest.mark.engine
async def test_the_real_engine_s_ids_of_the_rendered_text_are_the_rendered_ids(local_engine: EngineUnderTest) -> None:
    async with serving(settings_for(local_engine.url, source=str(smollm2_file()))) as served:
        shown = await post(served, RENDER, {"model": "m", "messages": CONVERSATION})
        asked = {"content": shown["text"], "add_special": False, "parse_special": True}
        engine = (await served.client.post(f"{local_engine.url}/tokenize", json=asked)).json()
        counted = await post(served, "/tokenize", {"model": "m", "messages": CONVERSATION})
        plain = await post(served, "/tokenize", {"model": "m", "prompt": shown["text"]})
        back = await post(served, "/detokenize", {"model": "m", "tokens": shown["ids"]})
        answer = await served.client.post("/v1/chat/completions", json={"model": "m", "messages": CONVERSATION, "max_tokens": 1})
    assert shown["ids"] == engine["tokens"] == counted["tokens"] == plain["tokens"]
    assert back == {"prompt": shown["text"]}
    assert answer.json()["usage"]["prompt_tokens"] == counted["count"]
    assert counted["max_model_len"] == 4096
    assert shown["stop_ids"] == [2]
