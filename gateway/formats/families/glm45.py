"""GLM-4.5 and 4.6: the name on a line of its own, then one pair of tags for each key and each value."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="glm45",
    aliases=("glm", "poolside_v1", "ling3", "spark25"),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<tool_call>", token=True),
            closer=Marker("</tool_call>", token=True),
            codec=Tagged(
                call_open="",
                name_end="",
                key_open="<arg_key>",
                key_end="</arg_key>",
                value_open="<arg_value>",
                value_close="</arg_value>",
                trim=False,
            ),
        ),
    ),
    newlines_before_call=1,
    tokens=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
