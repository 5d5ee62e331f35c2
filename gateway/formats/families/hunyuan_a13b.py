"""Hunyuan-A13B: a JSON array of calls in `<tool_calls>` tags, the answer in `<answer>` tags, all of them plain text."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="hunyuan_a13b",
    reasoning=Reasoning(opener=Marker("<think>"), closer=Marker("</think>")),
    blocks=(
        Block(
            opener=Marker("<tool_calls>"),
            closer=Marker("</tool_calls>"),
            codec=JsonInWrapper(array=True, arguments_keys=("arguments", "parameters")),
        ),
    ),
    transparent=(Marker("<answer>"), Marker("</answer>")),
    newlines_before_call=1,
)
