"""The pictures of docs/: the operator's page and `interlock top`, of a gateway under load. `make screenshots`.

The gateway is the real one; its engines are fakes on loopback that speak vLLM's API: one goes down, one breaks answers off, one
makes tool calls that are none. The browser is Debian's Chromium (`make services`).
"""

import asyncio
import contextlib
import io
import random
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
from fakes.conforming import Asked, Load, ids_of
from fakes.vllm import FakeVllm
from playwright.async_api import Browser, FloatRect, Page
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from support.browser import browser
from support.gateway import Served, serving, tiny_model
from support.profiles import checked, profile_of, written
from support.scripted_engine import RESET, Seen, Step
from support.vocabulary import small_tokenizer

from gateway.settings import Settings
from gateway.top.fetch import Scraper, metrics_url
from gateway.top.screen import Frame, screen
from gateway.top.view import view_of
from gateway.top.window import History, Window

IMAGES = Path(__file__).parent.parent / "docs" / "images"
LOAD_S = 40
CLIENTS = 22
WIDTH, LINES, HEIGHT = 124, 30, 1180
FRAME_URL = "http://127.0.0.1:8081/metrics"
_ANSWERS = (
    "I will read the test first, and then change the parser.",
    "The failing case has a tab where the others have blanks.",
    "Done: all of the tests pass now, and nothing else changed.",
)
_BROKEN = '{"name": "search", "arguments": {"query": "tabs", "paths": [tests, src]}}'
_CALL, _CALL_END = (small_tokenizer().special_ids[text] for text in ("<tool_call>", "</tool_call>"))
_PROMPTS = (
    "You are a careful engineer. Read what you change, and run its tests. " * 6,
    "You write release notes for people who use the program. " * 5,
)
_DARK: Sequence[tuple[int, int, int]] = ((40, 48, 60), (255, 123, 114), (126, 217, 160), (243, 196, 99))
_LIGHT: Sequence[tuple[int, int, int]] = ((121, 170, 250), (210, 168, 255), (110, 210, 220), (200, 208, 220))
_THEME = TerminalTheme((16, 20, 27), (228, 233, 241), [*_DARK, *_LIGHT])


class DemoEngine(FakeVllm):
    """An engine that takes its time: `prefill_s` to its first token, `pace_s` for each. One answer in `breaks` is broken off, one
    call in `bad` is none; 0: none is."""

    def __init__(self, prefill_s: float, pace_s: float, *, breaks: int = 0, bad: int = 0) -> None:
        super().__init__()
        self.answers["/version"] = {"version": "0.33.0"}
        self._prefill_s, self._pace_s = prefill_s, pace_s
        self._breaks, self._bad = breaks, bad
        self._chance = random.Random(8)  # noqa: S311  the pictures shall look alike each time
        self._open = 0
        self.size = 4
        self.says = self._words

    def _words(self, _prompt: list[int]) -> Sequence[int]:
        if self._bad and self._chance.randrange(self._bad) == 0:
            return [*ids_of("I look it up. "), _CALL, *ids_of(_BROKEN), _CALL_END]
        return ids_of(self._chance.choice(_ANSWERS))

    def events(self, asked: Asked, parts: Sequence[list[int]], finish: str) -> list[object]:
        """With most of the prompt from the cache."""
        events = super().events(asked, parts, finish)
        last: Any = events[-1]
        last["usage"]["prompt_tokens_details"]["cached_tokens"] = len(asked.prompt) * self._chance.randint(5, 9) // 10
        return events

    def _script(self, seen: Seen) -> Sequence[Step]:
        made = super()._script(seen)
        waits = [step for step in made if isinstance(step, bytes)]
        self.load = Load(
            running=self._chance.randint(2, 7), waiting=self._chance.randint(0, 2), kv_usage=self._chance.uniform(0.4, 0.8)
        )
        steps: list[Step] = [made[0], self._prefill_s * self._chance.uniform(0.6, 2.5)]
        for step in waits[1:]:
            steps += [step, self._pace_s * self._chance.uniform(0.5, 1.5)]
        if self._breaks and self._chance.randrange(self._breaks) == 0:
            return [*steps[:2], RESET]
        return [*steps, *made[len(waits) :]]


@contextlib.asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[Served, DemoEngine]]:
    """Two models on five engines. The engine that it gives goes down when it is told to."""
    plan = {
        "coder-32b": {
            "coder-a": DemoEngine(0.18, 0.02),
            "coder-b": DemoEngine(0.22, 0.02, bad=3),
            "coder-c": DemoEngine(0.2, 0.02),
        },
        "writer-8b": {"writer-a": DemoEngine(0.06, 0.008), "writer-b": DemoEngine(0.07, 0.008, breaks=7)},
    }
    source = tiny_model("full")
    profile = written(checked(profile_of(source)), folder)
    async with contextlib.AsyncExitStack() as stack:
        models = []
        for name, engines in plan.items():
            named = [
                {"id": id_, "url": (await stack.enter_async_context(engine.running())).url, "kind": "vllm", "most_running": 8}
                for id_, engine in engines.items()
            ]
            models.append({"name": name, "source": str(source), "profile": profile, "engines": named})
        server = {"port": 0, "admin_port": 0, "drain_s": 1}
        settings = Settings.model_validate({"server": server, "models": models, "limits": {"render_workers": 0}})
        yield await stack.enter_async_context(serving(settings)), plan["coder-32b"]["coder-c"]


async def ask(served: Served, number: int, over: asyncio.Event) -> None:
    """One client: a request after the other, of its own conversation."""
    chance = random.Random(number)  # noqa: S311  likewise
    tools = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
    turns = 0
    while not over.is_set():
        model = "coder-32b" if number % 3 else "writer-8b"
        said = f"{_PROMPTS[number % 2]} Client {number}, turn {turns}."
        body = {"model": model, "messages": [{"role": "user", "content": said}], "tools": tools, "stream": bool(number % 2)}
        if chance.random() < 0.02:
            body["model"] = "no-such-model"
        with contextlib.suppress(httpx.HTTPError):
            await served.client.post("/v1/chat/completions", json=body)
        turns += 1
        await asyncio.sleep(chance.uniform(0.0, 0.8))


@contextlib.asynccontextmanager
async def shown(started: Browser, url: str, width: int, scheme: Literal["dark", "light"]) -> AsyncIterator[Page]:
    """The page as a browser shows it."""
    context = await started.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    page = await context.new_page()
    await page.goto(url)
    yield page
    await context.close()


async def shoot_pages(started: Browser, url: str) -> None:
    """Its beginning on a wide screen and a narrow one, and its end."""
    async with shown(started, url, 1320, "light") as page:
        await page.screenshot(path=str(IMAGES / "page.png"))
    async with shown(started, url, 390, "light") as page:
        await page.screenshot(path=str(IMAGES / "page-narrow.png"))
    async with shown(started, url, 1320, "dark") as page:
        await page.locator("details").first.click()
        begins = await page.evaluate("document.querySelector('#decisions').parentElement.getBoundingClientRect().top + scrollY")
        whole = await page.evaluate("document.documentElement.scrollHeight")
        clip = FloatRect(x=0, y=begins - 12, width=1320, height=min(whole - begins + 12, 1300))
        await page.screenshot(path=str(IMAGES / "page-decisions.png"), full_page=True, clip=clip)


def draw_top(window: Window) -> str:
    """The terminal as a picture. Rich's own names a font on the internet, which no document of ours does."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(screen(view_of(window), Frame(FRAME_URL, "03:14:07", WIDTH, LINES)), "")
    picture = console.export_svg(title="interlock top", theme=_THEME)
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return picture.replace("Fira Code, monospace", "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace")


async def main() -> int:
    """Makes all of them."""
    IMAGES.mkdir(exist_ok=True)
    over = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        async with gateway(Path(folder)) as (served, failing), browser() as started, httpx.AsyncClient(trust_env=False) as client:
            asking = [asyncio.create_task(ask(served, number, over)) for number in range(CLIENTS)]
            history, scrape = History(30.0), Scraper(client, metrics_url(served.admin_url))
            for second in range(LOAD_S):
                end = history.add(await scrape())
                if second % 10 == 0:
                    await served.client.get(f"{served.admin_url}/")  # its window begins here
                if second == LOAD_S - 12:
                    failing.up, failing.failure = False, (503, "out of memory")
                await asyncio.sleep(1)
            (IMAGES / "top.svg").write_text(draw_top(end), encoding="utf-8")
            await shoot_pages(started, f"{served.admin_url}/")
            over.set()
            await asyncio.gather(*asking)
    for file in sorted(IMAGES.iterdir()):
        print(f"{file.relative_to(IMAGES.parent.parent)}: {file.stat().st_size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
