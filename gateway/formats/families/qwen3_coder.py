"""Qwen3-Coder: one tag a parameter in `<tool_call>` tags, values typed by the schema, without thoughts."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker

FORMAT = FormatSpec(
    name="qwen3_coder",
    aliases=("qwen3_xml",),
    blocks=(
        Block(
            opener=Marker("<tool_call>", token=True),
            closer=Marker("</tool_call>", token=True),
            # The template writes booleans and null as Python does.
            codec=Tagged(literals=(("True", "true"), ("False", "false"), ("None", "null"))),
        ),
    ),
    newlines_before_call=2,
)
