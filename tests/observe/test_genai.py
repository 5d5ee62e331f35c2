"""The attributes that spans may have, each once: a change of the conventions is a change of this list."""

from gateway.observe import genai

CONVENTIONS = {
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.conversation.id",
    "gen_ai.output.type",
    "gen_ai.request.model",
    "gen_ai.request.max_tokens",
    "gen_ai.request.temperature",
    "gen_ai.request.top_p",
    "gen_ai.request.top_k",
    "gen_ai.request.seed",
    "gen_ai.request.frequency_penalty",
    "gen_ai.request.presence_penalty",
    "gen_ai.request.choice.count",
    "gen_ai.request.stream",
    "gen_ai.response.finish_reasons",
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.reasoning.output_tokens",
    "error.type",
    "http.request.method",
    "http.response.status_code",
    "server.address",
    "server.port",
}
OWN = {
    "request_id",
    "outcome",
    "reason",
    "dialect",
    "engine",
    "format",
    "attempts",
    "retries",
    "resumes",
    "not_retried",
    "objection",
    "body_s",
    "queue_s",
    "client_stall_s",
    "tool_calls",
    "parse_failures",
    "attempt",
    "why",
    "engines_considered",
    "predicted_ttft_s",
    "predicted_cached_tokens",
    "parse_s",
    "parse_steps",
}


def test_the_names_are_those_of_one_version_and_ours() -> None:
    names = [value for name, value in vars(genai).items() if name.isupper() and "." in value and " " not in value]
    assert sorted(names) == sorted(CONVENTIONS | {f"interlock.{name}" for name in OWN})
    assert genai.CONVENTIONS == "semantic-conventions-genai 0.1.0"


def test_none_of_them_is_for_what_was_said() -> None:
    content = {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions"}
    assert not content & CONVENTIONS
