"""`interlock up`: local engines with a model, the gateway in front of them, and one greeting through both.

Invariant: when it returns, for whatever reason, the engines that it started are gone.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.status import Status

from engines.local import LocalEngine, LocalState
from gateway.app import Gateway, with_models
from gateway.process import serve, unless_stopped
from gateway.server.listen import port_of
from gateway.settings import EngineSettings, ModelSettings, Settings
from gateway.settings_fit import ToolMode
from gateway.settings_parts import LimitSettings, ServerSettings
from gateway.voice import tools_for
from gateway.wire.jsonio import decode
from gateway.wire.sse import SseReader

GREETING = "Hello! Who are you? Answer in one short sentence."
_GREETING_TOKENS = 48
_READY_S = 30.0


class NotUp(Exception):
    """It could not be started; the message is the one line that says why."""


async def up(
    stop: asyncio.Event,
    *,
    model: Path,
    name: str,
    sockets: tuple[socket.socket, socket.socket],
    environ: Mapping[str, str],
    console: Console,
    engines: int = 1,
) -> None:
    """Serves until `stop`, from so many engines. Raises NotUp, or an engine's EngineStartError, with one clear line."""
    tools = tools_for(model)  # an unreadable file is told before anything starts
    status = console.status("Starting the engine")
    async with contextlib.AsyncExitStack() as started:
        urls: dict[str, str] = {}
        with status:
            for id in ["local"] if engines == 1 else [f"local-{number}" for number in range(1, engines + 1)]:
                engine = LocalEngine(model, alias=name, on_state=_Teller(console, status, "" if engines == 1 else id))
                started.push_async_callback(engine.stop)
                await unless_stopped(engine.start(), stop)
                if stop.is_set():
                    return
                urls[id] = engine.url

        async def on_ready(gateway: Gateway, port: int) -> None:
            await _wait_ready(gateway, name)
            try:
                await _greet(f"http://127.0.0.1:{port}", name, console)
            except httpx.HTTPError as error:
                raise NotUp(f"the greeting failed: {str(error) or type(error).__name__}") from None
            _show_how(console, port, port_of(sockets[1]), name)

        configured = replace(with_models(_settings(port_of(sockets[0]), model, name, tools, urls)), warn_unchecked=False)
        telling = asyncio.create_task(_tell_the_end(stop, console))
        try:
            await serve(configured, environ, sockets, stop, on_ready=on_ready)
        finally:
            telling.cancel()


def _settings(port: int, model: Path, name: str, tools: ToolMode, urls: Mapping[str, str]) -> Settings:
    engines = tuple(EngineSettings(id=id, url=url, kind="llamacpp") for id, url in urls.items())
    return Settings(
        server=ServerSettings(port=port, route_headers=True),  # on loopback, to one who may know which engine answered
        limits=LimitSettings(down_wait_s=LimitSettings().queue_wait_s),  # an engine that died is started again
        models=(ModelSettings(name=name, source=model, tools=tools, engines=engines),),
    )


async def _tell_the_end(stop: asyncio.Event, console: Console) -> None:
    await stop.wait()
    console.print("\nFinishing the answers that run; Ctrl-C again cuts them.", highlight=False)


class _Teller:
    """Says how an engine is doing: one line that moves while it starts, one line for each later change.

    `id` names it where there are several; then its process is named too, for who wants to see one fail.
    """

    def __init__(self, console: Console, status: Status, id: str) -> None:
        self._console = console
        self._phase = ""
        self._status = status
        self._name = f"engine {id}" if id else "the engine"
        self._several = bool(id)

    def __call__(self, state: LocalState) -> None:
        if state.phase == "starting":
            self._status.update(f"Starting {self._name}: {state.elapsed_s:.1f} s")
        if state.phase == self._phase:
            return
        self._phase = state.phase
        name = self._name[0].upper() + self._name[1:]
        process = f", process {state.pid}," if self._several else ""
        lines = {
            "starting": f"Starting {self._name}.",
            "ready": f"{name}{process} is ready after {state.elapsed_s:.1f} s.",
            "down": f"{name} died and is started again ({state.message}).",
            "stopped": f"{name} has ended.",
        }
        self._console.print(lines[state.phase], markup=False, highlight=False)


async def _wait_ready(gateway: Gateway, name: str) -> None:
    try:
        async with asyncio.timeout(_READY_S):
            while not gateway.registry.view(name).ready:
                await gateway.registry.changed()
    except TimeoutError:
        raise NotUp(f"the engine was not ready within {_READY_S:g} s") from None


async def _greet(url: str, name: str, console: Console) -> None:
    """One question through the gateway, shown as the answer streams."""
    console.print(f"\n[bold]You:[/] {GREETING}\n[bold]{name}:[/] ", end="", highlight=False)
    began = time.monotonic()
    first = usage = None
    async for chunk in _chat(url, name):
        text = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        if text and first is None:
            first = time.monotonic()
        console.print(text, end="", markup=False, highlight=False)
        usage = chunk.get("usage") or usage
    if first is None or usage is None:
        raise NotUp("the engine gave no answer to the greeting")
    tokens = usage["completion_tokens"]
    speed = (tokens - 1) / max(time.monotonic() - first, 1e-6)
    console.print(
        f"\n\n{tokens} tokens, first after {first - began:.2f} s (TTFT), then {speed:.1f} tokens per second.\n", highlight=False
    )


async def _chat(url: str, name: str) -> AsyncIterator[dict[str, Any]]:
    body = {
        "model": name,
        "messages": [{"role": "user", "content": GREETING}],
        "max_completion_tokens": _GREETING_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    events = SseReader()
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        if response.status_code != 200:
            raise NotUp(f"the greeting failed: {decode(await response.aread())['error']['message']}")
        async for data in response.aiter_bytes():
            for event in events.feed(data):
                if event.data == b"[DONE]":
                    return
                chunk = decode(event.data)
                if "error" in chunk:
                    raise NotUp(f"the greeting failed: {chunk['error']['message']}")
                yield chunk


def _show_how(console: Console, port: int, admin_port: int, name: str) -> None:
    """How the user's own client reaches this gateway."""
    url, admin = f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{admin_port}"
    console.print(
        f"""Serving {name} at {url}. Your own client, from a shell:

  curl -N {url}/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{name}", "stream": true, "max_tokens": 64, "messages": [{{"role": "user", "content": "Hello"}}]}}'

or from Python, with the openai package:

  from openai import OpenAI
  client = OpenAI(base_url="{url}", api_key="any")
  messages = [{{"role": "user", "content": "Hello"}}]
  answer = client.chat.completions.create(model="{name}", messages=messages, max_tokens=64)
  print(answer.choices[0].message.content)

Metrics: http://127.0.0.1:{port}/metrics, and at the admin port, {admin}/metrics.
How it stands: {admin}/ in a browser, {admin}/fleet for programs, in a terminal
`interlock top --url {admin}`. Ctrl-C ends it.""",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
