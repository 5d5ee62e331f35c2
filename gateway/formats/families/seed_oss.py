"""Seed-OSS: Qwen3-Coder's tags, without newlines around values, in `<seed:tool_call>` tags; thoughts in `<seed:think>` tags."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="seed_oss",
    reasoning=Reasoning(opener=Marker("<seed:think>", token=True), closer=Marker("</seed:think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<seed:tool_call>", token=True),
            closer=Marker("</seed:tool_call>", token=True),
            codec=Tagged(trim=False, literals=(("True", "true"), ("False", "false"), ("None", "null"))),
        ),
    ),
    newlines_before_call=2,
)
