"""DeepSeek V3.1: each call with its name in a header and its arguments as JSON."""

from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="deepseek_v31",
    aliases=("deepseekv31",),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<｜tool▁calls▁begin｜>", token=True),
            closer=Marker("<｜tool▁calls▁end｜>", token=True),
            codec=NamedJson(call_open="<｜tool▁call▁begin｜>", name_end="<｜tool▁sep｜>", call_close="<｜tool▁call▁end｜>"),
        ),
    ),
    tokens=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
