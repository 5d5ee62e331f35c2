"""gpt-oss: OpenAI's Harmony. Thoughts, visible text and calls are messages on the channels of their headers."""

from gateway.formats.spec import FormatSpec, Headers, Marker

FORMAT = FormatSpec(
    name="gpt_oss",
    aliases=("harmony", "openai", "gpt-oss", "openai_gptoss"),
    headers=Headers(
        start=Marker("<|start|>", token=True),
        channel=Marker("<|channel|>", token=True),
        constrain=Marker("<|constrain|>", token=True),
        body=Marker("<|message|>", token=True),
        ends=(Marker("<|end|>", token=True), Marker("<|call|>", token=True), Marker("<|return|>", token=True)),
        thoughts=("analysis",),
        content=("final", "commentary"),
        kinds=("json", "code", "text", "python", "javascript", "typescript", "bash", "xml", "yaml", "markdown", "lark", "regex"),
        functions="functions.",
    ),
)
