"""HY 3 and 4 (`hy_v3:SUFFIX` where the checkpoint's tags have a suffix): a pair of tags for each key and each value in a section
of calls; HY 3 ends the name with `<tool_sep>`."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="hy_v3",
    aliases=("hy_v4", "hunyuan"),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<tool_calls>", token=True),
            closer=Marker("</tool_calls>", token=True),
            codec=Tagged(
                call_open="<tool_call>",
                name_end="",
                call_close="</tool_call>",
                key_open="<arg_key>",
                key_end="</arg_key>",
                value_open="<arg_value>",
                value_close="</arg_value>",
                around=("<tool_sep>",),
                trim=False,
            ),
        ),
    ),
    newlines_before_call=1,
    suffixed=True,
    tokens=(
        "<tool_call>",
        "</tool_call>",
        "<tool_sep>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
)
