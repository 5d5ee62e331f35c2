"""The format told from the template: sure, or a question to the operator."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.real_templates import REAL_FILES, needs_real
from support.vocabulary import fixed_clock, model_files, template_text

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.registry import by_name, load
from gateway.formats.spec import Block, FormatSpec, Marker
from gateway.prompt.detect import FormatUnknown, detect_format
from gateway.prompt.model_files import DEFAULT, TOOL_USE
from gateway.prompt.prompter import Prompter

FORMATS = load()
FAMILY_FILES = sorted((Path(__file__).parents[1] / "data" / "families").glob("*/template.jinja"))
FULL, TAGGED = template_text("full"), template_text("tagged")
# What these models write is what their makers say; the rest of the folder is left to the operator, for the reasons in UNSURE.
KNOWN = {
    "Apertus-8B-Instruct": "apertus",
    "ByteDance-Seed-OSS": "seed_oss",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_command4",
    "GLM-4.6": "glm45",
    "GLM-4.7-Flash": "glm47",
    "GLM-5.2": "glm47",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral_v13",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen35",  # nemotron_v3 under its first name
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen35",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "google-gemma-2-2b-it": "plain",
    "google-gemma-4-31B-it": "gemma4",
    "meetkai-functionary-medium-v3.1": "functionary_v31",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
    "microsoft-Phi-3.5-mini-instruct": "plain",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral_v13",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral_v3",
    "moonshotai-Kimi-K2": "kimi_k2",
    "openai-gpt-oss-120b": "gpt_oss",
    "stepfun-ai-Step-3.5-Flash": "qwen35",
    "trl-deepseekv3": "deepseek_v3",
    "trl-gemma3": "plain",
    "trl-lfm2_2_5": "lfm2",
    "trl-llama3": "plain",
    "trl-qwen3": "hermes",
    "trl-qwen3_6": "qwen35",
    "trl-qwen3_instruct_2507": "hermes",
    "unsloth-mistral-Devstral-Small-2507": "mistral_v13",
}
UNSURE = {
    "HuggingFaceTB-SmolLM3-3B": "the model thinks, but its template shows no tool calls",
    "Kimi-K2-Thinking": "its template shows no tool calls to tell its format by ('append' of list is not among",
    "ibm-granite-granite-3.3-2B-Instruct": "the model thinks and is told of tools, but its template shows no tool calls",
}
# Our own small templates of the families: what writes as two formats do is told by the one that more models write.
FAMILIES = {
    **{name: name for name in ("apertus", "deepseek_v3", "deepseek_v4", "gemma4", "gpt_oss", "kimi_k2", "minimax_m2")},
    **{name: name for name in ("mistral_v13", "mistral_v3", "qwen3_coder", "seed_oss")},
    **dict.fromkeys(("chatml", "gemma2", "gemma3", "llama3", "phi3_5"), "plain"),
    **dict.fromkeys(("granite4", "hermes3", "qwen2_5", "qwen3", "qwq"), "hermes"),
    **dict.fromkeys(("nemotron3", "qwen3_5", "step3_5"), "qwen35"),
    "command_r7b": "cohere_command4",
    "deepseek_r1": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v31",
    "deepseek_v3_2": "deepseek_v32",
    "functionary3_1": "functionary_v31",
    "glm4_6": "glm45",
    "glm4_7": "glm47",
    "glm5": "glm47",
    "kimi_k2_thinking": "kimi_k2",
    "lfm2_5": "lfm2",
    "llama3_1": "llama3_json",
    "mistral_v11": "mistral_v13",
}
FAMILIES_UNSURE = {
    "granite3_3": "the model thinks and is told of tools, but its template shows no tool calls",
    "smollm3": "the model thinks, but its template shows no tool calls",
}

THINKS = "{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}\n"


# Templates of our own that write as these models do. TURN is an assistant's turn, OPENING what the model goes on after.
SPEAKS = """
{%- if tools %}[tools]{% for tool in tools %}{{ tool.function | tojson }}
{% endfor %}[/tools]{% endif -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' %}TURN{% else -%}
        {{- '<|start|>' ~ message.role ~ '<|message|>' ~ message.content ~ '<|eot|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}OPENING{% endif -%}
"""
IFM_VALUES = """
{{- call.function.name ~ '\\n' -}}
{%- for key, value in call.function.arguments.items() -%}
    {{- '<ifm|arg_key>' ~ key ~ '</ifm|arg_key>\\n' -}}
    {{- '<ifm|arg_value>' ~ (value if value is string else value | tojson) ~ '</ifm|arg_value>\\n' -}}
{%- endfor -%}"""
IFM_JSON = """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}"""
K2_HORIZON = """
{{- '<|start|>assistant<|message|><ifm|think>\\n' ~ (message.reasoning_content or '') ~ '</ifm|think>' -}}
{{- message.content or '' -}}
{%- if message.tool_calls %}<ifm|tool_calls>
    {%- for call in message.tool_calls -%}
        {{- '\\n<ifm|tool_call>' }}CALL{{ '</ifm|tool_call>' -}}
    {%- endfor -%}
{{- '\\n</ifm|tool_calls>' }}{% endif -%}
{{- '<|eot|>' -}}"""
MUSE = """
{%- if message.reasoning_content -%}
    {{- '<|start|>assistant to=self<|message|>' ~ message.reasoning_content ~ '<|eom|>' -}}
{%- endif -%}
{%- if message.content %}{{ '<|start|>assistant to=user<|message|>' ~ message.content ~ '<|eot|>' }}{% endif -%}
{%- for call in message.tool_calls or [] -%}
    {{- '<|start|>assistant to=' ~ call.function.name ~ '<|message|><atem:function_calls>\\n' -}}
    {{- '<atem:invoke name="' ~ call.function.name ~ '">\\n' -}}
    {%- for key, value in call.function.arguments.items() -%}
        {{- '<atem:parameter name="' ~ key ~ '">' ~ (value if value is string else value | tojson) ~ '</atem:parameter>\\n' -}}
    {%- endfor -%}
    {{- '</atem:invoke>\\n</atem:function_calls><|eom|>' -}}
{%- endfor -%}"""
FUNCTIONARY = """
{{- '<|start|>assistant<|message|>' -}}
{%- if message.content %}{{ '>>>all\\n' ~ message.content }}{% endif -%}
{%- for call in message.tool_calls or [] -%}
    {{- '>>>' ~ call.function.name ~ '\\n' ~ (call.function.arguments | tojson) -}}
{%- endfor -%}
{{- '<|eot|>' -}}"""
HUNYUAN = """
{%- set x = ':5f' -%}
{{- '<|start|>assistant<|message|><think{}>'.format(x) ~ (message.reasoning_content or '') ~ '</think{}>'.format(x) -}}
{{- message.content or '' -}}
{%- if message.tool_calls -%}
    {{- '\\n<tool_calls{}>\\n'.format(x) -}}
    {%- for call in message.tool_calls -%}
        {{- '<tool_call{}>'.format(x) ~ call.function.name ~ '\\n' -}}
        {%- for key, value in call.function.arguments.items() -%}
            {{- '<arg_key{0}>{1}</arg_key{0}>\\n<arg_value{0}>{2}</arg_value{0}>\\n'.format(x, key, value) -}}
        {%- endfor -%}
        {{- '</tool_call{}>\\n'.format(x) -}}
    {%- endfor -%}
    {{- '</tool_calls{}>'.format(x) -}}
{%- endif -%}
{{- '<|eot|>' -}}"""
INKLING = """
{%- if message.reasoning_content -%}
    {{- '<|message_model|><|content_thinking|>' ~ message.reasoning_content ~ '<|end_message|>' -}}
{%- endif -%}
{%- if message.content %}{{ '<|message_model|><|content_text|>' ~ message.content ~ '<|end_message|>' }}{% endif -%}
{%- for call in message.tool_calls or [] -%}
    {{- '<|message_model|>' ~ call.function.name ~ '<|content_invoke_tool_json|>' -}}
    {"name": "{{ call.function.name }}", "args": {{ call.function.arguments | tojson }}}{{ '<|end_message|>' -}}
{%- endfor -%}
{{- '<|content_model_end_sampling|>' -}}"""

CALL = '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
ERNIE = f"""
{{%- if message.reasoning_content %}}<think>{{{{ message.reasoning_content }}}}</think>{{% endif -%}}
<response>{{{{ message.content or '' }}}}</response>
{{%- for call in message.tool_calls or [] %}}<tool_call>{CALL}</tool_call>{{% endfor -%}}"""
UNKNOWN_CLOSER = f"""
{{{{- message.content or '' -}}}}
{{%- for call in message.tool_calls or [] %}}<function_call>{CALL}</function_call>{{% endfor -%}}"""


def speaks(turn: str, opening: str = "<|start|>assistant<|message|>") -> str:
    return SPEAKS.replace("TURN", turn).replace("OPENING", opening)


def prompter(source: str) -> Prompter:
    files = replace(model_files("echo"), templates={DEFAULT: source}, context_tokens=None)
    return Prompter(files, tools="native", syntax=None, clock=fixed_clock)


def detected(source: str) -> str:
    return detect_format(prompter(source), FORMATS).name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (FULL, "hermes"),
        (FULL.replace("'<|im_start|>assistant\\n' -}}", "'<|im_start|>assistant\\n<think>\\n' -}}"), "hermes"),
        (TAGGED, "qwen3_coder"),
        (TAGGED.replace("{{- message.content or", THINKS + "{{- message.content or"), "qwen35"),
        (template_text("echo"), "plain"),
        (template_text("strict"), "plain"),
        (speaks(K2_HORIZON.replace("CALL", IFM_VALUES), "<|start|>assistant<|message|><ifm|think>\n"), "k2_horizon"),
        (speaks(K2_HORIZON.replace("CALL", IFM_JSON), "<|start|>assistant<|message|><ifm|think>\n"), "k2_horizon"),
        (speaks(MUSE, "<|start|>assistant"), "muse_glimmer"),
        (speaks(FUNCTIONARY, "<|start|>assistant<|message|>>>>"), "functionary_v32"),
        (speaks(HUNYUAN, "<|start|>assistant<|message|>"), "hy_v3:5f"),
        (speaks(HUNYUAN.replace("{}>", ":opensource>").replace("':5f'", "':opensource'")), "hy_v3_opensource"),
        (speaks(HUNYUAN.replace("{}>", ">").replace("':5f'", "''")), "hy_v3"),
        (speaks(INKLING, "<|message_model|>"), "inkling"),
        (speaks(ERNIE), "ernie45"),
    ],
)
def test_what_the_template_writes_is_read_back_by_one_format(source: str, name: str) -> None:
    assert detected(source) == name


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (template_text("dropping"), "no formats of this version read what the template writes, a tool call: name the format"),
        (template_text("text_arguments"), "no formats of this version read what the template writes, a tool call: "),
        (FULL.replace('"arguments"', '"args"'), "no formats of this version read"),
        (FULL.replace("tool_call>", "invoke>"), "no formats of this version read"),
        (speaks(UNKNOWN_CLOSER), "no formats of this version read"),  # whose tags would be in each answer
        (template_text("echo") + "{# </think> #}", "the model thinks, but its template shows no tool calls"),
        (
            "{{ tools | tojson }}" + template_text("echo"),
            "the model is told of tools, but its template shows no tool calls to tell its format by: name the format",
        ),
        (
            FULL.replace("message.tool_calls", "(message.tool_calls and raise_exception('None here.'))"),
            "its template shows no tool calls to tell its format by (None here.): name the format",
        ),
    ],
)
def test_a_template_that_does_not_tell_is_a_question(source: str, said: str) -> None:
    with pytest.raises(FormatUnknown) as caught:
        detected(source)
    assert said in str(caught.value)


def test_two_formats_that_fit_are_a_question_unless_only_their_names_differ() -> None:
    block = Block(Marker("<tool_call>", token=True), Marker("</tool_call>", token=True), JsonInWrapper())
    one, two = (FormatSpec(name=name, aliases=("other",) * (name == "two"), blocks=(block,)) for name in ("one", "two"))
    source = FULL.replace(THINKS.strip(), "").replace("<think>\n\n</think>", "")
    assert "</think>" not in source
    assert detect_format(prompter(source), by_name([one, two, FormatSpec("plain")])).name == "two"
    unlike = by_name([one, replace(two, call_ids="nine_alnum"), FormatSpec("plain")])
    with pytest.raises(FormatUnknown, match=r"2 formats of this version \(one, two\) read"):
        detect_format(prompter(source), unlike)


def test_a_template_that_states_no_tools_is_told_by_the_calls_of_its_history() -> None:
    source = TAGGED.replace("{%- if tools %}", "{%- if false %}")
    assert prompter(source).capabilities.tools == "drops"
    assert detected(source) == "qwen3_coder"


def told(sources: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The formats of these templates, and why those of others are not told."""
    found: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for name, source in sources.items():
        try:
            found[name] = detected(source)
        except FormatUnknown as unknown:
            unsure[name] = str(unknown)
    return found, unsure


def check(sources: Mapping[str, str], known: Mapping[str, str], why: Mapping[str, str]) -> None:
    found, unsure = told(sources)
    assert found == known
    assert unsure.keys() == why.keys()
    assert [(name, text) for name, text in unsure.items() if why[name] not in text] == []


def test_each_of_our_families_is_told_or_it_is_said_why_not() -> None:
    check({file.parent.name: file.read_text() for file in FAMILY_FILES}, FAMILIES, FAMILIES_UNSURE)


@needs_real
def test_each_real_template_is_told_or_it_is_said_why_not() -> None:
    check({file.stem: file.read_text() for file in REAL_FILES}, KNOWN, UNSURE)


def test_the_template_for_tools_tells_where_a_model_has_one() -> None:
    files = replace(model_files("echo"), templates={DEFAULT: template_text("echo"), TOOL_USE: FULL}, context_tokens=None)
    assert detect_format(Prompter(files, tools="native", syntax=None, clock=fixed_clock), FORMATS).name == "hermes"
