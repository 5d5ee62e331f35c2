"""Jamba 1.5 and newer: a JSON array of calls in `<tool_calls>` tags, thoughts in `<think>` tags."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="jamba",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<tool_calls>", token=True),
            closer=Marker("</tool_calls>", token=True),
            codec=JsonInWrapper(array=True, arguments_keys=("arguments", "parameters")),
        ),
    ),
    newlines_before_call=1,
)
