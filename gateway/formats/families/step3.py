"""Step-3: `steptml` tags between a header and an end for each call; thoughts in `<think>` tags that the prompt may open."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="step3",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<｜tool_calls_begin｜>", token=True),
            closer=Marker("<｜tool_calls_end｜>", token=True),
            codec=Tagged(
                call_open="<steptml:invoke name=",
                call_close="</steptml:invoke>",
                key_open="<steptml:parameter name=",
                value_close="</steptml:parameter>",
                around=("<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>"),
                trim=False,
            ),
        ),
    ),
    newlines_before_call=1,
    tokens=("<｜tool_call_begin｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>"),
)
