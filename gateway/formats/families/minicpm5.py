"""MiniCPM5: a `<function>` tag a call and a `<param>` tag a parameter, whose value may be CDATA; thoughts in `<think>` tags."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="minicpm5",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<function name="),
            closer=Marker("</function>"),
            codec=Tagged(call_open="", key_open="<param name=", value_close="</param>", trim=False, cdata=True),
        ),
    ),
    newlines_before_call=1,
)
