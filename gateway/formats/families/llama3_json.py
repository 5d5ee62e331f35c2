"""Llama 3.1 to 3.3: the whole message is a JSON object a call, at times after `<|python_tag|>`; without thoughts."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker

FORMAT = FormatSpec(
    name="llama3_json",
    aliases=("llama3", "llama4_json"),
    blocks=(
        Block(
            opener=Marker("<|python_tag|>", token=True),
            closer=None,
            codec=JsonInWrapper(arguments_keys=("parameters", "arguments"), separator=";"),
            starter="{",
        ),
    ),
)
