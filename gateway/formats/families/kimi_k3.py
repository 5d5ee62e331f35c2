"""Kimi K3: everything in channels of three-token tags, `<|open|>tools<|sep|>…`; each argument's tag says its type."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_RESPONSE = Marker("<|open|>response<|sep|>")

FORMAT = FormatSpec(
    name="kimi_k3",
    reasoning=Reasoning(
        opener=Marker("<|open|>think<|sep|>"), closer=Marker("<|close|>think<|sep|>"), trim="", ended_by=(_RESPONSE,)
    ),
    blocks=(
        Block(
            opener=Marker("<|open|>tools<|sep|>"),
            closer=Marker("<|close|>tools<|sep|>"),
            codec=Tagged(
                call_open="<|open|>call tool=",
                name_end="<|sep|>",
                call_close="<|close|>call<|sep|>",
                key_open="<|open|>argument key=",
                key_end="<|sep|>",
                value_close="<|close|>argument<|sep|>",
                flag="type",
                text_flag="string",
                trim=False,
                entities=True,
            ),
        ),
    ),
    transparent=(_RESPONSE, Marker("<|close|>response<|sep|>"), Marker("<|close|>message<|sep|>")),
    tokens=("<|open|>", "<|close|>", "<|sep|>"),
)
