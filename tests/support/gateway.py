"""A whole gateway on loopback ports, in the test's own loop."""

import asyncio
import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.gguf_writer import Field, gguf
from support.scripted_engine import ScriptedEngine
from support.vocabulary import template_text, tokenizer_fields

from gateway.app import Gateway, Records, with_models
from gateway.fleet.discovery import DiscoveryRules
from gateway.process import bind_both, serve
from gateway.server.listen import port_of
from gateway.settings import Settings
from gateway.wire.jsonio import decode
from gateway.wire.sse import SseReader


@dataclass
class Served:
    """A running gateway and a client for it."""

    url: str
    admin_url: str
    client: httpx.AsyncClient
    gateway: Gateway
    stop: asyncio.Event

    async def chat(self, **body: Any) -> httpx.Response:
        """A chat request, not streamed unless it says so."""
        return await self.client.post("/v1/chat/completions", json={**HELLO, **body})

    async def stream(self, **body: Any) -> list[Any]:
        """The events of a streamed chat; the last is "[DONE]" where the gateway said so."""
        response = await self.chat(stream=True, **body)
        assert response.status_code == 200, response.text
        return events_of(response.content)

    async def metrics(self) -> dict[str, float]:
        """Every sample, by the name that `sample` gives it."""
        text = (await self.client.get(f"{self.admin_url}/metrics")).text
        families = text_string_to_metric_families(text)
        return {sample(each.name, **each.labels): each.value for family in families for each in family.samples}

    async def settled(self, name: str, value: float | None, within_s: float = 2.0) -> None:
        """Waits until a sample has this value; None: until there is none."""
        seen: float | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (seen := (await self.metrics()).get(name)) != value:
                    await asyncio.sleep(0.01)
        assert seen == value, f"{name} is {seen}, not {value}"


HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def sample(name: str, **labels: str) -> str:
    """A sample's name and labels as one word."""
    return f"{name}{sorted(labels.items())}"


PAIR = {"model": "m", "engine": "e"}
IN_FLIGHT = sample("interlock_inflight_requests", **PAIR)


def events_of(body: bytes) -> list[Any]:
    """The data of each server-sent event, decoded but for the terminator."""
    return ["[DONE]" if event.data == b"[DONE]" else decode(event.data) for event in SseReader().feed(body)]


def outcome(name: str, engine: str = "e", model: str = "m") -> str:
    """The sample that counts requests with this outcome."""
    return sample("interlock_requests_total", model=model, engine=engine, dialect="openai_chat", outcome=name)


@cache
def tiny_model(template: str = "echo") -> Path:
    """A file with one of our own templates, a vocabulary of bytes and no weights: enough to render for, and quick to read."""
    place = Path(tempfile.mkdtemp(prefix="interlock-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    about: dict[str, Field] = {"general.architecture": "tiny", "tiny.context_length": 8192}
    file = place / f"{template}.gguf"
    file.write_bytes(gguf({**about, **tokenizer_fields(template=template_text(template))}))
    return file


SECTIONS = ("server", "timeouts", "limits", "failures", "routing", "tracing", "require_checks")


def settings_for(url: str, *, kind: str = "llamacpp", engine: dict[str, Any] | None = None, **changed: Any) -> Settings:
    """Settings of one model `m` on one engine `e`. Keys of `changed` are the model's, but for those that name a section."""
    sections = {name: changed.pop(name) for name in SECTIONS if name in changed}
    source = {"format": "engine"} if kind == "openai" else {"source": str(tiny_model())}
    model = {"name": "m", **source, "engines": [{"id": "e", "url": url, "kind": kind, **(engine or {})}], **changed}
    server = {"port": 0, "admin_port": 0, "drain_s": 1, **sections.pop("server", {})}
    # A process for each test that renders nothing long would be slow.
    limits = {"render_workers": 0, **sections.pop("limits", {})}
    return Settings.model_validate({"server": server, "models": [model], "limits": limits, **sections})


class Least:
    """A source of chance without any: of engines that are equal, the first in the settings."""

    def random(self) -> float:
        """The least."""
        return 0.0


@contextlib.asynccontextmanager
async def serving(
    settings: Settings,
    *,
    wait: bool = True,
    access: Records | None = None,
    environ: Mapping[str, str] | None = None,
    discovery: DiscoveryRules | None = None,
    gpu_metrics: str | None = None,
) -> AsyncIterator[Served]:
    """The gateway of these settings, once its engines are ready. `access` takes the records of the access log."""
    configured = replace(with_models(settings), discovery=discovery or DiscoveryRules(), chance=Least(), gpu_metrics=gpu_metrics)
    sockets = bind_both(settings.server)
    url, admin = (f"http://127.0.0.1:{port_of(each)}" for each in sockets)
    stop, started = asyncio.Event(), asyncio.Event()
    found: list[Gateway] = []

    async def on_ready(gateway: Gateway, _port: int) -> None:
        found.append(gateway)
        while wait and not all(gateway.registry.view(model.name).ready for model in gateway.models):
            await gateway.registry.changed()
        started.set()

    environ = os.environ if environ is None else environ
    running = asyncio.create_task(serve(configured, environ, sockets, stop, on_ready=on_ready, access=access))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=20)
    if running.done():
        waiting.cancel()
        running.result()
    assert started.is_set(), "the gateway did not become ready"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as client:
            yield Served(url, admin, client, found[0], stop)
    finally:
        stop.set()
        await running


@contextlib.asynccontextmanager
async def scripted(*, on: ScriptedEngine | None = None, **changed: Any) -> AsyncIterator[tuple[ScriptedEngine, Served]]:
    """A scripted engine, or the running one given, and the gateway in front of it."""
    async with contextlib.AsyncExitStack() as stack:
        engine = on if on is not None else await stack.enter_async_context(ScriptedEngine().running())
        yield engine, await stack.enter_async_context(serving(settings_for(engine.url, **changed)))
