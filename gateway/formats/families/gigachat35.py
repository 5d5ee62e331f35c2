"""GigaChat 3.5: one tag a parameter in `｜GCML｜` tags, which say whether the value is a string; thoughts in `<think>` tags that
the prompt may open."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="gigachat35",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<｜GCML｜tool_calls>"),
            closer=Marker("</｜GCML｜tool_calls>"),
            codec=Tagged(
                call_open="<｜GCML｜invoke name=",
                call_close="</｜GCML｜invoke>",
                key_open="<｜GCML｜parameter name=",
                value_close="</｜GCML｜parameter>",
                flag="string",
                text_flag="true",
                trim=False,
            ),
        ),
    ),
    newlines_before_call=2,
    tokens=("｜GCML｜",),
)
