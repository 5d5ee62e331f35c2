"""Cohere Command R7B, A and A+: a JSON array of calls between `<|START_ACTION|>` and `<|END_ACTION|>`.

The model numbers its calls from 0 in each conversation, so that their ids are the gateway's.
"""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_RESPONSE = Marker("<|START_RESPONSE|>", token=True)
_TEXT = Marker("<|START_TEXT|>", token=True)

FORMAT = FormatSpec(
    name="cohere_command4",
    aliases=("cohere_command3",),
    reasoning=Reasoning(
        opener=Marker("<|START_THINKING|>", token=True),
        closer=Marker("<|END_THINKING|>", token=True),
        ended_by=(_RESPONSE, _TEXT),
    ),
    blocks=(
        Block(
            opener=Marker("<|START_ACTION|>", token=True),
            closer=Marker("<|END_ACTION|>", token=True),
            codec=JsonInWrapper(name_key="tool_name", arguments_keys=("parameters",), ignored_keys=("tool_call_id",), array=True),
        ),
    ),
    transparent=(_RESPONSE, Marker("<|END_RESPONSE|>", token=True), _TEXT, Marker("<|END_TEXT|>", token=True)),
)
