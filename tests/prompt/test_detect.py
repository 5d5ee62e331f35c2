"""The format told from the template: sure, or a question to the operator."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from support.vocabulary import fixed_clock, model_files, template_text

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.registry import by_name, load
from gateway.formats.spec import Block, FormatSpec, Marker
from gateway.prompt.detect import FormatUnknown, detect_format
from gateway.prompt.prompter import Prompter
from gateway.prompt.source import DEFAULT

FORMATS = load()
REAL = Path(__file__).parents[3] / "shared" / "templates"
FULL, TAGGED = template_text("full"), template_text("tagged")
# What these models write is what their makers say; every other template of the folder must be left to the operator.
KNOWN = {
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "trl-qwen3": "hermes",
    "trl-qwen3_instruct_2507": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "google-gemma-2-2b-it": "plain",
    "microsoft-Phi-3.5-mini-instruct": "plain",
    "trl-gemma3": "plain",
    "trl-llama3": "plain",
}


def prompter(source: str) -> Prompter:
    files = replace(model_files("echo"), templates={DEFAULT: source}, context_tokens=None)
    return Prompter(files, tools="native", syntax=None, clock=fixed_clock)


def detected(source: str) -> str:
    return detect_format(prompter(source), source, FORMATS).name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (FULL, "hermes"),
        (FULL.replace("'<|im_start|>assistant\\n' -}}", "'<|im_start|>assistant\\n<think>\\n' -}}"), "hermes"),
        (TAGGED, "qwen3_coder"),
        (template_text("echo"), "plain"),
        (template_text("strict"), "plain"),
    ],
)
def test_what_the_template_writes_is_read_back_by_one_format(source: str, name: str) -> None:
    assert detected(source) == name


THINKS = "{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (template_text("dropping"), "no formats of this version read what the template writes, a tool call: name the format"),
        (template_text("text_arguments"), "no formats of this version read what the template writes, a tool call: "),
        (FULL.replace('"arguments"', '"args"'), "no formats of this version read"),
        (FULL.replace("tool_call>", "invoke>"), "no formats of this version read"),
        (
            TAGGED.replace("{{- message.content or", THINKS + "{{- message.content or"),
            "a tool call and thoughts: name the format",
        ),
        (template_text("echo") + "{# </think> #}", "the model thinks, but its template shows no tool calls"),
    ],
)
def test_a_template_that_does_not_tell_is_a_question(source: str, said: str) -> None:
    with pytest.raises(FormatUnknown) as caught:
        detected(source)
    assert said in str(caught.value)


def test_two_formats_that_fit_are_a_question() -> None:
    markers = Block(Marker("<tool_call>", token=True), Marker("</tool_call>", token=True), JsonInWrapper())
    twins = by_name([FormatSpec(name="one", blocks=(markers,)), FormatSpec(name="two", blocks=(markers,)), FormatSpec("plain")])
    source = FULL.replace(THINKS.strip(), "").replace("<think>\n\n</think>", "")
    assert "</think>" not in source
    with pytest.raises(FormatUnknown, match=r"2 formats of this version \(one, two\) read"):
        detect_format(prompter(source), source, twins)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real templates are not at {REAL}")
def test_real_templates_are_told_or_left_open() -> None:
    found: dict[str, str] = {}
    for file in sorted(REAL.glob("*.jinja")):
        with contextlib.suppress(FormatUnknown):
            found[file.stem] = detected(file.read_text())
    assert found == KNOWN
