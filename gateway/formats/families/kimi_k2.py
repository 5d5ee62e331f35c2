"""Kimi K2, K2 Thinking, K2.5 to 2.7 and Kimi Linear: each call's header is its name and its id, `functions.name:0`."""

from gateway.formats.codecs.named_json import NamedJson
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_CALLS = NamedJson(
    call_open="<|tool_call_begin|>",
    name_end="<|tool_call_argument_begin|>",
    call_close="<|tool_call_end|>",
    numbered=True,
)
FORMAT = FormatSpec(
    name="kimi_k2",
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(
            opener=Marker("<|tool_calls_section_begin|>", token=True),
            closer=Marker("<|tool_calls_section_end|>", token=True),
            codec=_CALLS,
        ),
        Block(  # some builds write the section in the singular
            opener=Marker("<|tool_call_section_begin|>", token=True),
            closer=Marker("<|tool_call_section_end|>", token=True),
            codec=_CALLS,
        ),
    ),
    call_ids="native",
    tokens=("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
