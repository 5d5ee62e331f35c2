"""DeepSeek V3, V3-0324 and R1-0528: each call with its kind and name in a header and its arguments in a JSON fence."""

from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="deepseek_v3",
    aliases=("deepseekv3", "deepseek-v3", "deepseek_r1", "deepseek-r1"),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<｜tool▁calls▁begin｜>", token=True),
            closer=Marker("<｜tool▁calls▁end｜>", token=True),
            codec=NamedJson(
                call_open="<｜tool▁call▁begin｜>",
                kind="function",
                kind_end="<｜tool▁sep｜>",
                name_end="\n```json",
                fence_close="```",
                call_close="<｜tool▁call▁end｜>",
            ),
        ),
    ),
    tokens=("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
