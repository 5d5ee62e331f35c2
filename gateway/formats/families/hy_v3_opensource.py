"""HY 3 as it is published: the format of `hy_v3` with `:opensource` in every marker."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="hy_v3_opensource",
    reasoning=Reasoning(opener=Marker("<think:opensource>", token=True), closer=Marker("</think:opensource>", token=True)),
    blocks=(
        Block(
            opener=Marker("<tool_calls:opensource>", token=True),
            closer=Marker("</tool_calls:opensource>", token=True),
            codec=Tagged(
                call_open="<tool_call:opensource>",
                name_end="",
                call_close="</tool_call:opensource>",
                key_open="<arg_key:opensource>",
                key_end="</arg_key:opensource>",
                value_open="<arg_value:opensource>",
                value_close="</arg_value:opensource>",
                around=("<tool_sep:opensource>",),
                trim=False,
            ),
        ),
    ),
    newlines_before_call=1,
    tokens=(
        "<tool_call:opensource>",
        "</tool_call:opensource>",
        "<tool_sep:opensource>",
        "<arg_key:opensource>",
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
    ),
)
