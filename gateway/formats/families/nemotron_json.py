"""Nemotron Nano v2: a JSON array of calls in `<TOOLCALL>` tags, thoughts in `<think>` tags that the model may open itself."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="nemotron_json",
    aliases=("nemotron_nano_v2",),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<TOOLCALL>"),
            closer=Marker("</TOOLCALL>"),
            codec=JsonInWrapper(array=True, arguments_keys=("arguments", "parameters")),
        ),
    ),
    newlines_before_call=1,
)
