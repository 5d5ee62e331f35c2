"""`interlock top`: scrapes a gateway again and again and draws what it says, or prints it once."""

import asyncio
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, NoReturn

import httpx
import typer
from rich.console import Console
from rich.live import Live

from gateway.top.fetch import Lost, Scraper, metrics_url, named
from gateway.top.screen import Frame, screen
from gateway.top.view import View, view_of
from gateway.top.window import History
from gateway.top.wording import text
from gateway.wire.jsonio import encode

_ONCE_S = 1.0


def command(
    *,
    url: Annotated[
        str, typer.Option(help="The gateway's admin address, or whatever serves its metrics.")
    ] = "http://127.0.0.1:8081",
    once: Annotated[bool, typer.Option("--once", help="Print it once, from two scrapes a second apart, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print it as JSON (docs/top.md).")] = False,
    window: Annotated[float, typer.Option(help="Seconds that rates and quantiles are of.", min=2, max=3600)] = 30.0,
    every: Annotated[float, typer.Option(help="Seconds between two scrapes.", min=0.5, max=60)] = 2.0,
) -> None:
    """Watch a gateway in the terminal: what is wrong, models, engines, queue, times to the first token, failures. `q` quits."""
    if as_json and not once:
        raise typer.BadParameter("goes with --once", param_hint="--json")
    try:
        place = metrics_url(url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    if once:
        sys.exit(asyncio.run(_print_once(place, as_json=as_json)))
    if not sys.stdout.isatty():
        _fail("this is no terminal: `--once` prints it once, `--once --json` as JSON", 2)
    asyncio.run(_Watching(place, window, every).run())


async def _print_once(url: str, *, as_json: bool) -> int:
    history = History(_ONCE_S)
    try:
        async with _client() as client:
            scrape = Scraper(client, url)
            history.add(await scrape())
            await asyncio.sleep(_ONCE_S)
            view = view_of(history.add(await scrape()))
    except Lost as error:
        print(f"interlock: {text(named(url))}: {text(str(error))}", file=sys.stderr)
        return 1
    if as_json:
        typer.echo(encode(view))
    else:
        console = Console(width=None if sys.stdout.isatty() else 140)
        console.print(screen(view, Frame(named(url), _clock(), console.width)))
    return 0


class _Watching:
    """The live view: scrapes come in a task, keys and the terminal's size in callbacks of the loop, and each change is drawn."""

    def __init__(self, url: str, window_s: float, every_s: float) -> None:
        self._url = url
        self._every_s = every_s
        self._history = History(window_s)
        self._view: View | None = None
        self._seen = ""
        self._lost = ""
        self._changed = asyncio.Event()
        self._ended = False

    async def run(self) -> None:
        """Until `q`, Ctrl-C or SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        scraping = asyncio.create_task(self._scrape())
        scraping.add_done_callback(lambda _: self._end())  # it ends by a bug of ours alone, which is to be seen
        console = Console()
        try:
            with _keys(loop, self._end), Live(console=console, screen=True, auto_refresh=False) as live:
                while not self._ended:
                    size = console.size
                    frame = Frame(named(self._url), _clock(), size.width, size.height, self._lost)
                    live.update(screen(self._view, frame), refresh=True)
                    await self._changed.wait()
                    self._changed.clear()
        finally:
            scraping.cancel()
            with suppress(asyncio.CancelledError):
                await scraping

    def _end(self) -> None:
        self._ended = True
        self._changed.set()

    async def _scrape(self) -> None:
        async with _client() as client:
            scrape = Scraper(client, self._url)
            while True:
                began_s = time.monotonic()
                try:
                    self._view = view_of(self._history.add(await scrape()))
                    self._seen, self._lost = _clock(), ""
                except Lost as error:
                    known = f"; what is shown is of {self._seen}" if self._seen else ""
                    self._lost = f"{error}; trying again{known}"
                self._changed.set()
                await asyncio.sleep(max(0.0, began_s + self._every_s - time.monotonic()))


@contextmanager
def _keys(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
    """Reads keys as they are pressed, where there is a keyboard."""
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    if keyboard is None:
        yield
        return

    def pressed() -> None:
        keys = os.read(keyboard, 64)
        if not keys or b"q" in keys.lower():
            end()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _client() -> httpx.AsyncClient:
    """One that asks nobody but the address given: no proxy of the environment, no redirect."""
    return httpx.AsyncClient(timeout=None, trust_env=False, follow_redirects=False)  # noqa: S113  `fetch` limits it


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _fail(message: str, code: int = 1) -> NoReturn:
    print(f"interlock: {message}", file=sys.stderr)
    sys.exit(code)
