"""What the streamed and the whole answers of Chat Completions have in common: stamp, usage, errors, and how tokens are told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.dialects.base import Answer
from gateway.errors import GatewayError
from gateway.request import GenerateRequest, Tokens, TokenShown, Usage
from gateway.wire.jsonio import encode


@dataclass(frozen=True, slots=True)
class TokenFields:
    """The fields in which a choice tells its generated tokens, where the request asks for them.

    `logprobs.content` has one entry for each token, so that it aligns with `token_ids`: tokens of thoughts, markers and the end
    of the turn too, and where a stop string cut the answer those of the text that is not shown. Tokens of which the engine told
    no log probability are counted in `logprobs.missing_tokens`.
    """

    logprobs: bool
    ids: bool

    def told(self, tokens: Sequence[Tokens]) -> Mapping[str, Any]:
        """The fields with these tokens; none where there are no tokens."""
        fields: dict[str, Any] = {}
        if tokens and self.logprobs:
            fields["logprobs"] = _logprobs(tokens)
        if tokens and self.ids:
            fields["token_ids"] = [token.id for each in tokens for token in each.tokens if token.id >= 0]
        return fields


def token_fields(request: GenerateRequest) -> TokenFields | None:
    """None where the request asks for no tokens."""
    fields = TokenFields(request.logprobs is not None, request.return_token_ids)
    return fields if fields.logprobs or fields.ids else None


def _logprobs(tokens: Sequence[Tokens]) -> Mapping[str, Any]:
    generated = sum(each.missing + len(each.tokens) for each in tokens)
    content = [_entry(token) for each in tokens for token in each.tokens if token.logprob is not None]
    missing = generated - len(content)
    return {"content": content, "refusal": None, **({"missing_tokens": missing} if missing else {})}


def _entry(token: TokenShown) -> Mapping[str, Any]:
    return {**_likely(token), "top_logprobs": [_likely(other) for other in token.top]}


def _likely(token: TokenShown) -> Mapping[str, Any]:
    return {"token": token.data.decode("utf-8", "replace"), "logprob": token.logprob, "bytes": list(token.data)}


def stamp(kind: str, answer: Answer) -> Mapping[str, Any]:
    """The fields that are the same in all of an answer."""
    return {"id": answer.id, "object": kind, "created": answer.created_s, "model": answer.model}


def counts(usage: Usage) -> Mapping[str, Any]:
    """`usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def error_body(error: GatewayError) -> bytes:
    """The JSON object of an error."""
    return encode({"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}})
