"""InternLM 2.5 and Intern-S1: a JSON object a call after `<|action_start|><|plugin|>`, thoughts in `<think>` tags."""

from gateway.formats.codecs.json_in_wrapper import JsonInWrapper
from gateway.formats.spec import Block, FormatSpec, Marker, Reasoning

_CALL = JsonInWrapper(arguments_keys=("parameters", "arguments"))
_END = Marker("<|action_end|>", token=True)

FORMAT = FormatSpec(
    name="internlm2",
    aliases=("internlm", "interns1"),
    reasoning=Reasoning(opener=Marker("<think>", token=True), closer=Marker("</think>", token=True)),
    blocks=(
        Block(opener=Marker("<|action_start|><|plugin|>"), closer=_END, codec=_CALL),
        Block(opener=Marker("<|action_start|> <|plugin|>"), closer=_END, codec=_CALL),
    ),
    tokens=("<|action_start|>", "<|plugin|>"),
    newlines_before_call=1,
)
