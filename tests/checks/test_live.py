"""The live part of a check: a real engine passes, and engines that do what none should fail the right test."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.gateway import tiny_model
from support.llamacpp import EngineUnderTest
from support.profiles import profile_of
from support.scripted_engine import CLOSE, HEAD, ScriptedEngine, Seen, Step, chunked, event, llama_end, llama_token
from yarl import URL

from engines.registry import make
from gateway.checks.asking import Target
from gateway.checks.base import Case, Status, Subject, grammar_taxes
from gateway.checks.live import Live, check_live
from gateway.formats.registry import load
from gateway.settings_fit import Speech, ToolMode
from gateway.voice import voice_of

END = 2  # <|im_end|>
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
Script = Callable[[Seen], Sequence[Step]]


def subject(source: Path, form: str, tools: ToolMode = "native") -> Subject:
    voice = voice_of(Speech(source, form, tools), load())
    spoken, profile = voice.rendered, profile_of(source, form)
    return Subject("m", voice.files, spoken.prompter, spoken.format, spoken.call_format, profile, voice.files.hashes)


async def checked(script: Script, *, form: str = "hermes", answers: dict[str, object] | None = None) -> Live:
    async with ScriptedEngine().running() as engine:
        engine.script = script
        engine.answers |= answers or {}
        return await check_live(subject(tiny_model("full"), form), Target("e", make("llamacpp"), URL(engine.url)))


def answer(text: str, *, ends: bool = True) -> list[Step]:
    steps = [event(llama_token(text, 1)), *([event(llama_token("<|im_end|>", 2, END))] if ends else [])]
    return [HEAD, *steps, event(llama_end(2, "eos" if ends else "limit")), b"0\r\n\r\n", CLOSE]


def told(seen: Seen) -> list[Step]:
    """A sound model: calls where tools are shown or a grammar asks for them, else a thought where it may, and an answer."""
    if "grammar" in seen.body:
        return answer(CALL)
    prompt = bytes(max(token - 9, 0) for token in seen.body["prompt"] if 9 <= token < 265)
    if b"[tools]" in prompt:
        return answer(CALL)
    return answer("<think>\nhm\n</think>\n\n5 cents" if b"bat and a ball" in prompt else "Hello")


def status(live: Live, name: str) -> list[tuple[Status, str]]:
    return [(case.status, case.diagnosis) for case in live.cases if name in case.name]


async def test_a_sound_engine_passes_all_four() -> None:
    live = await checked(told)
    assert {case.status for case in live.cases} == {"passed"}
    assert {case.test for case in live.cases} == {"template", "reasoning", "stop", "tool_call"}
    assert [(each.mode, each.asked, each.called, each.failed.hits) for each in live.figures] == [
        ("native", 8, 8, 0),
        ("constrained", 8, 8, 0),
    ]
    (tax,) = grammar_taxes(live.figures).values()
    assert tax > 0


async def test_an_engine_with_another_tokenizer_fails_the_template_test() -> None:
    live = await checked(told, answers={"/tokenize": {"tokens": [1, 2, 3]}})
    assert {state for state, _ in status(live, "engine's ids")} == {"failed"}
    assert "the engine runs another model" in status(live, "engine's ids")[0][1]


async def test_a_thought_that_the_format_does_not_know_fails_the_reasoning_test() -> None:
    live = await checked(lambda seen: answer("hm</think>5 cents"))
    ((state, why),) = status(live, "a thought is told")
    assert (state, "'</think>' stands in the content" in why) == ("failed", True)


async def test_an_answer_that_is_all_thought_fails_it_too() -> None:
    live = await checked(lambda seen: answer("<think>5 cents"))
    assert status(live, "a thought is told") == [("failed", "the whole answer was read as a thought")]


async def test_answers_that_differ_up_to_the_stop_fail_the_stop_test() -> None:
    count = iter(range(100))
    live = await checked(lambda seen: answer(f"Hello {next(count)}"))
    assert {state for state, _ in status(live, "ends as with")} == {"failed"}


async def test_where_no_answer_ends_nothing_is_known() -> None:
    live = await checked(lambda seen: answer("Hello", ends=False))
    assert {state for state, _ in status(live, "ends as with")} == {"skipped"}


async def test_calls_that_cannot_be_read_fail_the_tool_call_test() -> None:
    live = await checked(lambda seen: answer('<tool_call>\n{"name": "get_weather", "argum'))
    (native,) = status(live, "native calls")
    assert native[0] == "failed"
    assert "8 of 8 answers with calls cannot be read or do not fit their schema (95 %: 68% to 100%)" in native[1]


async def test_a_model_that_does_not_call_is_no_failure() -> None:
    live = await checked(lambda seen: answer("It rains."))
    assert ("skipped", "the model made no call in 8 answers") in status(live, "native calls")


async def test_an_engine_that_fails_fails_every_case() -> None:
    live = await checked(lambda seen: [b"HTTP/1.1 500 Oops\r\ncontent-length: 2\r\n\r\n{}", CLOSE])
    failed: list[Case] = [case for case in live.cases if case.status == "failed"]
    assert {case.test for case in failed} == {"reasoning", "stop", "tool_call"}
    assert all(case.diagnosis and case.fix for case in failed)


@pytest.mark.parametrize(
    "said",
    [
        [b"HTTP/1.1 404 No\r\ncontent-length: 42\r\n\r\n" + b'{"error":{"message":"no sk-secret, here1"}}'[:42], CLOSE],
        [HEAD, event({"error": {"message": "the key sk-secret is not known", "code": 404}}), CLOSE],
        [HEAD, chunked(b"data: " + b"x" * (64 << 20)), CLOSE],
    ],
)
async def test_what_an_engine_says_fails_the_case_and_names_no_key(said: list[Step]) -> None:
    async with ScriptedEngine().running() as engine:
        engine.script = lambda seen: said
        target = Target("e", make("llamacpp"), URL(engine.url), api_key="sk-secret")
        live = await check_live(subject(tiny_model("full"), "hermes"), target)
    assert {case.test for case in live.cases if case.status == "failed"} == {"reasoning", "stop", "tool_call"}
    assert not any("sk-secret" in case.diagnosis for case in live.cases)


@pytest.mark.engine
async def test_the_real_engine_passes(local_engine: EngineUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, fewer in (("TRIES", 2), ("THOUGHT_TOKENS", 48), ("TOKENS", 64)):
        monkeypatch.setattr(f"gateway.checks.live.{name}", fewer)
    target = Target("local", make("llamacpp"), URL(local_engine.url), local_engine.alias)
    live = await check_live(subject(local_engine.model, "plain", "constrained"), target)
    assert not [case for case in live.cases if case.status == "failed"]
    assert {case.test for case in live.cases if case.status == "passed"} == {"template", "reasoning", "stop", "tool_call"}
    (figures,) = live.figures
    assert (figures.mode, figures.asked, figures.called, figures.failed.hits) == ("constrained", 2, 2, 0)
