"""The names of formats: ours, and those that engines have for their parsers of calls and thoughts."""

import pytest

from gateway.formats.registry import load

FORMATS = load()
# What an operator of vLLM 0.32 or SGLang 0.5.22 writes after --tool-call-parser and --reasoning-parser. Left out are names whose
# format is not told by the engine alone: beam, holo2, telechat4.
VLLM = """
    apertus cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots
    ernie45 functiongemma gemma4 gigachat3 gigachat35 glm45 glm47 granite granite-20b-fc granite4 hermes hunyuan_a13b hy_v3
    hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json llama4_pythonic longcat mimo
    minicpm5 minimax_m2 minimax_m2_append_think minimax_m3 mistral muse_glimmer nemotron_v3 olmo3 openai openai_gptoss
    phi4_mini_json plamo3 poolside_v1 pythonic qwen3 qwen3_coder qwen3_json qwen3_xml seed_oss solar_open2 step3 step3p5
    xlam
"""
SGLANG = """
    apertus2509 cohere_command4 deepseek-r1 deepseek-v3 deepseek-v4 deepseek-v41 deepseekv3 deepseekv31 deepseekv32
    deepseekv4 deepseekv41 dots gemma4 gigachat3 gigachat35 glm glm45 glm47 gpt-oss granite_thinking_parser hermes hunyuan
    inkling interns1 iquest_q1 k2_horizon kimi kimi_k2 kimi_k3 lfm2 ling3 llama3 mimo minicpm5 minimax minimax-append-think
    minimax-m2 minimax-m3 mistral muse nanbeige nemotron_3 poolside_v1 pythonic qwen qwen25 qwen3 qwen3-thinking qwen3_coder
    spark25 step3 step3p5 trinity
"""


@pytest.mark.parametrize("name", sorted({*VLLM.split(), *SGLANG.split()}))
def test_an_engines_name_for_its_parser_is_a_name_here(name: str) -> None:
    assert name in FORMATS


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("harmony", "gpt_oss"),
        ("muse", "muse_glimmer"),
        ("nanbeige", "qwen35"),
        ("kimi", "kimi_vl"),  # SGLang's parser of thoughts
        ("qwen3_json", "hermes"),
        ("qwen3_xml", "qwen3_coder"),
        ("hunyuan", "hy_v3"),
    ],
)
def test_an_alias_is_the_format_itself(alias: str, name: str) -> None:
    assert FORMATS[alias] is FORMATS[name]


def test_a_format_has_any_suffix_in_its_tags() -> None:
    form = FORMATS["hy_v4:6f-a.1"]
    assert form.name == "hy_v3:6f-a.1"
    assert "<tool_calls:6f-a.1>" in form.visible
    assert "</arg_value:6f-a.1>" in form.visible
    assert FORMATS["hy_v3:opensource"].reads_as(FORMATS["hy_v3_opensource"], thoughts=True)
    assert not form.reads_as(FORMATS["hy_v3"], thoughts=True)


@pytest.mark.parametrize("name", ["hy_v3:", "hy_v3:a b", "hy_v3:<x>", "hermes:x", "none_such:x", "none_such"])
def test_what_is_no_suffix_is_no_format(name: str) -> None:
    assert name not in FORMATS
    with pytest.raises(KeyError):
        FORMATS[name]


def test_the_list_of_formats_has_no_suffixes() -> None:
    assert len(FORMATS) == len(list(FORMATS))
    assert not [name for name in FORMATS if ":" in name]
