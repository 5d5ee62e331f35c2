"""PLaMo 3: tags for the requests, each request, its name and its arguments; thoughts in tags too."""

from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_ARGUMENTS = "<|plamo:begin_tool_arguments:plamo|>"

FORMAT = FormatSpec(
    name="plamo3",
    reasoning=Reasoning(opener=Marker("<|plamo:begin_think:plamo|>"), closer=Marker("<|plamo:end_think:plamo|>")),
    blocks=(
        Block(
            opener=Marker("<|plamo:begin_tool_requests:plamo|>"),
            closer=Marker("<|plamo:end_tool_requests:plamo|>"),
            codec=NamedJson(
                call_open="<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
                name_end="<|plamo:end_tool_name:plamo|>",
                fence_open=(
                    f"{_ARGUMENTS}<|plamo:constrain|>json<|plamo:msg|>",
                    f"{_ARGUMENTS}<|plamo:msg|>",
                    _ARGUMENTS,
                ),
                fence_close="<|plamo:end_tool_arguments:plamo|>",
                call_close="<|plamo:end_tool_request:plamo|>",
            ),
        ),
    ),
    tokens=("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>"),
)
