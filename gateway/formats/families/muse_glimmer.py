"""Muse Glimmer: messages to a recipient each, `to=self` for thoughts, `to=user` for the answer, else calls in `atem` tags."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_START = Marker("<|start|>assistant")
_END = Marker("<|eom|>", token=True)
_END_OF_TURN = Marker("<|eot|>", token=True)

FORMAT = FormatSpec(
    name="muse_glimmer",
    aliases=("muse",),
    reasoning=Reasoning(opener=Marker("to=self<|message|>"), closer=_END, trim="", ended_by=(_START, _END_OF_TURN), repeats=True),
    blocks=(
        # The header of the call's message is part of the opener, so that the tags in a thought or an answer are text.
        Block(
            opener=Marker("<|message|><atem:function_calls>"),
            closer=Marker("</atem:function_calls>"),
            codec=Tagged(
                call_open="<atem:invoke name=",
                call_close="</atem:invoke>",
                key_open="<atem:parameter name=",
                value_close="</atem:parameter>",
                trim=False,
                doubled=True,
                scoped=True,
            ),
        ),
    ),
    transparent=(_START, Marker("to=user<|message|>"), Marker("<|message|>"), _END, _END_OF_TURN),
    name_before_call="to=",
    tokens=("<|start|>", "<|message|>"),
)
