"""What a template writes between turns: the token that ends the model's, those that part them, and how a turn begins."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.real_templates import real_template
from support.vocabulary import fixed_clock, model_files

from gateway.prompt.model_files import ModelFiles
from gateway.prompt.probe import Capabilities, probe
from gateway.prompt.prompter import Prompter
from gateway.prompt.template import ChatTemplate
from gateway.prompt.turn_end import Render, answer_opener, turn_end, turn_tokens
from gateway.request import GenerateRequest, Message

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
CONTROLS = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|head|>",
    "<|body|>",
    "<|eot|>",
    "<|end|>",
    "<|start|>",
    "<|user|>",
    "[INST]",
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
LLAMA = (
    "<s>{% for m in messages %}<|head|>{{ m.role }}<|body|>\n\n{{ m.content | trim }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|body|>\n\n{% endif %}"
)
# A thought ends as an answer does, and a call ends otherwise.
HARMONY = (
    "{% for m in messages %}"
    "{% if m.thinking %}<|start|>{{ m.role }}<|body|>{{ m.thinking }}<|end|>{% endif %}"
    "{% if m.content %}<|start|>{{ m.role }}<|body|>{{ m.content }}<|end|>{% endif %}"
    "{% for call in m.tool_calls or [] %}<|start|>to={{ call.function.name }}<|body|>"
    "{{ call.function.arguments }}<|eot|>{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
# The same without thoughts: only a second call shows that the token stands within a turn.
CALLS = (
    "{% for m in messages %}<|head|>{{ m.role }}<|body|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '<|eot|>' if not loop.first }}{{ call.function | tojson }}{% endfor %}"
    "<|eot|>{% endfor %}"
)
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}\n{% endif %}{% endfor %}"
)
GLM = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
PLAIN = "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n{% endfor %}"
ONE_TURN = "{{ raise_exception('one turn only') if messages | length > 1 }}{{ messages[0].content }}<|im_end|>"
LAST_ONLY = "{{ messages[-1].content }}<|im_end|>"


def drawn(source: str) -> tuple[Render, Capabilities]:
    template = ChatTemplate(source, fixed_clock)
    can = probe(template, SPECIALS)
    without: Sequence[Mapping[str, Any]] | None = None if can.no_tools == "null" else []

    def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        given = {"messages": messages, "tools": tools or without, "documents": None, "add_generation_prompt": False}
        return template.render({**SPECIALS, **given})

    return render, can


@pytest.mark.parametrize(
    ("source", "end", "parting", "opener"),
    [
        (CHATML, "<|im_end|>", {"<|im_end|>", "<|im_start|>"}, "<|im_start|>assistant\n"),
        (LLAMA, "<|eot|>", {"<|eot|>", "<|head|>", "<|body|>"}, "<|head|>assistant<|body|>\n\n"),
        (HARMONY, None, {"<|end|>", "<|start|>", "<|body|>"}, "<|start|>assistant"),
        (CALLS, None, {"<|eot|>", "<|head|>", "<|body|>"}, ""),
        (MISTRAL, "</s>", {"</s>", "[INST]"}, ""),
        (GLM, "<|user|>", {"<|user|>"}, "<|assistant|>"),
        (PLAIN, None, set(), ""),
        (ONE_TURN, None, set(), ""),
        (LAST_ONLY, None, set(), ""),
    ],
    ids=["chatml", "llama", "harmony", "calls", "mistral", "glm", "plain", "one turn", "last only"],
)
def test_templates(source: str, end: str | None, parting: set[str], opener: str) -> None:
    render, can = drawn(source)
    assert turn_end(render, can, CONTROLS) == end
    assert turn_tokens(render, CONTROLS) == parting
    assert answer_opener(render, can.opening) == opener


def test_a_token_right_after_the_question_parts_turns() -> None:
    render, _ = drawn("{% for m in messages %}{{ m.content }}{% if m.role == 'user' %}\n<|head|><think>{% endif %}{% endfor %}")
    assert turn_tokens(render, ("<|head|>", "<think>")) == {"<|head|>"}


def test_without_control_tokens_there_is_no_end() -> None:
    render, can = drawn(CHATML)
    assert turn_end(render, can, ()) is None
    assert turn_tokens(render, ()) == frozenset()


def prompter(files: ModelFiles) -> Prompter:
    return Prompter(files, tools="native", syntax=None, clock=fixed_clock)


def test_an_end_that_only_the_template_shows_is_a_stop_id_and_a_warning() -> None:
    undeclared = prompter(model_files("full", eos_token_id=0))
    assert undeclared.stop_ids == {0, 2}
    (warning,) = undeclared.warnings
    assert "<|im_end|> (id 2), which the model's files do not declare" in warning
    prompt = undeclared.prompt(GenerateRequest("m", (Message("user", "hi"),)))
    assert prompt.stop_ids == {0, 2}
    declared = prompter(model_files("full"))
    assert declared.stop_ids == {0, 2}
    assert declared.warnings == ()


FOUND: Mapping[str, str | None] = {
    "GLM-4.6": "<|user|>",
    "Kimi-K2-Thinking": "<|im_end|>",
    "Mistral-Small-3.2-24B-Instruct-2506": "</s>",
    "Qwen-Qwen3-0.6B": "<|im_end|>",
    "Qwen3-Coder": "<|im_end|>",
    "Qwen3.5-4B": "<|im_end|>",
    "deepseek-ai-DeepSeek-V3.1": "<｜end▁of▁sentence｜>",
    "deepseek-ai-DeepSeek-V4": "<｜end▁of▁sentence｜>",
    "google-gemma-2-2b-it": "<end_of_turn>",
    "google-gemma-4-31B-it": "<turn|>",
    "ibm-granite-granite-3.3-2B-Instruct": "<|end_of_text|>",
    "meta-llama-Llama-3.1-8B-Instruct": "<|eot_id|>",
    "microsoft-Phi-3.5-mini-instruct": "<|end|>",
    "openai-gpt-oss-120b": None,
}
WRITTEN = (
    *filter(None, FOUND.values()),
    *(
        "<|im_start|>",
        "<|end|>",
        "<|start|>",
        "<|message|>",
        "<|channel|>",
        "<|call|>",
        "<|assistant|>",
        "<|observation|>",
        "[INST]",
    ),
    *(
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_middle|>",
        "<|eom_id|>",
        "<|start_header_id|>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<|turn>",
    ),
)


@pytest.mark.parametrize("name", FOUND)
def test_real_templates(name: str) -> None:
    render, can = drawn(real_template(name))
    assert turn_end(render, can, WRITTEN) == FOUND[name]
