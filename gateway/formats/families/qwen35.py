"""Qwen3.5 to 3.8, Step-3.5, MiMo, Nanbeige 4: Qwen3-Coder's calls, with thoughts in `<think>` tags that the prompt may open."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="qwen35",
    aliases=("qwen3_5", "mimo", "step3p5", "nanbeige"),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<tool_call>", token=True),
            closer=Marker("</tool_call>", token=True),
            codec=Tagged(literals=(("True", "true"), ("False", "false"), ("None", "null"))),
        ),
    ),
    newlines_before_call=2,
)
