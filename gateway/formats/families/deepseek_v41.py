"""DeepSeek V4.1: one tag a parameter in `｜DSML｜` tags, which say whether the value is a string."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="deepseek_v41",
    aliases=("deepseekv41", "deepseek-v41"),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<｜DSML｜ calls>"),
            closer=Marker("</｜DSML｜ calls>"),
            codec=Tagged(
                call_open="<｜DSML｜ invoke name=",
                call_close="</｜DSML｜ invoke>",
                key_open="<｜DSML｜ parameter name=",
                value_close="</｜DSML｜ parameter>",
                flag="string",
                text_flag="true",
                trim=False,
            ),
        ),
    ),
    newlines_before_call=2,
    tokens=("｜DSML｜",),
)
