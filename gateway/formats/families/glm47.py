"""GLM-4.7 and 5.x: the calls of GLM-4.5 without newlines between tags."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="glm47",
    aliases=("glm5",),
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
    tokens=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
