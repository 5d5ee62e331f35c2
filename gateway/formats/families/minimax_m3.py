"""MiniMax M3: every tag after the token `]<]minimax[>[`; values nest as elements; thoughts in `<mm:think>` tags."""

from gateway.formats.codecs.nested_xml import NestedXml
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_PREFIX = "]<]minimax[>["

FORMAT = FormatSpec(
    name="minimax_m3",
    aliases=("minimax-m3",),
    reasoning=Reasoning(opener=Marker("<mm:think>", token=True), closer=Marker("</mm:think>", token=True)),
    blocks=(
        Block(
            opener=Marker(f"{_PREFIX}<tool_call>"),
            closer=Marker(f"{_PREFIX}</tool_call>"),
            codec=NestedXml(prefix=_PREFIX),
        ),
    ),
    tokens=(_PREFIX,),
    newlines_before_call=1,
)
