"""Llama 4, Llama 3.2 and ToolACE: the whole message is a list of Python calls, at times between `<|python_start|>` tags."""

from gateway.formats.codecs.python_calls import PythonCalls
from gateway.formats.spec import Block, FormatSpec, Marker

FORMAT = FormatSpec(
    name="llama4_pythonic",
    aliases=("pythonic",),
    blocks=(
        Block(
            opener=Marker("<|python_start|>", token=True),
            closer=Marker("<|python_end|>", token=True),
            codec=PythonCalls(),
            starter="[",
        ),
    ),
)
