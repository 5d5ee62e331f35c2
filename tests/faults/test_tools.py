"""The tools that tests of faults are made with: each fault is what it says, and `no_leaks` fails where something leaks."""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from faults.chaos import ENDINGS, FAULTS, STATUS, STYLES, marked
from faults.client import MANNERS, Answer, ask, chat, connected, misbehave
from faults.engine import FaultEngine, process
from faults.leaks import CANARIES, HEADERS, NoLeaks, watching
from faults.proxy import FaultProxy, Line
from faults.saying import ENDS, OPENS, text_of, unbroken
from faults.speech import DONE, Kind
from support.vocabulary import small_tokenizer

from gateway.events import AttemptStarted
from gateway.wire.sse import SseReader

pytestmark = pytest.mark.faults

KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")
PATHS: Mapping[Kind, str] = {"llamacpp": "/completion", "vllm": "/v1/completions"}
QUIET_S = 0.4


@dataclass
class Told:
    """What an engine sent, and how it ended: `fin`, `rst`, or `open` where nothing came for a while."""

    answer: Answer
    ended: str
    engine: FaultEngine
    first_s: float
    took_s: float

    @property
    def raw(self) -> bytes:
        return bytes(self.answer.raw)

    @property
    def data(self) -> list[bytes]:
        """The data of its events, however they are written."""
        return [event.data for event in SseReader(1 << 30).feed(self.answer.body)]

    @property
    def ids(self) -> list[int]:
        """What it sent, by its own record."""
        return self.engine.seen[-1].sent


def prompt_of(text: str) -> list[int]:
    return list(small_tokenizer().encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"))


def body_of(kind: Kind, prompt: list[int], limit: int = 400) -> dict[str, Any]:
    if kind == "llamacpp":
        return {"prompt": prompt, "n_predict": limit, "stream": True, "return_progress": True}
    return {"prompt": prompt, "max_tokens": limit, "stream": True, "return_token_ids": True}


def post(kind: Kind, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (PATHS[kind].encode(), len(data), data)


async def told(
    engine: FaultEngine, kind: Kind, text: str, url: str | None = None, *, times: int = 1, quiet_s: float = QUIET_S
) -> Told:
    """What the engine says to a prompt, byte by byte; `times` requests one after the other on a connection."""
    beyond = "content_length_short" in text
    loop = asyncio.get_running_loop()
    answer, ended, began_s, first_s = Answer(), "open", loop.time(), 0.0
    async with connected(url or engine.url) as client:
        for _ in range(times):
            answer = Answer()
            try:
                await client.send(post(kind, body_of(kind, prompt_of(text))))
                async with asyncio.timeout(quiet_s) as quiet:
                    while data := await client.reader.read(1 << 20):
                        first_s = first_s or loop.time() - began_s
                        answer.raw += data
                        quiet.reschedule(loop.time() + quiet_s)
                        if answer.complete and not beyond:
                            break
                    else:
                        ended = "fin"
            except TimeoutError:
                pass
            except ConnectionError:
                ended = "rst"
        return Told(answer, ended, engine, first_s, loop.time() - began_s)


@pytest.fixture
async def engine() -> AsyncIterator[FaultEngine]:
    async with FaultEngine().working() as working:
        yield working


def whole(it: Told) -> bool:
    """The answer of an engine without faults, to its end."""
    told = [json.loads(data) for data in it.data if data != DONE]
    if it.engine.seen[-1].kind == "vllm":
        return it.answer.complete and [i for e in told for c in e["choices"] for i in c.get("token_ids", ())] == it.ids
    return it.answer.complete and "".join(event["content"] for event in told) == text_of(it.ids[:-1])


def stump(it: Told) -> bool:
    return it.answer.status == 200 and not it.answer.complete and len(it.ids) == 3


def odd(count: int = 1) -> Callable[[Told], bool]:
    """So many events that no parser takes as they are, and the rest comes."""

    def fits(it: Told) -> bool:
        return it.answer.complete and sum(not _plain(data) for data in it.data) == count and it.ids[-1] == ENDS

    return fits


def _plain(data: bytes) -> bool:
    try:
        value = json.loads(data, parse_constant=_constant)
    except (ValueError, RecursionError):
        return data == DONE
    if not isinstance(value, dict) or (value.get("choices") == [] and "usage" not in value):
        return False
    if value.get("content") == "" and not (value["tokens"] or value["stop"] or "prompt_progress" in value):
        return False
    texts = [value.get("content", ""), *(choice["text"] for choice in value.get("choices", ()))]
    return all(text is not None and text.isprintable() for text in texts)


def _constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def status(code: int) -> Callable[[Told], bool]:
    return lambda it: it.answer.status == code and it.answer.complete and not it.ids


def error(it: Told) -> bool:
    return any(b'"error"' in data for data in it.data)


EXPECTED: Mapping[str, Callable[[Told], bool]] = {
    "none": whole,
    "hang_before_headers": lambda it: it.ended == "open" and not it.raw,
    "slow_headers": lambda it: whole(it) and it.first_s > 0.09,
    "close_before_headers": lambda it: it.ended == "fin" and not it.raw,
    "rst_before_headers": lambda it: it.ended == "rst" and not it.raw,
    "crash": lambda it: it.ended == "rst" and not it.raw and it.engine._server is None,
    "close_idle": whole,
    "rst_idle": whole,
    **{mode: status(int(mode)) for mode in STATUS if mode.isdigit()},
    "context_length": lambda it: status(400)(it) and b"context" in it.raw,
    "oom_500": status(500),
    "redirect": lambda it: status(307)(it) and b"location: /canary" in it.raw,
    "wrong_content_type": lambda it: whole(it) and b"content-type: text/plain" in it.raw,
    "no_content_type": lambda it: whole(it) and b"content-type" not in it.raw,
    "html_200": lambda it: it.answer.status == 200 and it.answer.complete and b"<form" in it.raw,
    "json_not_stream": lambda it: it.answer.status == 200 and b"application/json" in it.raw and it.answer.complete,
    "http_garbage": lambda it: it.ended == "fin" and it.answer.status is None and len(it.raw) > 10,
    "bad_chunk_size": lambda it: it.raw.endswith(b"zz\r\n") and len(it.ids) == 3,
    "content_length_short": lambda it: len(it.answer.body) > int(it.answer.head.partition("content-length: ")[2].split()[0]),
    "header_bomb": lambda it: len(it.answer.head) > 1 << 20 and whole(it),
    "informational": lambda it: it.raw.startswith(b"HTTP/1.1 100 ") and b"HTTP/1.1 103" in it.raw and b"HTTP/1.1 200" in it.raw,
    "hang_before_first": lambda it: it.ended == "open" and it.answer.status == 200 and not it.ids,
    "slow_first": lambda it: whole(it) and it.took_s > 0.09,
    "error_before_first": lambda it: error(it) and not it.ids,
    "hang_mid_stream": lambda it: stump(it) and it.ended == "open",
    "pause_mid_stream": lambda it: whole(it) and it.took_s > 0.09,
    "reset_mid_stream": lambda it: stump(it) and it.ended == "rst",
    "close_mid_stream": lambda it: stump(it) and it.ended == "fin",
    "end_mid_stream": lambda it: it.answer.complete and len(it.ids) == 3 and DONE not in it.data,
    "half_event": lambda it: stump(it) and it.ended == "fin" and not it.raw.endswith(b"\n\n\r\n"),
    "error_mid_stream": lambda it: error(it) and len(it.ids) == 3,
    "bad_json": odd(),
    "not_object": odd(),
    "nan": odd(),
    "nul": odd(),
    "surrogates": odd(),
    "dup_keys": lambda it: whole(it) and any(data.count(b'"index":') + data.count(b'"index": ') >= 2 for data in it.data),
    "empty_choices": odd(),
    "null_content": odd(),
    "bad_utf8": odd(),
    "giant_chunk": lambda it: len(it.raw) > 2 << 20 and it.answer.complete,
    "endless_line": lambda it: stump(it) and len(it.raw) > 2 << 20 and b"\n\n" not in it.raw[-(1 << 20) :],
    "comment_flood": lambda it: stump(it) and len(it.raw) > 2 << 20,
    "deep_json": odd(),
    "die": lambda it: stump(it) and it.ended == "rst" and it.engine._server is None,
    "no_done": lambda it: it.answer.complete and DONE not in it.data and it.ids[-1] == ENDS,
    "close_after_done": lambda it: not it.answer.complete and it.ended == "fin" and it.ids[-1] == ENDS,
    "no_finish": lambda it: it.answer.complete and b'"stop"' not in b"".join(d for d in it.data if b'"choices"' in d),
    "half_done": lambda it: not it.answer.complete and it.ended == "fin" and it.ids[-1] == ENDS and DONE not in it.data,
    "done_no_close": lambda it: not it.answer.complete and it.ended == "open" and it.ids[-1] == ENDS,
    "data_after_done": lambda it: it.answer.complete and b'"odd"' in it.data[-1],
    "duplicate_done": lambda it: it.answer.complete and it.data[-1] == it.data[-2],
    "split_utf8": whole,
    "trickle": lambda it: whole(it) and it.raw.count(b"\r\n1\r\n") > 500,
    "crlf": lambda it: whole(it) and it.answer.body.count(b"}\r\n\r\n") > 20,
    "cr": lambda it: whole(it) and it.answer.body.count(b"}\r\r") > 20,
    "bom": lambda it: whole(it) and it.answer.body.count(b"\xef\xbb\xbf") == 1,
    "keepalive": lambda it: whole(it) and it.answer.body.count(b": keep-alive\n\n") > 20,
    "no_space": lambda it: whole(it) and b"data: " not in it.answer.body,
    "multi_data": lambda it: whole(it) and it.answer.body.count(b"data: {\ndata: ") > 20,
    "event_fields": lambda it: whole(it) and it.answer.body.count(b"\nretry: 100\n") > 20,
    "unknown_field": lambda it: whole(it) and it.answer.body.count(b"colour: blue\n") > 20,
    "coalesce": whole,
    "split_lines": lambda it: whole(it) and it.raw.count(b"\r\n3\r\ndat\r\n") > 20,
    "slow": lambda it: whole(it) and it.took_s > 0.15,
    "fat": lambda it: it.answer.complete and len(it.answer.body) > 20 * 4096,
}
GIVEN = {"giant_chunk": "mb=3", "endless_line": "mb=3", "comment_flood": "mb=3", "slow": "s=0.01"}
TIMED = ("slow_headers", "slow_first", "pause_mid_stream")


def test_every_fault_is_tried() -> None:
    assert set(EXPECTED) == set(FAULTS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", FAULTS)
async def test_a_fault_is_what_it_says(engine: FaultEngine, mode: str, kind: Kind) -> None:
    given = GIVEN.get(mode, "s=0.1" if mode in TIMED else "")
    quiet_s = QUIET_S if "hang" in mode or mode in ("done_no_close", "content_length_short", "informational") else 5.0
    marker = f"[[chaos:{mode} {given}]]" if given else f"[[chaos:{mode}]]"
    it = await told(engine, kind, f"[[ascii]]{marker}", quiet_s=quiet_s)
    if mode == "no_done" and kind == "llamacpp":
        assert whole(it)
        return
    if mode in ENDINGS and kind == "llamacpp" and mode == "no_finish":
        assert not any(json.loads(data)["stop"] for data in it.data)
    assert EXPECTED[mode](it), (it.ended, it.took_s, it.ids, it.raw[:300], it.raw[-300:])
    assert engine.seen[0].fault == mode


@pytest.mark.parametrize("mode", [mode for mode in STYLES if mode != "coalesce"])
async def test_a_style_changes_no_event(engine: FaultEngine, mode: str) -> None:
    """Of an answer in which nearly every character takes several tokens."""
    it = await told(engine, "vllm", f"[[chaos:{mode}]]")
    assert whole(it)
    assert not text_of(it.ids).isascii()
    if mode == "split_utf8":
        assert all(not any(byte & 0xC0 == 0x80 for byte in piece[1:]) for piece in _http_chunks(it.raw))


def _http_chunks(raw: bytes) -> list[bytes]:
    pieces, rest = [], raw.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        pieces.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return pieces


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fault_comes_after_as_many_tokens_as_it_says(engine: FaultEngine, kind: Kind) -> None:
    length = len(unbroken(prompt_of("[[ascii]][[tokens=9]]")))
    assert length == 9
    for after in range(12):
        it = await told(engine, kind, f"[[ascii]][[tokens=9]][[chaos:close_mid_stream after={after} settle=0]]")
        assert len(it.ids) == min(after, length + 1)  # the end of turn is a token, and what is after it is the end


async def test_a_marker_may_name_an_engine_a_number_and_a_share(engine: FaultEngine) -> None:
    async def modes(text: str) -> list[str]:
        for _ in range(4):
            await told(engine, "llamacpp", text)
        return [seen.fault for seen in engine.seen[-4:]]

    assert await modes("[[chaos:500 only=b]]") == ["none"] * 4
    assert await modes("[[chaos:500 only=a times=2]]") == ["500", "500", "none", "none"]
    assert await modes("[[chaos:503 every=2]]") == ["503", "none", "503", "none"]
    assert await modes("[[chaos:500 only=b]][[chaos:404]]") == ["404"] * 4


def test_a_fault_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such fault: rest_mid_stream"):
        list(marked("[[chaos:rest_mid_stream]]"))


@pytest.mark.parametrize("kind", KINDS)
async def test_what_goes_on_from_ids_is_the_unbroken_answer(engine: FaultEngine, kind: Kind) -> None:
    chance = random.Random(6)
    equal, tokenised = 0, 0
    for number in range(80):
        prompt = prompt_of(f"question {number} [[tokens={chance.randrange(5, 60)}]]")
        answer = unbroken(prompt)
        cut = chance.randrange(len(answer))
        await _post(engine, kind, [*prompt, *answer[:cut]])
        equal += answer[:cut] + engine.seen[-1].sent == [*answer, ENDS]
        tokenised += list(small_tokenizer().encode(text_of(answer))) == answer
        text_of(answer).encode()
        assert "�" not in text_of(answer)
        assert OPENS not in answer
    assert equal == 80
    assert tokenised < 40, "generated tokens are not what their text is tokenised to"


async def _post(engine: FaultEngine, kind: Kind, prompt: list[int], limit: int = 400) -> str:
    answer = Answer()
    async with connected(engine.url) as client:
        await client.send(post(kind, body_of(kind, prompt, limit)))
        await client.read(answer)
    return answer.body.decode()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_limit_cuts_the_answer(engine: FaultEngine, kind: Kind) -> None:
    text = await _post(engine, kind, prompt_of("hello"), limit=5)
    assert engine.seen[-1].sent == unbroken(prompt_of("hello"))[: len(engine.seen[-1].sent)]
    assert '"limit"' in text if kind == "llamacpp" else '"length"' in text


@pytest.mark.parametrize("way", ["close_idle", "rst_idle"])
async def test_an_idle_connection_ends_with_the_next_request(engine: FaultEngine, way: str) -> None:
    it = await told(engine, "llamacpp", f"[[chaos:{way}]]", times=2)
    assert it.ended == ("fin" if way == "close_idle" else "rst")
    assert not it.raw
    assert engine.dropped == 1
    assert len(engine.seen) == 1


async def test_an_event_may_hold_several_tokens() -> None:
    async with FaultEngine(burst=3).working() as engine:
        it = await told(engine, "vllm", "x")
        assert whole(it)
        counts = [len(c["token_ids"]) for data in it.data if data != DONE for c in json.loads(data)["choices"]]
        assert counts == [3] * 8 + [1]
        for after, sent in ((0, 0), (2, 0), (3, 3), (5, 3), (6, 6)):
            it = await told(engine, "vllm", f"[[chaos:close_mid_stream after={after}]]")
            assert len(it.ids) == sent


async def test_it_runs_in_a_process_of_its_own() -> None:
    body = body_of("llamacpp", prompt_of("[[chaos:500 only=b times=1]]"))
    async with process("--name", "b", "--slots", "1") as where, httpx.AsyncClient(trust_env=False) as client:
        assert [(await client.post(f"{where['url']}/completion", json=body)).status_code for _ in range(2)] == [500, 200]
        seen = (await client.get(f"{where['admin_url']}/admin/seen")).json()
        assert [each["fault"] for each in seen["requests"]] == ["500", "none"]


async def test_it_says_what_it_is_and_counts_what_runs() -> None:
    async with FaultEngine(slots=2).working() as engine, httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/props")).json()["default_generation_settings"]["n_ctx"] == 8192
        assert (await client.get("/version")).json()["version"]
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "m"
        assert (await client.post("/tokenize", json={"content": "the"})).json() == {"tokens": [*small_tokenizer().encode("the")]}
        asked = [asyncio.create_task(told(engine, kind, "[[chaos:slow s=0.02]]", quiet_s=9)) for kind in (*KINDS, *KINDS)]
        await asyncio.sleep(0.15)
        metrics = (await client.get("/metrics")).text
        assert "llamacpp:requests_processing 2\nllamacpp:requests_deferred 2\n" in metrics
        assert 'vllm:num_requests_running{model_name="m"} 2\n' in metrics
        await asyncio.gather(*asked)
        seen = (await client.get("/admin/seen")).json()
        assert [each["how"] for each in seen["requests"]] == ["fault"] * 4
        assert seen["most_running"] == 2
        assert seen["running"] == seen["waiting"] == 0
        assert (await client.get("/pause")).status_code == 404
        assert engine.odd == ["/pause"]


async def test_it_sees_when_its_peer_leaves(engine: FaultEngine) -> None:
    loop = asyncio.get_running_loop()
    for text in ("[[chaos:hang_mid_stream]]", "[[chaos:hang_before_headers]]", "[[tokens=10000]][[chaos:slow s=0.01]]"):
        async with connected(engine.url) as client:
            await client.send(post("vllm", body_of("vllm", prompt_of(text), 10_000)))
            await asyncio.sleep(0.1)
            left_s = client.leave()
        await asyncio.sleep(0.1)
        seen = engine.seen[-1]
        assert seen.how == "closed"
        assert seen.closed_s is not None
        assert 0 <= seen.closed_s - left_s < 0.1
        assert seen.closed_s <= loop.time()


async def test_admin_calls(engine: FaultEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.admin_url, trust_env=False) as admin:
        await admin.post("/admin/mode", json={"mode": "500", "times": 1})
        assert [(await told(engine, "vllm", "x")).answer.status for _ in range(2)] == [500, 200]
        await admin.post("/admin/health", json={"healthy": False})
        assert (await admin.get("/health")).status_code == 503
        await admin.post("/admin/health", json={"healthy": "hang"})
        with pytest.raises(httpx.ReadTimeout):
            await admin.get("/health", timeout=0.1)
        await admin.post("/admin/metrics", json={"answers": False})
        assert (await admin.get("/metrics")).status_code == 503
        await admin.post("/admin/reset")
        assert (await admin.get("/health")).status_code == 200
        assert (await admin.get("/admin/seen")).json()["requests"] == []
        await admin.post("/admin/down", json={"s": 0.3})
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await told(engine, "vllm", "x")
        assert (await admin.get("/admin/seen")).json()["connections"] == 0
        await asyncio.sleep(0.4)
        assert (await told(engine, "vllm", "x")).answer.status == 200


async def test_a_prompt_that_it_has_seen_costs_less() -> None:
    async with FaultEngine(prefill_us=1000).working() as engine:
        for _ in range(2):
            it = await told(engine, "vllm", "a long question, which fills some blocks of sixteen tokens each")
            assert whole(it)
        first, second = engine.seen
        assert first.cached == 0
        assert 16 <= second.cached < len(second.prompt)
        assert f'"cached_tokens": {second.cached}'.encode() in it.raw
        await engine.fall()
        await engine.rise()
        await told(engine, "vllm", "a long question, which fills some blocks of sixteen tokens each")
        assert engine.seen[-1].cached == 0


async def test_an_engine_that_says_too_much_says_the_key(engine: FaultEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False, headers={"authorization": "Bearer sk-x"}) as client:
        for kind in KINDS:
            for text in ("[[chaos:500]]", "[[chaos:error_mid_stream code=400]]"):
                assert "Bearer sk-x" in (await client.post(PATHS[kind], json=body_of(kind, prompt_of(text)))).text


# The proxy


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        (Line(), whole),
        (Line(delay_s=0.15), lambda it: whole(it) and it.first_s > 0.14),
        (Line(rate=20_000), lambda it: whole(it) and it.took_s > 0.9 * len(it.raw) / 20_000),
        (Line(slice_bytes=7), whole),
        (Line(reset_after=500), lambda it: it.ended == "rst" and len(it.raw) == 500),
        (Line(reset_after=0), lambda it: it.ended == "rst" and not it.raw),
        (Line(close_after=500), lambda it: it.ended == "fin" and len(it.raw) == 500),
        (Line(half_close_after=500), lambda it: it.ended == "fin" and len(it.raw) == 500),
        (Line(hole_after=500), lambda it: it.ended == "open" and len(it.raw) == 500),
        (Line(refuse=True), lambda it: it.ended == "rst" and not it.raw),
    ],
)
async def test_a_line_is_what_it_says(engine: FaultEngine, line: Line, fits: Callable[[Told], bool]) -> None:
    async with FaultProxy(engine.url, lambda number: line).working() as proxy:
        it = await told(engine, "llamacpp", "[[ascii]]", proxy.url)
        assert fits(it), (it.ended, len(it.raw), it.took_s, it.raw[-200:])
        async with asyncio.timeout(2):
            while proxy.connections or engine.connections:
                await asyncio.sleep(0.01)


async def test_lines_are_chosen_by_the_number_of_the_connection(engine: FaultEngine) -> None:
    async with FaultProxy(engine.url, lambda number: Line(refuse=number % 2 == 0)).working() as proxy:
        ends = [await told(engine, "llamacpp", "x", proxy.url) for _ in range(4)]
        assert [each.answer.complete or each.ended for each in ends] == ["rst", True, "rst", True]
        assert proxy.passed[0] == proxy.passed[2] == 0 < proxy.passed[1] == proxy.passed[3]


async def test_a_line_may_begin_with_a_request(engine: FaultEngine) -> None:
    line = Line(reset_after=100, since=b"POST /v1/completions")
    async with FaultProxy(engine.url, lambda number: line).working() as proxy, connected(proxy.url) as client:
        for _ in range(3):
            health = Answer()
            await client.send(b"GET /health HTTP/1.1\r\n\r\n")
            await client.read(health)
            assert health.complete
        await client.send(post("vllm", body_of("vllm", prompt_of("x"))))
        answer = Answer()
        with pytest.raises(ConnectionError):
            await client.read(answer)
        assert len(answer.raw) == 100


async def test_a_half_closed_line_still_carries_the_other_way(engine: FaultEngine) -> None:
    async with (
        FaultProxy(engine.url, lambda number: Line(half_close_after=200)).working() as proxy,
        connected(proxy.url) as client,
    ):
        await client.send(post("vllm", body_of("vllm", prompt_of("x"))))
        assert len(await client.reader.read(-1)) == 200
        await client.send(post("vllm", body_of("vllm", prompt_of("y"))))
        async with asyncio.timeout(2):
            while len(engine.seen) < 2:
                await asyncio.sleep(0.01)


# The client and `no_leaks`


@pytest.mark.parametrize("manner", MANNERS)
async def test_a_manner_of_a_client(engine: FaultEngine, no_leaks: NoLeaks, manner: str) -> None:
    async with no_leaks.serving(no_leaks.settings(engine.url), engine) as served:
        for number in range(4):
            body = chat("[[tokens=200]][[chaos:slow s=0.005]]" if manner == "during" else "[[tokens=200]]")
            answer = await misbehave(served.url, manner, body, *HEADERS, chance=random.Random(number))  # type: ignore[arg-type]  # one of MANNERS
            no_leaks.sent(answer.asked)
            no_leaks.shown(bytes(answer.raw))
            if manner in ("reads", "slow", "after"):
                assert answer.done
                assert answer.text == text_of(unbroken(engine.seen[-1].prompt))
            if manner in ("before", "waiting", "during"):
                assert not answer.complete
            if manner == "garbage":
                assert answer.status in (400, None)
    outcomes = {record["outcome"] for record in no_leaks.records}
    expected = {"reads": {"ok"}, "slow": {"ok"}, "after": {"ok"}, "garbage": set(), "waiting": {"client_gone", "ok"}}
    assert outcomes <= expected.get(manner, {"client_gone"})


async def leaks(planted: Callable[[NoLeaks], Any]) -> None:
    async with watching() as watch:
        await planted(watch)


async def test_a_task_that_is_left_is_found() -> None:
    left: list[asyncio.Task[None]] = []

    async def planted(watch: NoLeaks) -> None:
        left.append(asyncio.create_task(asyncio.sleep(60)))

    with pytest.raises(AssertionError, match="tasks are left"):
        await leaks(planted)
    left[0].cancel()


async def test_a_descriptor_that_is_left_is_found() -> None:
    ends: list[int] = []

    async def planted(watch: NoLeaks) -> None:
        ends.extend(os.pipe())

    try:
        with pytest.raises(AssertionError, match="descriptors are left"):
            await leaks(planted)
    finally:
        for end in ends:
            os.close(end)


async def test_an_exception_that_nobody_asked_for_is_found() -> None:
    async def fails() -> None:
        raise RuntimeError("lost")

    async def planted(watch: NoLeaks) -> None:
        task = asyncio.create_task(fails())
        await asyncio.wait([task])
        del task

    with pytest.raises(AssertionError, match="exception was never retrieved"):
        await leaks(planted)


@pytest.mark.parametrize("where", ["log", "records", "shown"])
async def test_a_secret_that_came_out_is_found(where: str) -> None:
    async def planted(watch: NoLeaks) -> None:
        if where == "log":
            watch.log.write(f"a line with {CANARIES['prompt']}")
        elif where == "records":
            watch.records.append({"model": CANARIES["header"]})
        else:
            watch.shown(CANARIES["engine"].encode())

    with pytest.raises(AssertionError, match="a secret is in"):
        await leaks(planted)


async def test_a_request_that_was_not_counted_is_found(engine: FaultEngine) -> None:
    async def planted(watch: NoLeaks) -> None:
        async with watch.serving(watch.settings(engine.url), engine) as served:
            await ask(served.url, chat())
            watch.sent(2)

    with pytest.raises(AssertionError, match=r"1\.0 outcomes of 2"):
        await leaks(planted)


async def test_an_attempt_that_still_counts_is_found(engine: FaultEngine) -> None:
    async def planted(watch: NoLeaks) -> None:
        async with watch.serving(watch.settings(engine.url), engine) as served:
            served.gateway.registry.running.apply(AttemptStarted("never-ends", 1, "e", "m", 0.0))

    with pytest.raises(AssertionError, match="still count as running"):
        await leaks(planted)


async def test_work_that_an_engine_still_does_is_found(engine: FaultEngine) -> None:
    async def planted(watch: NoLeaks) -> None:
        async with watch.serving(watch.settings(engine.url), engine):
            asyncio.get_running_loop().create_task(told(engine, "vllm", "[[tokens=900]][[chaos:slow s=0.01]]"))
            await asyncio.sleep(0.1)

    with pytest.raises(AssertionError, match="still works for nobody"):
        await leaks(planted)
    await engine.fall()
    await asyncio.sleep(0.1)
