"""Where a parser says that it is within a thought: there, and only there, the gateway may end it."""

import pytest

from gateway.formats import registry
from gateway.formats.base import ParseOptions
from gateway.formats.compiled import CompiledFormat
from gateway.request import ContentText, ReasoningText, ToolSpec, Usage

FORMATS = {form.name: form for form in registry.load().values() if isinstance(form, CompiledFormat)}
THOUGHT = "Let me look."


def opened(name: str) -> str:
    """The end of a prompt that has opened the thought."""
    reasoning = FORMATS[name].program.spec.reasoning
    return reasoning.opener.text if reasoning is not None else "<|start|>assistant<|channel|>analysis<|message|>"


@pytest.mark.parametrize("name", sorted(name for name, form in FORMATS.items() if form.thought_closer))
def test_a_thought_that_is_ended_by_its_closer_goes_on_as_an_answer(name: str) -> None:
    form = FORMATS[name]
    parser = form.parser(ParseOptions(prompt_tail=opened(name)))
    thinking, deltas = [parser.thinking], []
    for piece in (THOUGHT, form.thought_closer):
        deltas += parser.feed(piece)
        thinking.append(parser.thinking)
    assert thinking == [True, True, False]
    body = "<|channel|>final<|message|>" if name == "gpt_oss" else ""
    deltas += parser.feed(f"{body}Done.")
    deltas += parser.finish("stop", Usage())
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningText)) == THOUGHT
    assert "".join(delta.text for delta in deltas if isinstance(delta, ContentText)) == "Done."


@pytest.mark.parametrize(
    ("name", "raw", "thinking"),
    [
        ("qwen35", "a thought", True),
        ("qwen35", "a thought \n\n", True),
        ("qwen35", "a thought </thi", False),
        ("qwen35", "a thought <tool_call>", False),
        ("qwen35", "a thought <tool_call>\n<function=look>\n<parameter=path>\nx", False),
        ("qwen35", "a thought <tool_call>\n<function=look>\n</function>\n</tool_call>", False),
        ("qwen35", "a thought <tool_call> it is no call", True),
        ("hermes", "<think>", True),
        ("hermes", "<thin", False),
        ("hermes", "content", False),
        ("plain", "content", False),
        ("gpt_oss", "<|channel|>analysis", False),
        ("gpt_oss", "<|channel|>analysis<|message|>hm", True),
        ("gpt_oss", "<|channel|>analysis<|message|>hm<|end|>", False),
        ("gpt_oss", "<|channel|>analysis<|message|>hm<|end|> is how it ends", True),
        ("gpt_oss", "<|channel|>final<|message|>hm", False),
    ],
)
def test_neither_in_a_marker_nor_in_what_may_be_a_call(name: str, raw: str, thinking: bool) -> None:
    tail = {"qwen35": "<think>\n", "gpt_oss": "<|start|>assistant"}.get(name, "")
    parser = FORMATS[name].parser(ParseOptions(tools=(ToolSpec("look"),), prompt_tail=tail))
    for character in raw:
        parser.feed(character)
    assert parser.thinking is thinking
