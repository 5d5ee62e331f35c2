"""How templates end a thought: their own text, where they show it, up to where a text and a call may both follow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.real_templates import real_template
from support.vocabulary import fixed_clock, model_files

from gateway.prompt.probe import probe, shown_thinking
from gateway.prompt.prompter import Prompter
from gateway.prompt.template import ChatTemplate
from gateway.prompt.thought_end import ThoughtEnd, thought_end

FAMILIES = Path(__file__).parents[1] / "data" / "families"
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
HARMONY = ThoughtEnd("<|end|><|start|>assistant", "<|end|><|start|>assistant<|channel|>final<|message|>")

SPLIT = (  # a text and a call follow in different ways
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}{{ m.reasoning_content }}{{ '</think>' if m.tool_calls else '\n</think>\n' }}{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|eot|>{% endfor %}"
)


def end_of(source: str, closer: str) -> ThoughtEnd | None:
    template = ChatTemplate(source, fixed_clock)
    can = probe(template, SPECIALS)
    without: list[Any] | None = None if can.no_tools == "null" else []

    def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        given = {"messages": messages, "tools": tools or without, "documents": None, "add_generation_prompt": False}
        return template.render({**SPECIALS, **shown_thinking(can.hides_thoughts), **given})

    return thought_end(render, can, closer)


def both(text: str) -> ThoughtEnd:
    return ThoughtEnd(text, text)


@pytest.mark.parametrize(
    ("name", "closer", "expected"),
    [
        ("qwen3", "</think>", both("\n</think>\n\n")),
        ("glm4_6", "</think>", both("</think>\n")),
        ("glm4_7", "</think>", both("</think>")),
        ("deepseek_v3_2", "</think>", both("</think>")),
        ("seed_oss", "</seed:think>", both("</seed:think>\n")),
        ("gemma4", "<channel|>", both("\n<channel|>")),
        ("gpt_oss", HARMONY.before_any, both(HARMONY.before_any)),
        ("gpt_oss", "</think>", None),
        ("llama3_1", "</think>", None),
    ],
)
def test_our_own_templates(name: str, closer: str, expected: ThoughtEnd | None) -> None:
    assert end_of((FAMILIES / name / "template.jinja").read_text(), closer) == expected


@pytest.mark.parametrize(
    ("name", "closer", "expected"),
    [
        ("Qwen-Qwen3-0.6B", "</think>", both("\n</think>\n\n")),
        ("Qwen3.5-4B", "</think>", both("\n</think>\n\n")),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "</think>", both("\n</think>\n")),
        ("GLM-4.6", "</think>", both("</think>\n")),
        ("GLM-5.2", "</think>", both("</think>")),
        ("deepseek-ai-DeepSeek-V4", "</think>", both("</think>")),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[/THINK]", both("[/THINK]")),
        ("google-gemma-4-31B-it", "<channel|>", both("\n<channel|>")),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "<|END_THINKING|>", both("<|END_THINKING|>")),
        ("openai-gpt-oss-120b", HARMONY.before_any, HARMONY),
        ("Kimi-K2-Thinking", "</think>", None),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "</think>", None),
    ],
)
def test_real_templates(name: str, closer: str, expected: ThoughtEnd | None) -> None:
    assert end_of(real_template(name), closer) == expected


def test_where_a_text_and_a_call_share_no_whole_end_that_of_a_text_is_taken() -> None:
    assert end_of(SPLIT, "</think>") == both("\n</think>\n")


def test_a_template_that_shows_no_thought_leaves_the_formats_own_closer() -> None:
    def prompter(template: str) -> Prompter:
        return Prompter(model_files(template), tools="native", syntax=None, clock=fixed_clock)

    assert prompter("echo").thought_end("</think>") == both("</think>")
    assert prompter("full").thought_end("</think>") == both("</think>")
    assert prompter("full").thought_end("") is None
