"""Kimi-VL Thinking and Kimi-Dev: thoughts between `◁think▷` and `◁/think▷`, which are text to the tokenizer; without calls."""

from gateway.formats.spec import FormatSpec, Marker, Reasoning

FORMAT = FormatSpec(
    name="kimi_vl",
    aliases=("kimi",),
    reasoning=Reasoning(opener=Marker("◁think▷"), closer=Marker("◁/think▷")),
)
