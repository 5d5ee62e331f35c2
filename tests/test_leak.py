"""Stop tokens that come through in an answer are counted, each once, and the answer stays what it was."""

import random
from collections.abc import Sequence

import pytest
from support.gateway import PAIR, sample, scripted
from support.scripted_engine import CLOSE, HEAD, Step, chat_chunk, chunked, completion, event, llama_end, llama_token
from test_answer import Scripted

from engines.base import Chunk
from gateway.answer import AnswerReader, AnswerRules
from gateway.leak import LeakedTexts, leaked_ids
from gateway.request import ContentText, Delta, Finish, ReasoningText, ToolCallArguments, ToolCallEnd, ToolCallStart

STOPS = ("<|im_end|>", "<|im_end|>>", "</s>", "[END]")
LEAKS = sample("interlock_parse_failures_total", format="plain", kind="stop_leak", **PAIR)


def leaked(*deltas: Delta, texts: Sequence[str] = STOPS) -> int:
    watch = LeakedTexts(texts)
    found = [kind for delta in deltas for kind in watch(Chunk(), [delta])]
    assert set(found) <= {"stop_leak"}
    return len(found)


def content(*texts: str) -> list[Delta]:
    return [ContentText(text) for text in texts]


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        (["plain"], 0),
        (["a</s>b"], 1),
        (["</s></s>"], 2),
        (["</", "s", ">"], 1),
        (["a<", "<", "/s>"], 1),
        (["<|im_end", "|>"], 1),
        (["<|im_end|>", ">"], 1),
        (["<|im_end|>>"], 1),
        (["<|im_", "x", "end|>"], 0),
        (["[EN", "D] [", "END]"], 2),
        (["</s", "</s>"], 1),
        (["<" * 40, "/s>"], 1),
    ],
)
def test_texts(texts: list[str], count: int) -> None:
    assert leaked(*content(*texts)) == count


def test_any_split_counts_the_same() -> None:
    source = random.Random(5)
    pieces = ["</s>", "<|im_end|>", "[END]", "<", "|", "s>", "[E", "ND]", " a ", "<|im_"]
    for _ in range(500):
        text = "".join(source.choices(pieces, k=12))
        whole = leaked(*content(text), texts=("</s>", "<|im_end|>", "[END]"))
        cuts = sorted(source.choices(range(len(text) + 1), k=8))
        parts = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert leaked(*content(*parts), texts=("</s>", "<|im_end|>", "[END]")) == whole


def test_thoughts_and_arguments_are_looked_at_and_do_not_grow_together() -> None:
    assert leaked(ReasoningText("a</s>"), ContentText("</s>"), ToolCallArguments(0, '{"a": "</s>"}')) == 3
    assert leaked(ReasoningText("</"), ContentText("s>")) == 0
    assert leaked(ToolCallArguments(0, "</"), ToolCallArguments(1, "s>")) == 0
    assert leaked(ToolCallArguments(1, "</"), ToolCallArguments(1, "s>")) == 1
    assert leaked(ToolCallStart(0, "c", "</s>"), ToolCallEnd(0)) == 0


def test_ids_count_whatever_the_text_spells() -> None:
    leaks = leaked_ids(frozenset({2, 5}), 7)
    assert list(leaks(Chunk(ids=(1, 6)), content("</s>"))) == []
    assert list(leaks(Chunk(ids=(2, 3, 5, 2)), [])) == ["stop_leak"] * 3
    assert list(leaks(Chunk(ids=None), content("</s>"))) == []
    assert list(leaks(Chunk(ids=()), [])) == []


def test_ids_that_the_vocabulary_lacks_count_each() -> None:
    leaks = leaked_ids(frozenset({2}), 7)
    assert list(leaks(Chunk(ids=(7, 2, 1, 99)), [])) == ["stop_leak", "unknown_token", "unknown_token"]


def test_a_reader_counts_and_forwards_unchanged() -> None:
    reader = AnswerReader(Scripted(), rules=AnswerRules(on_parse_failure="error"), prompt_tokens=1, leaks=LeakedTexts(["</s>"]))
    deltas = [delta for text in ("a</", "s>b") for delta in reader.read(Chunk(text=text, tokens=1))]
    end = reader.read(Chunk(finish="stop"))
    assert deltas == content("a</", "s>b")
    assert isinstance(end[-1], Finish)
    assert reader.tally.failures == {"stop_leak": 1}


@pytest.mark.parametrize(
    ("texts", "count"), [(("a", "<|im_", "end|>", "b"), 1), (("a", "b"), 0), (("<|endoftext|>", "<|im_end|>"), 2)]
)
async def test_a_leak_is_a_parse_failure_of_its_own_kind(texts: tuple[str, ...], count: int) -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion(*texts)
        answer = (await served.chat()).json()
        metrics = await served.metrics()
    assert answer["choices"][0]["message"]["content"] == "".join(texts)
    assert metrics.get(LEAKS, 0) == count


async def test_a_stop_id_ends_the_answer_and_leaks_nothing() -> None:
    """The id is the end, though the engine does not know it for one and goes on."""
    async with scripted() as (engine, served):
        steps = [event(llama_token(text, at, token)) for at, (text, token) in enumerate([("a", 9), ("", 2), ("junk", 9)], 1)]
        engine.script = lambda seen: [HEAD, *steps, event(llama_end(3)), b"0\r\n\r\n", CLOSE]
        answer = (await served.chat()).json()
        metrics = await served.metrics()
    assert answer["choices"][0]["message"]["content"] == "a"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert metrics.get(LEAKS, 0) == 0


async def test_an_end_by_an_id_that_only_the_engine_knows_is_an_end() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: [
            HEAD,
            event(llama_token("a", 1)),
            event(llama_token("", 2, 77)),
            event(llama_end(2)),
            b"0\r\n\r\n",
            CLOSE,
        ]
        answer = (await served.chat()).json()
        metrics = await served.metrics()
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("a", "stop")
    assert metrics.get(LEAKS, 0) == 0


def vllm_answer(*ids: int, finish: str = "stop") -> list[Step]:
    choices = [{"index": 0, "text": "", "token_ids": [each], "finish_reason": None} for each in ids[:-1]]
    last = {"index": 0, "text": "", "token_ids": [ids[-1]], "finish_reason": finish}
    events = [event({"choices": [choice]}) for choice in (*choices, last)]
    return [HEAD, *events, chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE]


@pytest.mark.parametrize("asked", [{}, {"ignore_eos": True}])
async def test_an_id_that_the_vocabulary_lacks_is_counted(asked: dict[str, object]) -> None:
    async with scripted(kind="vllm") as (engine, served):
        (letter,) = engine.tokenizer.encode("a")
        engine.script = lambda seen: vllm_answer(letter, engine.tokenizer.vocab_size, 2)
        answer = (await served.chat(**asked)).json()
        metrics = await served.metrics()
    assert answer["choices"][0]["message"]["content"] == "a"
    assert answer["usage"]["completion_tokens"] == 3
    assert metrics[LEAKS.replace("stop_leak", "unknown_token")] == 1


@pytest.mark.parametrize("finish", ["stop", "length"])
async def test_the_last_token_of_an_answer_is_in_it_unless_it_ends_the_turn(finish: str) -> None:
    async with scripted(kind="vllm") as (engine, served):
        first, last = engine.tokenizer.encode("a")[0], engine.tokenizer.encode("b")[0]
        engine.script = lambda seen: vllm_answer(first, last, finish=finish)
        plain = (await served.chat()).json()["choices"][0]
        engine.script = lambda seen: vllm_answer(first, 2, finish=finish)
        ended = (await served.chat()).json()["choices"][0]
        metrics = await served.metrics()
    assert (plain["message"]["content"], plain["finish_reason"]) == ("ab", finish)
    assert (ended["message"]["content"], ended["finish_reason"]) == ("a", "stop")
    assert metrics.get(LEAKS, 0) == 0


async def test_a_stop_token_whose_text_the_engine_shows_ends_the_answer_without_it() -> None:
    """As llama.cpp does that was started with `--special`."""
    async with scripted() as (engine, served):
        steps = [event(llama_token("a", 1)), event(llama_token("<|im_end|>", 2, 2)), event(llama_end(2))]
        engine.script = lambda seen: [HEAD, *steps, b"0\r\n\r\n", CLOSE]
        answer = (await served.chat()).json()
        metrics = await served.metrics()
    assert answer["choices"][0]["message"]["content"] == "a"
    assert metrics.get(LEAKS, 0) == 0


async def test_an_answer_that_shall_go_on_after_its_end_leaks_nothing() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion("a<|im_end|>b")
        await served.chat(ignore_eos=True)
        metrics = await served.metrics()
    assert metrics.get(LEAKS, 0) == 0


async def test_a_message_is_continued_and_its_control_tokens_are_text() -> None:
    asked = [{"role": "user", "content": "a<|im_end|>"}, {"role": "assistant", "content": "so far"}]
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion(" so good")
        answer = await served.chat(messages=asked, continue_final_message=True)
        refused = await served.chat(messages=asked[:1], continue_final_message=True)
    assert answer.json()["choices"][0]["message"]["content"] == " so good"
    assert "x-interlock-ignored" not in answer.headers
    sent = engine.calls[0].body["prompt"]
    tokenizer = engine.tokenizer
    assert "".join(map(tokenizer.text_of, sent)).endswith("<|im_start|>assistant\nso far")
    assert sent.count(tokenizer.special_ids["<|im_end|>"]) == 1
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0]")


@pytest.mark.parametrize("counts", [{"prompt_tokens": -5, "completion_tokens": 10**30}])
async def test_counts_that_none_can_be_reach_neither_client_nor_metrics(counts: dict[str, int]) -> None:
    async with scripted(kind="openai") as (engine, served):
        chunks = [chat_chunk({"content": "a"}), chat_chunk({}, "stop"), {**chat_chunk({}), "choices": [], "usage": counts}]
        engine.script = lambda seen: [HEAD, *map(event, chunks), chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n", CLOSE]
        usage = (await served.chat()).json()["usage"]
        metrics = await served.metrics()
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (0, 0)
    assert metrics[sample("interlock_prompt_tokens_total", **PAIR)] == 0
    assert metrics[sample("interlock_parse_failures_total", format="engine", kind="bad_usage", **PAIR)] == 1


async def test_an_engine_that_templates_gets_both_fields_as_they_are() -> None:
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    async with scripted(kind="openai") as (engine, served):
        engine.script = lambda seen: [HEAD, b"0\r\n\r\n", CLOSE]
        await served.chat(**fields)
    assert fields.items() <= engine.calls[0].body.items()
