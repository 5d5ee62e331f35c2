"""OpenAI Chat Completions: the dialect that most harnesses speak.

The streamed answer, folded, is the whole answer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.dialects import openai_request
from gateway.dialects.base import Answer, Encoder, Limits
from gateway.dialects.openai_answer import error_body, token_fields
from gateway.dialects.openai_fields import ChatBody
from gateway.dialects.openai_stream import StreamEncoder
from gateway.dialects.openai_whole import WholeEncoder
from gateway.errors import GatewayError
from gateway.request import GenerateRequest
from gateway.wire.jsonio import encode


class OpenAIChat:
    """The dialect."""

    name = "openai_chat"
    title = "OpenAI Chat Completions"
    body = ChatBody
    path = "/v1/chat/completions"

    def parse(self, body: bytes, limits: Limits) -> GenerateRequest:
        """The request. Raises BadRequest."""
        return openai_request.parse(body, limits)

    def encoder(self, request: GenerateRequest, answer: Answer) -> Encoder:
        """A fresh encoder: streamed or whole, as the request says."""
        tokens = token_fields(request)
        return StreamEncoder(answer, request.include_usage, tokens) if request.stream else WholeEncoder(answer, tokens)

    def error(self, error: GatewayError) -> bytes:
        """The body of an error answer."""
        return error_body(error)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as `GET /v1/models` lists it."""

    name: str
    created_s: int
    context_tokens: int | None = None


def models_list(models: Iterable[ModelCard]) -> bytes:
    """The body of `GET /v1/models`."""
    return encode({"object": "list", "data": [_listed(model) for model in models]})


def _listed(model: ModelCard) -> Mapping[str, Any]:
    known = {} if model.context_tokens is None else {"max_model_len": model.context_tokens}
    return {"id": model.name, "object": "model", "created": model.created_s, "owned_by": "interlock", **known}
