"""Solar Open 2: the name on a line of its own, then three tokens around each key and its value; thoughts between tokens of their
own, of which the prompt may write the first."""

from gateway.formats.codecs.tagged import Tagged
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="solar_open2",
    reasoning=Reasoning(opener=Marker("<|think:start|>", token=True), closer=Marker("<|think:end|>", token=True)),
    blocks=(
        Block(
            opener=Marker("<|tool_call:start|>", token=True),
            closer=Marker("<|tool_call:end|>", token=True),
            codec=Tagged(
                call_open="",
                name_end="",
                key_open="<|tool_arg:start|>",
                key_end="<|tool_arg:value|>",
                value_close="<|tool_arg:end|>",
                trim=False,
            ),
        ),
    ),
    tokens=("<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>"),
)
