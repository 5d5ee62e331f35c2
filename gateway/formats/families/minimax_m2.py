"""MiniMax M2, 2.1 and 2.5: one tag a parameter in `<minimax:tool_call>` tags, thoughts in `<think>` tags."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="minimax_m2",
    aliases=("minimax-m2", "minimax", "minimax-append-think", "minimax_m2_append_think"),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<minimax:tool_call>", token=True),
            closer=Marker("</minimax:tool_call>", token=True),
            codec=Tagged(
                call_open="<invoke name=",
                call_close="</invoke>",
                key_open="<parameter name=",
                trim=False,
            ),
        ),
    ),
    newlines_before_call=1,
)
