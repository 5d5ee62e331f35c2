"""Gemma 4: objects with bare keys and strings between `<|"|>` tokens; thoughts in the channel `thought`."""

from gateway.formats.codecs.brace_delimited import BraceDelimited
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="gemma4",
    reasoning=Reasoning(opener=Marker("<|channel>thought"), closer=Marker("<channel|>", token=True)),
    blocks=(
        Block(
            opener=Marker("<|tool_call>", token=True),
            closer=Marker("<tool_call|>", token=True),
            codec=BraceDelimited(delimiter='<|"|>'),
        ),
    ),
    tokens=("<|channel>", '<|"|>'),
)
