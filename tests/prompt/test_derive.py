"""A profile derived from a model's files: what is told of it, what is not, and that serving by it changes nothing."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.llamacpp import smollm2_file
from support.real_templates import REAL_FILES, needs_real, real_template
from support.real_vocabularies import deepseek_vocabulary, model_directory, qwen_vocabulary
from support.vocabulary import fixed_clock, model_files, template_text

from gateway.errors import ModelFileError
from gateway.formats.registry import load
from gateway.prompt.derive import derive
from gateway.prompt.model_files import DEFAULT, TOOL_USE, ModelFiles
from gateway.prompt.profile import FormatChoice, Found, Profile, StopToken, profile_of, profile_values
from gateway.prompt.prompter import Prompter
from gateway.prompt.source import read_model
from gateway.prompt.thought_end import ThoughtEnd
from gateway.prompt.written import whole_markers

FORMATS = load()
DATA = Path(__file__).parents[1] / "data" / "families"
NAMES = sorted(path.parent.name for path in DATA.glob("*/template.jinja"))
FULL, ECHO = template_text("full"), template_text("echo")


def with_template(source: str, **specials: str) -> ModelFiles:
    return replace(model_files("full"), templates={DEFAULT: source}, specials=specials, context_tokens=None)


def family(name: str) -> ModelFiles:
    transcript = yaml.safe_load((DATA / name / "transcript.yaml").read_text(encoding="utf-8"))
    return with_template((DATA / name / "template.jinja").read_text(encoding="utf-8"), **transcript["specials"])


@cache
def derived(name: str) -> Profile:
    return derive(name, family(name), FORMATS)


def found(name: str) -> Found:
    return derived(name).found[DEFAULT]


def of(source: str, **specials: str) -> Found:
    return derive("m", with_template(source, **specials), FORMATS).found[DEFAULT]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_spoken_to_by_its_profile_as_without(name: str) -> None:
    files, profile = family(name), derived(name)
    assert profile_of(profile_values(profile)) == profile
    own, by_profile = (Prompter(files, tools="native", syntax=None, clock=fixed_clock, profile=each) for each in (None, profile))
    assert by_profile.capabilities == own.capabilities
    assert by_profile.stop_ids == own.stop_ids
    closer = FORMATS[profile.format.name].thought_closer if profile.format.name else "</think>"
    assert by_profile.thought_end(closer) == own.thought_end(closer)


def test_a_profile_of_the_template_that_shows_everything() -> None:
    profile = derive("full", model_files("full"), FORMATS)
    assert profile.model == "full"
    assert profile.format == FormatChoice("hermes", "told", "it reads back the tool call that the template writes")
    assert profile.stop == (StopToken(0, "<|endoftext|>"), StopToken(2, "<|im_end|>"))
    assert profile.thought_end == ThoughtEnd("</think>", "</think>")
    seen = profile.found[DEFAULT]
    assert seen.generation_prompt == "<|im_start|>assistant\n"
    assert seen.turn_end == "<|im_end|>"
    assert (
        seen.call
        == '<tool_call>\n{"name": "probe_function", "arguments": {"probe_key": "first_value"}}\n</tool_call><|im_end|>\n'
    )
    assert seen.calls.count("<tool_call>") == 2
    assert seen.result == "<|im_start|>tool\nthe_result<|im_end|>\n"
    assert seen.thoughts is not None
    assert seen.thoughts.start == {"none": "unopened", "true": "unopened", "false": "closed"}
    assert "the_thought</think>" in seen.thoughts.written
    assert seen.loops.keys() == {"plain", "tools", "tools_then_user"}
    assert not seen.dated
    assert (profile.checked, profile.interlock_profile) == (None, 1)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("qwen3", ("unopened", "unopened", "closed")),
        ("qwen3_5", ("open", "open", "closed")),
        ("deepseek_v3_1", ("closed", "open", "closed")),
        ("gemma4", ("closed", "unopened", "closed")),
        ("minimax_m2", ("open", "open", "open")),
        ("smollm3", ("unopened", "unopened", "closed")),  # of no known format: by the marks of most
    ],
)
def test_how_the_prompt_leaves_the_thought(name: str, start: tuple[str, ...]) -> None:
    thoughts = found(name).thoughts
    assert thoughts is not None
    assert tuple(thoughts.start[switch] for switch in ("none", "true", "false")) == start


def test_a_switch_that_a_template_refuses_has_no_start() -> None:
    refusing = FULL + "{%- if enable_thinking is defined and enable_thinking %}{{ raise_exception('only off') }}{% endif -%}"
    thoughts = of(refusing).thoughts
    assert thoughts is not None
    assert thoughts.start == {"none": "unopened", "false": "closed"}


@pytest.mark.parametrize(
    ("name", "field", "kept"),
    [
        ("qwen3", "reasoning_content", (True, False)),
        ("seed_oss", "reasoning_content", (True, True)),
        ("gpt_oss", "thinking", (True, False)),
        ("mistral_v13", "content", (True, True)),
        ("deepseek_v4", "reasoning_content", (False, False)),  # without the switch
        ("qwq", None, (False, False)),
    ],
)
def test_where_thoughts_are_read_and_kept(name: str, field: str | None, kept: tuple[bool, bool]) -> None:
    thoughts = found(name).thoughts
    assert thoughts is not None
    assert (thoughts.field, (thoughts.kept_in_tool_loop, thoughts.kept_after_user)) == (field, kept)
    assert ("the_thought" in thoughts.written) == (field is not None)


@pytest.mark.parametrize("name", ["chatml", "hermes3", "qwen2_5", "llama3_1", "qwen3_coder", "gemma3"])
def test_a_model_that_does_not_think_has_no_thoughts(name: str) -> None:
    assert found(name).thoughts is None


@pytest.mark.parametrize(
    ("name", "call", "result"),
    [
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.probe_function:0<|tool_call_argument_begin|>"
            '{"probe_key": "first_value"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>',
            "<|im_system|>tool<|im_middle|>## Return of probecal1\nthe_result<|im_end|>",
        ),
        (
            "mistral_v13",
            '[TOOL_CALLS]probe_function[ARGS]{"probe_key": "first_value"}</s>',
            "[TOOL_RESULTS]the_result[/TOOL_RESULTS]",
        ),
        (
            "lfm2_5",
            "<|tool_call_start|>[probe_function(probe_key='first_value')]<|tool_call_end|><|im_end|>\n",
            "<|im_start|>tool\nthe_result<|im_end|>\n",
        ),
        (
            "gpt_oss",
            ' to=functions.probe_function<|channel|>commentary json<|message|>{"probe_key": "first_value"}<|call|>',
            '<|start|>functions.probe_function to=assistant<|channel|>commentary<|message|>"the_result"<|end|>',
        ),
        (
            "glm4_7",
            "</think><tool_call>probe_function<arg_key>probe_key</arg_key><arg_value>first_value</arg_value></tool_call>",
            "<|observation|><tool_response>the_result</tool_response>",
        ),
        ("granite3_3", "", ""),
        ("chatml", "", ""),
    ],
)
def test_what_is_written_for_a_call_and_its_result(name: str, call: str, result: str) -> None:
    assert (found(name).call, found(name).result) == (call, result)


def test_a_call_without_its_result_may_be_written_otherwise() -> None:
    calls = "{%- for call in message.tool_calls or [] -%}"
    source = FULL.replace(calls, "{%- if loop.last %}[last]{% endif -%}" + calls)
    assert source != FULL
    assert of(source).call == of(FULL).call.removesuffix("\n"), "up to the turn's end"


def test_two_calls_are_shown_where_a_message_may_have_them() -> None:
    assert found("qwen3").calls.count("<tool_call>") == 2
    assert found("llama3_1").calls == found("gpt_oss").calls == ""


@pytest.mark.parametrize(
    ("name", "unstable"),
    [
        ("qwen2_5", {}),
        ("qwen3", {"tools_then_user": "<think>\nCall 1"}),
        ("qwen3_5", {"plain": "<think>\n", "tools_then_user": "<think>\nCall 1"}),
        ("mistral_v3", {"plain": "Help with the files", "tools_then_user": "[AVAILABLE_TOOLS]"}),
        ("qwq", dict.fromkeys(("plain", "tools", "tools_then_user"), "<think>\n</think>")),
    ],
)
def test_where_an_agent_s_loop_loses_its_cache(name: str, unstable: dict[str, str]) -> None:
    loops = found(name).loops
    assert {loop for loop, seen in loops.items() if not seen.stable} == unstable.keys()
    assert [loop for loop, at in unstable.items() if not loops[loop].parts_at.startswith(at)] == []
    assert all((seen.lost_tokens > 0) != seen.stable for seen in loops.values())


def test_a_loop_that_cannot_be_shown_is_left_out() -> None:
    assert found("chatml").loops.keys() == {"plain"}


def test_what_is_lost_is_counted_in_tokens() -> None:
    # The generation prompt opens a thought, of two tokens, that the history does not have.
    source = ECHO.replace("<|im_start|>assistant\\n", "<|im_start|>assistant\\n<think>\\n")
    assert source != ECHO
    loop = of(source).loops["plain"]
    assert (loop.stable, loop.lost_tokens, loop.parts_at) == (False, 2, "<think>\n")


@pytest.mark.parametrize(
    ("name", "dated"), [("llama3_1", False), ("gpt_oss", True), ("mistral_v11", True), ("apertus", True), ("qwen3", False)]
)
def test_whether_the_date_is_in_the_prompt(name: str, dated: bool) -> None:
    assert found(name).dated == dated


def test_a_date_that_stands_with_tools_alone_is_found() -> None:
    assert of(FULL + "{%- if tools %}{{ strftime_now('%Y') }}{% endif -%}").dated


def test_the_profile_is_the_same_on_any_day() -> None:
    profile = derive("m", with_template("{{ strftime_now('%Y-%m-%d') }}" + FULL), FORMATS)
    assert profile.found[DEFAULT].dated
    assert derive("m", with_template("{{ strftime_now('%Y-%m-%d') }}" + FULL), FORMATS) == profile


@pytest.mark.parametrize(
    ("writes", "wanted", "said"),
    [
        ("<s>", None, "The template writes <s>."),
        ("<s>", "<s>", "The template writes <s>. A tokenizer that adds its own, as the files want it, would write it twice."),
        ("", "<s>", "None is written, though the files want <s>."),
        ("", None, "None: the template writes none, and the files want none."),
    ],
)
def test_who_begins_the_prompt(writes: str, wanted: str | None, said: str) -> None:
    files = replace(with_template(writes + ECHO, bos_token="<s>"), bos=wanted)
    profile = derive("m", files, FORMATS)
    assert profile.found[DEFAULT].bos == said
    assert bool(profile.conflicts) == (wanted is not None and not writes)


def test_what_the_files_do_not_declare_is_told() -> None:
    files = replace(with_template(FULL), stop_ids=frozenset({0}))
    profile = derive("m", files, FORMATS)
    assert [token.id for token in profile.stop] == [0, 2]
    assert "ends the model's turn with <|im_end|> (id 2), which the model's files do not declare" in profile.conflicts[0]


@pytest.mark.parametrize(
    ("name", "declared", "choice"),
    [
        ("qwen3", "qwen25", FormatChoice("hermes", "declared", "named by a person")),
        ("qwen3", "qwen3_coder", FormatChoice("qwen3_coder", "declared", "named by a person; the template tells hermes")),
        ("smollm3", "hermes", FormatChoice("hermes", "declared", "named by a person")),
        (
            "chatml",
            None,
            FormatChoice("plain", "told", "the template shows no tool calls, states no tools and knows no thoughts"),
        ),
        (
            "smollm3",
            None,
            FormatChoice(
                None,
                "unsure",
                "the model thinks, but its template shows no tool calls to tell its format by: name the format",
            ),
        ),
    ],
)
def test_how_sure_the_format_is(name: str, declared: str | None, choice: FormatChoice) -> None:
    profile = derive(name, family(name), FORMATS, declared=declared)
    assert profile.format == choice
    assert (profile.thought_end is None) == (choice.name in (None, "plain", "qwen3_coder"))


def test_what_the_model_cannot_do_is_said_in_plain_words() -> None:
    assert of(FULL).cannot == ()
    assert found("gemma2").cannot[:2] == (
        "The template refuses system messages: they are given at the head of the first user message.",
        "The template refuses a system message later than the first: a request with one is refused.",
    )
    assert "The template drops developer messages: they are given as system messages." in found("qwen3").cannot
    assert "The template does not know developer messages: they are given as system messages." in found("chatml").cannot
    assert "The template states no tools: set `tools: constrained`." in found("chatml").cannot
    assert "The template shows no text beside calls: it is left out." in found("mistral_v3").cannot
    assert "The template takes call ids of nine letters or digits alone: others are mapped to such." in found("mistral_v3").cannot
    assert "The template refuses a second call in one message: an answer has one call only." in found("llama3_1").cannot
    assert "The template shows no thoughts from before the last user message: they are left out." in found("qwen3").cannot
    assert (
        "The template shows earlier thoughts only where thinking is switched on: else they are left out."
        in found("deepseek_v4").cannot
    )


def test_a_template_that_refuses_tools_is_told() -> None:
    seen = of(ECHO + "{%- if tools %}{{ raise_exception('no tools') }}{% endif -%}")
    assert "The template refuses tools: set `tools: constrained`." in seen.cannot
    assert not seen.dated


def test_a_template_that_refuses_results_shows_the_call_alone() -> None:
    source = FULL.replace(", 'tool']", "]")
    assert source != FULL
    profile = derive("m", with_template(source), FORMATS)
    assert profile.format.name is None
    assert profile.format.why == (
        "The model's chat template does not show tool results to it: unknown role tool. So its format cannot be told: name it"
    )
    seen = profile.found[DEFAULT]
    assert (seen.call, seen.result) == (of(FULL).call, "")
    assert seen.loops.keys() == {"plain"}
    assert "The template refuses the results of calls: with `tools: native` a request with one is refused." in seen.cannot


def test_a_template_that_shows_later_developer_messages_otherwise_is_told() -> None:
    drops = "{%- if message.role == 'developer' and not loop.first %}{% continue %}{% endif -%}"
    source = FULL.replace("{{- '<|im_start|>'", drops + "{{- '<|im_start|>'", 1)
    assert source != FULL
    assert of(source).cannot == ("The template drops later developer messages: they are given as system messages.",)


def test_a_model_with_a_template_for_tools_has_both_told() -> None:
    files = replace(with_template(ECHO), templates={DEFAULT: ECHO, TOOL_USE: FULL, "rag": "{{ nonsense }}"})
    profile = derive("m", files, FORMATS)
    assert profile.templates.keys() == profile.found.keys() == {DEFAULT, TOOL_USE}
    assert (profile.templates[DEFAULT].tools, profile.templates[TOOL_USE].tools) == ("drops", "yes")
    assert profile.found[DEFAULT].loops.keys() == {"plain"}
    assert profile.found[TOOL_USE].loops.keys() == {"tools", "tools_then_user"}
    assert (profile.found[DEFAULT].call, "<tool_call>" in profile.found[TOOL_USE].call) == ("", True)


def test_a_template_that_shows_no_user_message_is_refused() -> None:
    with pytest.raises(ModelFileError, match="does not show one user message"):
        derive("m", with_template("nothing"), FORMATS)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("a<|im_st", "a"),
        ("a<", "a"),
        ("a<|im_start|>", "a<|im_start|>"),
        ("a[TOOL_", "a"),
        ("a < b", "a < b"),
        ('[{"name"', '[{"name"'),
        ("", ""),
    ],
)
def test_a_marker_that_is_begun_is_cut(text: str, whole: str) -> None:
    assert whole_markers(text) == whole


def test_smollm2_s_own_file() -> None:
    file = smollm2_file()
    profile = derive("smollm2", read_model(file), FORMATS)
    assert profile.files == read_model(file).hashes
    assert profile.files.keys() == {"metadata"}
    assert (profile.format.name, profile.format.certainty) == ("plain", "told")
    assert profile.stop == (StopToken(2, "<|im_end|>"),)
    assert profile.found[DEFAULT].loops["plain"].stable
    assert "The template states no tools: set `tools: constrained`." in profile.found[DEFAULT].cannot


@needs_real
@pytest.mark.parametrize("file", REAL_FILES, ids=lambda file: file.stem)
def test_each_real_template_has_a_profile(file: Path) -> None:
    profile = derive(file.stem, with_template(file.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>"), FORMATS)
    assert profile_of(profile_values(profile)) == profile
    can, seen = profile.templates[DEFAULT], profile.found[DEFAULT]
    assert ("first_value" in seen.call) == (can.tool_calls == "yes")
    assert ("the_result" in seen.result) == (can.tool_calls == "yes")
    assert ("second_value" in seen.calls) == (can.tool_calls == can.parallel_calls == "yes")
    assert "plain" in seen.loops
    if profile.format.name == "plain":
        assert (seen.call, seen.thoughts, can.tools) == ("", None, "drops")


@needs_real
@pytest.mark.parametrize(
    ("template", "vocabulary", "settings", "expected"),
    [
        ("Qwen-Qwen3-0.6B", "qwen3", {"eos_token": "<|im_end|>"}, ("hermes", "<|im_end|>", "unopened")),
        ("Qwen3.5-4B", "qwen35", {"eos_token": "<|im_end|>"}, ("qwen35", "<|im_end|>", "open")),
        (
            "deepseek-ai-DeepSeek-V3.1",
            "deepseek",
            {"eos_token": "<｜end▁of▁sentence｜>", "bos_token": "<｜begin▁of▁sentence｜>"},
            ("deepseek_v31", "<｜end▁of▁sentence｜>", "closed"),
        ),
    ],
)
def test_real_models(
    template: str, vocabulary: Any, settings: dict[str, str], expected: tuple[str, str, str], tmp_path: Path
) -> None:
    tokenizer = deepseek_vocabulary() if vocabulary == "deepseek" else qwen_vocabulary(vocabulary)
    files = read_model(model_directory(tmp_path, tokenizer, settings, real_template(template)))
    profile = derive(template, files, FORMATS)
    seen = profile.found[DEFAULT]
    assert seen.thoughts is not None
    assert (profile.format.name, seen.turn_end, seen.thoughts.start["none"]) == expected
    assert profile.files.keys() == {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"}
    assert expected[1] in [token.text for token in profile.stop]
    assert profile_of(profile_values(profile)) == profile
