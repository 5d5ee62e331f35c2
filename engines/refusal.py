"""An engine's error answer, as the client shall see it: whose fault, which status, and words without addresses or paths.

Engines nest the error under `error` (OpenAI, vLLM, llama.cpp), give it flat (SGLang), or give a bare text. What cannot be read is
EngineBroke, whose words are ours.
"""

import re

import msgspec

from gateway.errors import ContextTooLong, EngineBroke, EngineRefused, GatewayError
from gateway.wire.jsonio import Decoder, JsonError

_ADDRESS = re.compile(
    r"\w+://\S+|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?|\blocalhost(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?|(?<![\w.])/[\w.-]+/\S+"
)
_CONTEXT = re.compile(r"maximum context length\D{1,20}(\d+)\D.*?(\d+)", re.DOTALL)
_OUT_OF_MEMORY = re.compile(r"out of memory|outofmemory|failed to allocate", re.IGNORECASE)
_MAX_WORDS = 500
_OURS = frozenset({401, 403, 407})  # the engine refused the gateway's own key: nothing that a client could mend


class ErrorObject(msgspec.Struct, gc=False):
    """The error object of any engine. Only what is used; all of it optional."""

    message: str | None = None
    type: str | None = None
    code: int | str | None = None
    param: str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _Answer(ErrorObject):
    error: ErrorObject | str | None = None


_ANSWER = Decoder(_Answer)


def refusal(status: int, body: bytes) -> GatewayError:
    """The failure for an answer with an error status."""
    try:
        answer = _ANSWER.decode(body)
    except JsonError:
        return EngineBroke(f"The engine answered with status {status} and no error that can be read.")
    error: ErrorObject = answer
    if isinstance(answer.error, ErrorObject):
        error = answer.error
    elif answer.error is not None:
        error = ErrorObject(message=answer.error)
    return _failure(status, error)


def failure_in_stream(error: ErrorObject | str) -> GatewayError:
    """The failure for an error event after status 200: broken, unless the event says that the client erred."""
    if isinstance(error, str):
        error = ErrorObject(message=error)
    if isinstance(error.code, int) and 400 <= error.code < 500 and error.code not in _OURS:
        return _failure(error.code, error)
    broke = EngineBroke("The engine reported an error in the middle of its answer.")
    broke.out_of_memory = bool(_OUT_OF_MEMORY.search(error.message or ""))
    return broke


def _failure(status: int, error: ErrorObject) -> GatewayError:
    if error.type == "exceed_context_size_error" and error.n_prompt_tokens and error.n_ctx:
        return ContextTooLong(error.n_prompt_tokens, error.n_ctx)
    message = error.message or ""
    if status == 400 and (sizes := _CONTEXT.search(message)):
        return ContextTooLong(int(sizes[2]), int(sizes[1]))
    if status in _OURS:
        return EngineRefused("The engine refused the gateway's key.", status=502)
    if 400 <= status < 500:
        code = error.code if isinstance(error.code, str) else None
        return EngineRefused(
            f"The engine refused the request: {_words(message) or status}", status=status, param=error.param, code=code
        )
    if status == 503:
        return EngineRefused("The engine cannot serve now.", status=503)
    reason = f": {_words(message)}" if message else "."
    refused = EngineRefused(f"The engine answered with status {status}{reason}", status=502)
    refused.out_of_memory = bool(_OUT_OF_MEMORY.search(message))
    return refused


def _words(message: str) -> str:
    """The engine's own words, without what looks like an address or a path, and cut."""
    words = _ADDRESS.sub("…", message)
    return words if len(words) <= _MAX_WORDS else words[:_MAX_WORDS] + "…"
