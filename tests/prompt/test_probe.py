from pathlib import Path

import pytest
from support.real_templates import REAL_FILES, needs_real, real_template
from support.vocabulary import fixed_clock, template_text

from gateway.errors import ModelFileError
from gateway.prompt.probe import Capabilities, probe
from gateway.prompt.template import ChatTemplate

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}


def probed(source: str) -> Capabilities:
    return probe(ChatTemplate(source, fixed_clock), SPECIALS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "full",
            Capabilities("yes", "yes", "yes", "yes", "yes", "yes", "yes", "yes", "yes", "object", "text", "empty",
                         "reasoning_content", "<|im_start|>assistant\n"),
        ),
        (
            "echo",
            Capabilities("yes", "yes", "no", "no", "yes", "drops", "drops", "drops", "yes", "object", "wrapped", "empty",
                         None, "<|im_start|>assistant\n", old_thoughts="drops", open_calls="drops"),
        ),
        (
            "strict",
            Capabilities("raises", "raises", "raises", "raises", "raises", "drops", "drops", "raises", "raises", "object",
                         "wrapped", "empty", None, "", consecutive_assistants="raises", old_thoughts="drops",
                         first_answer="raises", first_beside_tools="raises", open_calls="drops",
                         refusals={
                             "first_answer": "Turns must go user, assistant, user, assistant.",
                             "parallel_calls": "Turns must go user, assistant, user, assistant.",
                             "tool_results": "Turns must go user, assistant, user, assistant.",
                         }),
        ),
        (
            "dropping",
            Capabilities("yes", "drops", "drops", "drops", "yes", "yes", "yes", "drops", "yes", "object", "wrapped",
                         "empty", None, "<|im_start|>assistant\n<think>\n", called_text="before", old_thoughts="drops"),
        ),
        (
            "text_arguments",
            Capabilities("yes", "yes", "no", "no", "yes", "yes", "yes", "yes", "yes", "text", "text", "absent",
                         None, "<|im_start|>assistant\n", called_text="before", old_thoughts="drops", no_tools="empty"),
        ),
    ],
)  # fmt: skip
def test_what_each_of_our_templates_can(name: str, expected: Capabilities) -> None:
    assert probed(template_text(name)) == expected


def test_a_call_s_empty_content_may_have_to_be_null() -> None:
    source = (
        "{% for m in messages %}{% if m.tool_calls %}{% if m.content is not none %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert probed(source).no_content == "null"


CALLS = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"


def each_message(body: str, head: str = "{{ (tools or []) | tojson }}") -> str:
    """A template that writes this of each message `m`."""
    return f"{head}{{% for m in messages %}}{body}{{% endfor %}}"


@pytest.mark.parametrize(
    ("source", "field", "value"),
    [
        (
            each_message(
                "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}"
                "{{ c.function | tojson }}{% endfor %}{{ m.content }}"
            ),
            "call_ids",
            "nine",
        ),
        (each_message(CALLS + "{{ m.content }}"), "call_ids", "any"),
        (each_message("{{ m.content }}" + CALLS), "called_text", "beside"),
        (each_message("{% if m.tool_calls %}" + CALLS + "{% else %}{{ m.content }}{% endif %}"), "called_text", "before"),
        (
            each_message("{% if m.tool_calls %}{{ m.thinking }}" + CALLS + "{% else %}{{ m.content }}{% endif %}"),
            "called_text",
            "thought",
        ),
        (
            each_message(
                "{% if m.tool_calls %}" + CALLS + "{% elif m.role == 'tool' %}{{ m.content }}{% else %}"
                "{% if m.role == s.last %}{{ raise_exception('twice') }}{% endif %}"
                "{% set s.last = m.role %}{{ m.content }}{% endif %}",
                head="{{ (tools or []) | tojson }}{% set s = namespace(last='') %}",
            ),
            "called_text",
            "nowhere",
        ),
        (each_message("{{ m.content }}{% if thinking %}{{ m.reasoning }}{% endif %}"), "hides_thoughts", {None, False}),
        (
            each_message("{{ m.content }}{% if enable_thinking is not defined or enable_thinking %}{{ m.reasoning }}{% endif %}"),
            "hides_thoughts",
            {False},
        ),
        (
            each_message(
                "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
                "{{ part.text or part.thinking }}{% endfor %}{% endif %}"
            ),
            "reasoning",
            "content",
        ),
        (each_message("{{ m.content }}"), "reasoning", None),
        (each_message("{{ m.content.split('</think>')[-1] }}"), "cuts_at", {"</think>"}),
        (each_message("{{ m.content }}", head=""), "cuts_at", set()),
        (
            each_message("{{ m.content }}",
                         head="{% for t in tools or [] %}{{ t.function.name + t.function.description }}{% endfor %}"),
            "tool_keys",
            {"description"},
        ),
        (
            each_message("{{ m.content }}", head="{% for t in tools or [] %}{{ t.function | tojson }}"
                         "{{ t.function.parameters.properties.items() | list | length }}{% endfor %}"),
            "tool_keys",
            {"properties"},
        ),
        (each_message("{{ m.content }}", head="{{ tools | length }}"), "no_tools", "empty"),
        (
            each_message("{% if m.role == 'system' %}{% if messages[-1].role == 'user' %}{{ m.content }}{% endif %}"
                         "{% else %}{{ m.content }}" + CALLS + "{% endif %}"),
            "system",
            "drops",
        ),
        (
            each_message("{% if m.role == 'system' %}{% set s.text = m.content %}{% else %}{{ m.content }}{% endif %}",
                         head="{% set s = namespace(text='') %}") + "{{ s.text }}",
            "later_system",
            "drops",
        ),
        (
            each_message("{% if m.role == 'assistant' and not m.content %}{{ raise_exception('empty') }}{% endif %}"
                         "{{ m.content }}"),
            "empty_answer",
            "raises",
        ),
        (
            each_message("{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}{{ m.content }}"),
            "refusals",
            {"tool_calls": "no calls", "tool_results": "no calls", "parallel_calls": "no calls", "open_calls": "no calls"},
        ),
        (
            each_message("{{ m.content }}"
                         "{% for c in m.tool_calls or [] %}{{ c.function.name ~ c.function.arguments }}{% endfor %}"),
            "arguments",
            "text",
        ),
    ],
)  # fmt: skip
def test_what_a_template_s_own_rules_are(source: str, field: str, value: object) -> None:
    assert getattr(probed(source), field) == value


def test_the_opening_is_what_every_thinking_switch_leaves() -> None:
    source = (
        "{{ messages[0].content }}{% if add_generation_prompt %}<A>"
        "{% if thinking %}<think>{% elif thinking is defined %}{{ raise_exception('only true') }}"
        "{% else %}</think>{% endif %}{% endif %}"
    )
    assert probed(source).opening == "<A><"


def test_a_template_that_ends_the_turn_without_a_generation_prompt() -> None:
    source = "{{ messages[0].content }}{% if add_generation_prompt %}[assistant]{% else %}</s>{% endif %}"
    assert probed(source).opening == "[assistant]"


@pytest.mark.parametrize("source", ["{{ raise_exception('never') }}", "nothing", "{{ messages[0].parts[3].x }}"])
def test_a_template_that_cannot_show_a_user_message_is_refused(source: str) -> None:
    with pytest.raises(ModelFileError, match="does not show one user message"):
        probed(source)


def test_a_template_that_refuses_a_generation_prompt_is_refused() -> None:
    refusal = "{% if add_generation_prompt %}{{ raise_exception('not me') }}{% endif %}"
    source = f"{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{refusal}"
    with pytest.raises(ModelFileError, match=r"refuses to begin the model's turn \(add_generation_prompt\): .*not me"):
        probed(source)


@needs_real
@pytest.mark.parametrize("file", REAL_FILES, ids=lambda file: file.stem)
def test_every_real_template_compiles_and_is_probed(file: Path) -> None:
    can = probed(file.read_text())
    assert can.system in {"yes", "raises"} or "Nemo" in file.stem
    if "add_generation_prompt" in file.read_text():
        assert (
            can.opening
            or can.consecutive_users == "raises"
            or "START_OF_TURN" in file.read_text()
            or "[INST]" in file.read_text()
        )


@needs_real
@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("google-gemma-2-2b-it", "system", "raises"),
        ("openai-gpt-oss-120b", "developer", "yes"),
        ("openai-gpt-oss-120b", "later_developer", "drops"),
        ("openai-gpt-oss-120b", "reasoning", "thinking"),
        ("Qwen-Qwen3-0.6B", "developer", "drops"),
        ("Qwen-Qwen3-0.6B", "reasoning", "reasoning_content"),
        ("meta-llama-Llama-3.1-8B-Instruct", "parallel_calls", "raises"),
        ("ibm-granite-granite-3.3-2B-Instruct", "tool_calls", "drops"),
        ("trl-deepseekv3", "arguments", "text"),
        ("Qwen3-Coder", "broken_arguments", "wrapped"),
        ("trl-gemma3", "tools", "drops"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "opening", ""),
        ("mistralai-Mistral-Nemo-Instruct-2407", "system", "drops"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "system_beside", "last"),
        ("trl-gemma3", "system_beside", "first"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "called_text", "nowhere"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "call_ids", "nine"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "consecutive_assistants", "raises"),
        ("Mistral-Small-3.2-24B-Instruct-2506", "call_ids", "nine"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "call_ids", "any"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "reasoning", "content"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "empty_answer", "raises"),
        ("moonshotai-Kimi-K2", "call_ids", "any"),
        ("moonshotai-Kimi-K2", "reasoning", None),
        ("mistralai-Mistral-Nemo-Instruct-2407", "first_answer", "raises"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "open_calls", "raises"),
        ("Qwen-Qwen3-0.6B", "open_calls", "yes"),
        ("openai-gpt-oss-120b", "called_text", "thought"),
        ("openai-gpt-oss-120b", "tool_keys", {"description"}),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "called_text", "thought"),
        ("meta-llama-Llama-3.1-8B-Instruct", "called_text", "before"),
        ("Qwen3.5-4B", "called_text", "beside"),
        ("Qwen3.5-4B", "cuts_at", {"</think>"}),
        ("Qwen3-Coder", "cuts_at", set()),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "cuts_at", {"</think>"}),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "later_system", "drops"),
        ("deepseek-ai-DeepSeek-V4", "reasoning", "reasoning_content"),
        ("deepseek-ai-DeepSeek-V4", "hides_thoughts", {None, False}),
        ("ByteDance-Seed-OSS", "tool_keys", {"properties"}),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "no_tools", "empty"),
    ],
)
def test_what_is_known_of_real_templates(name: str, field: str, value: str) -> None:
    assert getattr(probed(real_template(name)), field) == value
