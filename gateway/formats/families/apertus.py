"""Apertus: a JSON array between `<|tools_prefix|>` and `<|tools_suffix|>`, whose objects' keys are the names of the calls."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="apertus",
    aliases=("apertus2509",),
    reasoning=Reasoning(opener=Marker("<|inner_prefix|>", token=True), closer=Marker("<|inner_suffix|>", token=True)),
    blocks=(
        Block(
            opener=Marker("<|tools_prefix|>", token=True),
            closer=Marker("<|tools_suffix|>", token=True),
            codec=JsonInWrapper(name_key="", array=True),
        ),
    ),
)
