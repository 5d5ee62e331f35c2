"""Every failure that a request can end in, as one tree that says whose fault it is.

    GatewayError
    ├── ClientError                 the client's fault; not worth repeating
    │   ├── BadRequest              400  invalid_request_error, names the field in `param`
    │   ├── ContextTooLong          400  code context_length_exceeded
    │   ├── ModelNotFound           404  code model_not_found, names the model
    │   ├── RouteNotFound           404  code unknown_url
    │   ├── MethodNotAllowed        405
    │   ├── ForeignSite             403  a page of another site asks what only operators may
    │   ├── BodyTooLarge            413
    │   ├── UnsupportedEncoding     415  a compressed body
    │   ├── ClientStalled           408  the client did not take its answer in time
    │   └── BodyTimeout             408  the body did not arrive in time
    ├── Rejected                    429/503  nobody's fault: no room now; repeatable, says when
    ├── NotServed                   503  the operator's: the model's check failed, or is missing
    ├── EngineError                 502  the engine's fault; repeatable before the first byte
    │   ├── EngineUnreachable       502  no connection
    │   ├── EngineRefused           the engine's own status; a 4xx is passed on
    │   ├── EngineBroke             502  the answer stopped, or was not what its protocol says
    │   │   ├── EngineGone          502  its connection ended: the engine may be another when it is back
    │   │   └── EngineDiffers       502  it went on with another's answer as that one had not
    │   ├── PoisonRequest           502  engines went down as they served it
    │   └── EngineTimeout           504  names the stage
    │       └── EngineSilent        504  before the stage's limit, as its health checks failed
    ├── AnswerRefused               502  the model's answer broke a rule that the operator set to `refuse` or `error`
    ├── Draining                    503  the gateway is shutting down
    └── InternalError               500  ours

A class carries its HTTP status, OpenAI error type and code; an instance its message and, for a client's fault, `param`: the
path of the field, as `messages[2].content`. Nothing above the boundary where an exception is translated knows a library's type.
"""

from typing import ClassVar, Literal

type_invalid = "invalid_request_error"
type_server = "server_error"

CLOSED = "The gateway is going down: it takes no new requests."

TimeoutStage = Literal["connect", "headers", "first_token", "between_tokens", "total"]


class GatewayError(Exception):
    """Base of all failures of a request. `reason` is the word for metrics and logs: a closed set, never a client's text."""

    status: int = 500
    type: ClassVar[str] = type_server
    code: str | None = None
    reason: str = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the client may try again, where that is known."""
        return None

    def without(self, secret: str | None) -> "GatewayError":
        """The same, whose words do not tell this: some engines say which key they refuse, in a stream too."""
        if secret:
            self.message = self.message.replace(secret, "[redacted]")
        return self


class ClientError(GatewayError):
    """The request cannot be served as it stands."""

    status = 400
    type = type_invalid
    reason = "bad_request"


class BadRequest(ClientError):
    """A field is missing, has a wrong type or an impossible value; `param` names it."""


class ContextTooLong(ClientError):
    """The prompt does not fit. The words "maximum context length" make harnesses compact their history."""

    code = "context_length_exceeded"
    reason = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, context_tokens: int, param: str = "messages", *, at_least: bool = False) -> None:
        """`at_least`: the prompt was not counted, only found to have no fewer tokens."""
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens. However, your messages resulted in "
            f"{prompt_tokens} tokens{' or more' if at_least else ''}. Please reduce the length of the messages.",
            param=param,
        )
        self.prompt_tokens = prompt_tokens


class ModelNotFound(ClientError):
    """No served model has this name."""

    status = 404
    code = "model_not_found"
    reason = "model_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"The model {shown(name)} does not exist or is not served here.", param="model")


class RouteNotFound(ClientError):
    """No such path."""

    status = 404
    code = "unknown_url"
    reason = "unknown_url"


class MethodNotAllowed(ClientError):
    """The path exists, the method does not."""

    status = 405
    code = "method_not_allowed"
    reason = "method_not_allowed"


class ForeignSite(ClientError):
    """A page of another site, in an operator's browser, asks what only operators may."""

    status = 403
    code = "foreign_site"
    reason = "foreign_site"


class BodyTooLarge(ClientError):
    """The body is over `server.max_body_bytes`."""

    status = 413
    code = "request_too_large"
    reason = "body_too_large"


class UnsupportedEncoding(ClientError):
    """The body is compressed, which is refused: what it unpacks to has no bound."""

    status = 415
    code = "unsupported_encoding"
    reason = "unsupported_encoding"


class ClientStalled(ClientError):
    """The client took nothing of its answer for too long, or the time of the whole request ended meanwhile: no engine's fault."""

    status = 408
    code = "client_stalled"
    reason = "client_stalled"


class BodyTimeout(ClientError):
    """The body came too slowly."""

    status = 408
    code = "request_timeout"
    reason = "body_timeout"


RejectReason = Literal["queue_full", "queue_timeout", "wait_too_long", "no_engine", "engines_busy", "overloaded", "no_worker"]


class Rejected(GatewayError):
    """There is no room now: a full queue (429), or no engine that can serve or worker that can render (503)."""

    type = "overloaded_error"
    retryable = True

    def __init__(self, message: str, *, reason: RejectReason, retry_after_s: float) -> None:
        super().__init__(message, code=reason)
        self.status = 429 if reason == "queue_full" else 503
        self.reason = reason
        self._retry_after_s = retry_after_s

    @property
    def retry_after_s(self) -> float | None:
        return self._retry_after_s


class EngineError(GatewayError):
    """The engine failed. The message names the stage, never the engine's address or key. `out_of_memory`: it said so."""

    status = 502
    type = "upstream_error"
    code: str | None = "upstream_error"
    reason = "engine"
    retryable = True
    out_of_memory: bool = False


class EngineUnreachable(EngineError):
    """No connection to the engine."""

    code = "engine_unreachable"
    reason = "unreachable"


class EngineRefused(EngineError):
    """The engine answered with an error status before it generated anything. `wait_s`: what it says of when to ask again."""

    code = "engine_refused"
    reason = "refused"
    wait_s: float | None = None

    def __init__(self, message: str, *, status: int, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status

    @property
    def retry_after_s(self) -> float | None:
        return self.wait_s


class EngineBroke(EngineError):
    """The answer ended without an end, or was not what the engine's protocol says."""

    code = "engine_broke"
    reason = "broke"


class EngineGone(EngineBroke):
    """The connection ended before the answer did."""


class EngineDiffers(EngineBroke):
    """The engine was to go on with an answer that another had broken off, and said something else than the client was given. It
    is not at fault: where an answer is drawn by chance, another draw differs."""

    reason = "differs"


class PoisonRequest(EngineError):
    """Engines went down as they served this request, one after the other. It is given to no further one."""

    code = "poison_request"
    reason = "poison"


class EngineTimeout(EngineError):
    """The engine was silent too long in the named stage."""

    status = 504
    code = "engine_timeout"

    def __init__(self, stage: TimeoutStage, limit_s: float) -> None:
        super().__init__(f"The engine did not answer in time: stage {stage}, limit {limit_s:g} s.")
        self.stage = stage
        self.reason = stage


class EngineSilent(EngineTimeout):
    """The engine was silent in this stage, and probes found it gone: its limit was not waited for."""

    def __init__(self, stage: TimeoutStage, silent_s: float) -> None:
        super().__init__(stage, silent_s)
        self.message = f"The engine was silent, and its health checks failed: stage {stage}, after {silent_s:.3g} s."
        self.args = (self.message,)


class AnswerRefused(GatewayError):
    """The model's answer broke a rule (`unknown_tool: refuse`, `on_parse_failure: error`, `on_schema_miss: refuse`)."""

    status = 502
    type = "model_output_error"

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message, code=kind)
        self.reason = kind


class NotServed(GatewayError):
    """The model is there, and no request for it is answered until it has passed its check."""

    status = 503
    code = "model_not_served"
    reason = "model_not_served"


class Draining(GatewayError):
    """The gateway is going down and cut this request, or takes no new one."""

    status = 503
    code = "draining"
    reason = "draining"
    retryable = True

    @property
    def retry_after_s(self) -> float | None:
        return 1.0


class InternalError(GatewayError):
    """A fault of ours. The details are in the log, under the request's id."""

    code = "internal_error"


class SettingsError(Exception):
    """Settings that cannot be used: every problem at once, each with its key path and line (exit code 2)."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ModelFileError(Exception):
    """A model's files cannot be used: missing, damaged, or without a template. Raised at start, never for a request."""


def shown(text: str, limit: int = 80) -> str:
    """A client's text, quoted and cut, fit for an error message."""
    return repr(text if len(text) <= limit else text[:limit] + "…")
