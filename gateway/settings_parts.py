"""The sections of the settings that say nothing of models: where the gateway listens, and its limits. And engines' events."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from gateway.settings_base import Labels, Port, Seconds, Section, wrong

_ENDPOINT = re.compile(r"ipc:///[^\s]{1,100}|tcp://(\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


def _endpoint(value: object) -> object:
    if isinstance(value, str):
        found = _ENDPOINT.fullmatch(value)
        if found is None or (found[2] is not None and not 1 <= int(found[2]) <= 65535):
            raise wrong("must be an address of ZMQ, as `tcp://*:5557` or `ipc:///run/vllm/kv`")
    return value


Endpoint = Annotated[str, BeforeValidator(_endpoint)]


class KvEventsSettings(Section):
    """Where an engine tells what its cache holds (docs/kv-events.md); leave it out, and routing goes by what was sent there."""

    endpoint: Endpoint | None = None
    """vLLM and SGLang: the `endpoint` of their `--kv-events-config`. In `tcp://*:5557` the host is the URL's. With `ranks` each
    rank's port is one more than the last's."""

    replay_endpoint: Endpoint | None = None
    """Their `replay_endpoint`, at which the gateway asks for what it missed. Without it an engine that the gateway met late, or
    whose events got lost, is not followed until it starts anew."""

    topic: str = Field("", max_length=128)
    """Their `topic`, or its beginning."""

    bind: bool = False
    """Listen at `endpoint`, where they connect to: so they do with `tcp` and a host that is not `*`."""

    poll_s: Seconds = 0.5
    """TensorRT-LLM: how often it is asked. It tells each event once: nobody else may ask it."""


class ServerSettings(Section):
    """Where the gateway listens, and what one request may cost it."""

    host: str = Field("127.0.0.1", min_length=1)
    """Address of the API. Beyond loopback there is no protection yet: this version checks no keys."""

    port: Port = 8080
    """Port of the API; 0 takes a free one, which is logged."""

    admin_host: str = Field("127.0.0.1", min_length=1)
    """Address of the operator's page, `/metrics`, `/health`, `/ready`, `/fleet` and `/explain` (docs/admin.md). It asks for no
    key, and takes engines out: keep it on loopback or a private network."""

    admin_port: Port | None = None
    """Port of the admin address. Unset: 8081, or a free port, which is logged, where 8081 is taken."""

    admin_names: Labels = ()
    """Names of the admin address, as `gateway.example.com`, by which the page, `/fleet` and `/explain` may be asked for; by
    others browsers might, for pages of other sites. Addresses, names without a dot, and names that end in `.localhost`, `.local`,
    `.internal`, `.svc` or `.cluster.local` need not stand here."""

    failure_texts: bool = True
    """The page of the admin address shows, of the last 50 faults in models' output, up to 200 characters of what the model wrote
    there, known secrets and what looks like one left out. `false`: it shows none of it, and none is kept."""

    workers: int = Field(1, ge=1)
    """Worker processes. This version runs exactly one."""

    max_body_bytes: int = Field(32 * 1024 * 1024, ge=1)
    """The largest request body; a larger one is answered with 413."""

    drain_s: float = Field(30.0, ge=0, allow_inf_nan=False)
    """How long running answers may go on after SIGTERM or SIGINT; then they are ended with an error. `/ready` answers 503 from
    the signal on. A second signal cuts them at once."""

    drain_grace_s: float = Field(0.0, ge=0, allow_inf_nan=False)
    """How long after the signal new requests are still taken; then they are answered with 503. Part of `drain_s`. In Kubernetes
    set 5 to 10: a Service sends requests for some seconds after the signal, as it learns of it late."""

    route_headers: bool = False
    """Answers say how they were served, in `x-interlock-engine`, `x-interlock-attempts`, `x-interlock-queue-ms` and
    `x-interlock-cached-tokens`. Engines' names are so shown to every client."""

    headers_grace_s: float = Field(5.0, ge=0, allow_inf_nan=False)
    """How long the headers of a streamed answer wait for its first token, so that a failure can still be a plain HTTP error."""

    @field_validator("admin_port")
    @classmethod
    def _own_port(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and value == info.data.get("port") and info.data.get("host") == info.data.get("admin_host"):
            raise wrong("must differ from `port`")
        return value

    @field_validator("drain_grace_s")
    @classmethod
    def _within_drain(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("drain_s", value):
            raise wrong("must be no more than `drain_s`")
        return value

    @field_validator("workers")
    @classmethod
    def _one_worker(cls, value: int) -> int:
        if value > 1:
            raise wrong("this version runs one worker only: set 1, or leave it out")
        return value


class TimeoutSettings(Section):
    """How long an engine may be silent in each stage of an answer, and how long a client may take nothing of it."""

    connect_s: Seconds = 1.0
    """Until the connection stands."""

    headers_s: Seconds = 600.0
    """From the request's last byte to the engine's answer headers. llama.cpp sends them once a slot takes the request, so
    that this covers its queue; engines that send them at once may have a shorter one."""

    first_token_s: Seconds = 600.0
    """From the answer headers to the first token. Covers a long prompt, and the queue of engines that send headers at once."""

    between_tokens_s: Seconds = 30.0
    """Between two tokens. Keep-alive comments do not count as tokens, and time spent waiting for the client does not count."""

    client_s: Seconds = 60.0
    """How long a client may take nothing of its answer, while there is some for it; then it is cut, and the engine with it. One
    that takes less than about 1 kB/s can be too."""

    total_s: Seconds = 3600.0
    """The whole request."""


class FailureSettings(Section):
    """What happens when an engine fails."""

    attempts: int = Field(3, ge=1)
    """The most engines that are tried for one answer."""

    retries: int = Field(3, ge=0)
    """How many retries may run at a time, however few requests do. A retry counts until its engine generates."""

    retry_share: float = Field(0.1, ge=0, le=1)
    """The share of the running requests that may be retries, where that is more."""

    resume: Literal["exact", "off"] = "exact"
    """`exact`: an answer that its engine broke off is gone on with on another engine with the same weights, token by token, where
    that gives what the first would have; else it ends with an error. `off`: it ends with an error."""

    eject_failures: int = Field(5, ge=1)
    """Failures in a row that take an engine out, while another can serve. So do two connections in a row that could not be made,
    and a share of `eject_share` of its last 20 requests."""

    eject_share: float = Field(0.4, gt=0, le=1)
    """The share of an engine's last 20 requests, ten of them at least, whose failure takes it out."""

    eject_s: Seconds = 10.0
    """How long an engine is out before one request tries it; twice as long each time in a row, at most 300 s."""

    slow_start_s: float = Field(30.0, ge=0, allow_inf_nan=False)
    """Over how long an engine that was gone gets its part of the requests again: its cache is cold."""


class LimitSettings(Section):
    """What one request may ask, and how many may wait."""

    n: int = Field(8, ge=1)
    """The largest `n`."""

    stop: int = Field(16, ge=0)
    """The most `stop` strings."""

    logprobs: int = Field(20, ge=0)
    """The largest `top_logprobs`."""

    tools: int = Field(256, ge=0)
    """The most tools."""

    messages: int = Field(10_000, ge=1)
    """The most messages."""

    queue_requests: int = Field(256, ge=0)
    """The most requests, over all models, that may wait: until an engine has room (`most_running`), or while engines are asked
    for the first time. The next is answered with 429. Engines without `most_running` queue requests themselves."""

    queue_wait_s: float = Field(30.0, ge=0, allow_inf_nan=False)
    """The longest that a request may wait so, and for a process to render its prompt; then it is answered with 503."""

    down_wait_s: float = Field(0.0, ge=0, allow_inf_nan=False)
    """How long a request waits for an engine to come back where all of its model are known to be down, within `queue_wait_s`. At
    0 it is answered with 503 at once."""

    inflight_requests: int = Field(4096, ge=1)
    """The most requests that the gateway answers at a time, those that wait included; the next is refused with 503 before it is
    read."""

    render_workers: int = Field(2, ge=0)
    """Processes that render prompts, but for the quickest. Each holds the models' vocabularies. 0: the gateway renders them
    itself, one prompt of a model after the other in a thread, where a chat template has 2 s of processor time."""

    render_s: Seconds = 10.0
    """The processor time that such a process may take for one prompt. Then it is stopped, and the request is answered with 400.
    One that does not answer within twice that time is started again; where that does not help, the answer is 503."""


class RoutingSettings(Section):
    """Which engine of a model a request goes to."""

    policy: Literal["cost", "round_robin", "least_outstanding", "session"] = "cost"
    """`cost`: where its first token is predicted soonest, the delay it puts on others counted in: near its prefix in an engine's
    cache, but for what waits there. `round_robin`: each engine in its turn. `least_outstanding`: the one with the fewest
    requests. `session`: one engine for all requests of a session, as its client names it (`prompt_cache_key` in the body, or the
    header `x-session-affinity`, `x-session-id` or `x-claude-code-session-id`); those without a name go by cost."""

    chunk_tokens: int = Field(128, ge=1, le=65_536)
    """Prompts are known by chunks of so many tokens. A multiple of the engines' block size."""

    hold_s: float | None = Field(0.7, ge=0, allow_inf_nan=False)
    """With `cost`: a request waits in the gateway where its best engine has more seconds of prompts ahead of it, or no room for
    it, so that it goes to the engine that is best when there is room, at most `limits.queue_wait_s`. `null`: it never does."""

    kappa_max: float = Field(12.0, ge=1, allow_inf_nan=False)
    """With `cost`: the most that a second of a prompt's work may count against a second of waiting. It counts more the busier the
    fleet is, as everyone behind it waits too."""

    index_entries: int = Field(2_000_000, ge=1024)
    """The most chunks that are remembered of a model, over all its engines: some 125 bytes each. Those used least recently are
    forgotten first."""


class TracingSettings(Section):
    """Where spans of requests go (docs/tracing.md). They hold no word of what was said."""

    otlp_endpoint: str | None = None
    """The OpenTelemetry collector: `http://HOST:4318` or `https://…` (OTLP over HTTP; without a path `/v1/traces`), or
    `grpc://HOST:4317`, `grpcs://…` with TLS. Needs what `pip install ".[otel]"` brings. Unset: no spans are made; a client's
    `traceparent` goes on to the engines as it came."""

    sample_ratio: float = Field(1.0, ge=0, le=1, allow_inf_nan=False)
    """The share of requests that are traced, of those whose client sends no `traceparent`; else the client decides."""

    @field_validator("otlp_endpoint")
    @classmethod
    def _collector(cls, value: str | None) -> str | None:
        if value is None:
            return None
        package = _collector_package(value)
        if not _installed(package):
            raise wrong('OpenTelemetry\'s packages are not installed: `pip install ".[otel]"` in a clone brings them')
        return value


_OTLP_SCHEMES: Mapping[str, str] = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc"}


def _collector_package(endpoint: str) -> str:
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in _OTLP_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(each.isspace() for each in endpoint):
        raise wrong("must be a collector's address, as `http://127.0.0.1:4318` or `grpc://127.0.0.1:4317`")
    if parts.username is not None or parts.password is not None:
        raise wrong("must hold no user or password: OTEL_EXPORTER_OTLP_HEADERS can hold a key")
    if parts.query or parts.fragment:
        raise wrong("must have no query and no fragment")
    over = _OTLP_SCHEMES[parts.scheme]
    if over == "grpc" and (parts.port is None or parts.path.strip("/")):
        raise wrong("must have a port and no path, as `grpc://127.0.0.1:4317`")
    return f"opentelemetry.exporter.otlp.proto.{over}"


def _installed(package: str) -> bool:
    try:
        return all(find_spec(each) is not None for each in ("opentelemetry.sdk", package))
    except ModuleNotFoundError:  # a package that it would be in
        return False
