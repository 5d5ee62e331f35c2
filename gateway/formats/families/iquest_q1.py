"""IQuest-Q1: the calls of `glm47` in `<iquest_tool_call>` tags; thoughts in `<think>` tags that the prompt may open."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="iquest_q1",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<iquest_tool_call>", token=True),
            closer=Marker("</iquest_tool_call>", token=True),
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
)
