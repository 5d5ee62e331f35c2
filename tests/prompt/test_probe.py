from pathlib import Path

import pytest
from support.vocabulary import fixed_clock, template_text

from gateway.errors import ModelFileError
from gateway.prompt.probe import Capabilities, probe
from gateway.prompt.template import ChatTemplate

REAL = Path(__file__).parents[3] / "shared" / "templates"
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
            Capabilities("yes", "yes", "no", "no", "yes", "no", "no", "no", "yes", "object", "wrapped", "empty",
                         None, "<|im_start|>assistant\n"),
        ),
        (
            "strict",
            Capabilities("raises", "raises", "raises", "raises", "raises", "no", "no", "raises", "raises", "object",
                         "wrapped", "empty", None, ""),
        ),
        (
            "dropping",
            Capabilities("yes", "no", "no", "no", "yes", "yes", "yes", "no", "yes", "object", "wrapped", "empty",
                         None, "<|im_start|>assistant\n<think>\n"),
        ),
        (
            "text_arguments",
            Capabilities("yes", "yes", "no", "no", "yes", "yes", "yes", "yes", "yes", "text", "text", "absent",
                         None, "<|im_start|>assistant\n"),
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


needs_real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real templates are not here ({REAL})")


@needs_real
@pytest.mark.parametrize("file", sorted(REAL.glob("*.jinja")) or [REAL], ids=lambda file: file.stem)
def test_every_real_template_compiles_and_is_probed(file: Path) -> None:
    can = probed(file.read_text())
    assert can.system in {"yes", "raises"}
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
        ("openai-gpt-oss-120b", "later_developer", "no"),
        ("openai-gpt-oss-120b", "reasoning", "thinking"),
        ("Qwen-Qwen3-0.6B", "developer", "no"),
        ("Qwen-Qwen3-0.6B", "reasoning", "reasoning_content"),
        ("meta-llama-Llama-3.1-8B-Instruct", "parallel_calls", "raises"),
        ("ibm-granite-granite-3.3-2B-Instruct", "tool_calls", "no"),
        ("trl-deepseekv3", "arguments", "text"),
        ("Qwen3-Coder", "broken_arguments", "wrapped"),
        ("trl-gemma3", "tools", "no"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "opening", ""),
    ],
)
def test_what_is_known_of_real_templates(name: str, field: str, value: str) -> None:
    assert getattr(probed((REAL / f"{name}.jinja").read_text()), field) == value
