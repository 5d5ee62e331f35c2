"""`interlock top` as its user runs it: once, as JSON, and live in a real terminal, before a gateway and before none."""

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import httpx
import msgspec
import pytest
from support.gateway import scripted
from support.scrapes import UP, text_of
from support.scripted_engine import completion

from gateway.cli import app
from gateway.top.fetch import Lost, Scraper, metrics_url
from gateway.top.rows import EngineRow, FailureRow, ModelRow, ParseFailureRow, Totals
from gateway.top.scrape import NotMetrics, Scrape
from gateway.top.troubles import Trouble
from gateway.top.view import View
from gateway.wire import jsonio

# As `interlock top`, without the rest of the command line, which takes seconds to begin.
TOP = [sys.executable, "-c", "import typer; from gateway.top.command import command; typer.run(command)"]
DOCS = Path(__file__).parents[2] / "docs" / "top.md"


@dataclass
class Ran:
    code: int
    out: str
    err: str


async def once(url: str, *options: str) -> Ran:
    process = await asyncio.create_subprocess_exec(
        *TOP, "--once", "--url", url, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return Ran(process.returncode or 0, out.decode(), err.decode())


@contextlib.asynccontextmanager
async def answering(answer: bytes, *, port: int = 0, hang: bool = False) -> AsyncIterator[str]:
    """A server that says this to every request, and then nothing more where it is to `hang`."""

    talks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            talks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if hang:
                await reader.read()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.wait(talks, timeout=10)


def http(body: bytes, head: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (head, len(body), body)


async def test_once_prints_what_the_gateway_does() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion("Hi", "there", pause_s=0.01)
        async with load(served.chat):
            table, told = await once(served.admin_url), await once(served.admin_url, "--json")
    assert (table.code, told.code, table.err, told.err) == (0, 0, "", "")
    assert table.out.isprintable() or set(filter(lambda c: not c.isprintable(), table.out)) == {"\n"}
    view = msgspec.convert(jsonio.decode(told.out), View, strict=True)
    assert view.window_s is not None
    assert view.window_s >= 1
    assert [(row.model, row.engines_up) for row in view.models] == [("m", 1)]
    assert [(row.engine, row.kind, row.state) for row in view.engines] == [("e", "llamacpp", "up")]
    assert view.models[0].requests_per_s
    assert view.models[0].ttft_p50_s
    assert view.gateway.output_tokens_per_s == pytest.approx(2 * view.models[0].requests_per_s)


@contextlib.asynccontextmanager
async def load(chat: Callable[..., Awaitable[object]]) -> AsyncIterator[None]:
    """One request after the other, while inside."""
    over = asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            await chat()

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        over.set()
        await asking


def test_the_json_is_documented_field_by_field() -> None:
    text = DOCS.read_text()
    for part in (View, Trouble, Totals, ModelRow, EngineRow, FailureRow, ParseFailureRow):
        missing = [field.name for field in fields(part) if f"`{field.name}`" not in text]
        assert not missing, f"docs/top.md lacks {missing} of {part.__name__}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http(b"nope", b"404 Not Found"), "the answer has the status 404"),
        (http(b"", b"302 Found\r\nlocation: http://127.0.0.1:1/metrics"), "the answer has the status 302"),
        (http(b"<html>"), "the answer is not to be read: nothing in it is of an Interlock gateway"),
        (http(b"x" * ((1 << 24) + 1)), "the answer is not to be read: it is larger than 16 MiB"),
        (http(b"x", b"200 OK\r\ncontent-encoding: gzip"), "the answer is compressed, which was not asked for"),
        (http(b'interlock_engine_up{a="\x1b[2J} 1\n'), "the answer is not to be read: it is not Prometheus' text format"),
        (b"SSH-2.0-other\r\n", "not reached: "),
        (b"", "not reached: "),
    ],
)
async def test_what_is_no_gateway_is_told_in_one_line(answer: bytes, why: str) -> None:
    async with answering(answer) as url, httpx.AsyncClient(timeout=30, trust_env=False) as client:
        with pytest.raises(Lost) as lost:
            await Scraper(client, metrics_url(url))()
    assert str(lost.value).startswith(why)
    assert len(str(lost.value)) < 200


async def test_an_answer_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.top.fetch._WITHIN_S", 0.2)
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"
    async with answering(answer, hang=True) as url, httpx.AsyncClient(timeout=30, trust_env=False) as client:
        with pytest.raises(Lost, match="no answer within"):
            await Scraper(client, metrics_url(url))()


async def lost(scrape: Scraper) -> str:
    with pytest.raises(Lost) as error:
        await scrape()
    return str(error.value)


async def test_an_answer_that_takes_long_to_read_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    going, most, over = 0, 0, threading.Event()

    def slow(text: bytes, at_s: float) -> Scrape:
        nonlocal going, most
        going += 1
        most = max(most, going)
        over.wait(20)
        going -= 1
        raise NotMetrics("it was slow")

    monkeypatch.setattr("gateway.top.fetch._WITHIN_S", 0.2)
    monkeypatch.setattr("gateway.top.fetch.read", slow)
    async with answering(http(text_of(UP))) as url, httpx.AsyncClient(timeout=30, trust_env=False) as client:
        scrape = Scraper(client, metrics_url(url))
        assert "no answer within" in await lost(scrape)
        for _ in range(3):
            assert "still being read" in await lost(scrape)
        over.set()
        async with asyncio.timeout(20):
            while "it was slow" not in await lost(scrape):
                await asyncio.sleep(0.01)
    assert most == 1


async def test_a_hostile_word_in_the_reason_is_text() -> None:
    async with answering(http(b'interlock_engine_up{a="\x1b[2J} 1\n')) as url:
        ran = await once(url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err[:-1].isprintable()


def test_the_command_line_has_it() -> None:
    assert "top" in {command.name for command in app.registered_commands}


async def test_a_gateway_that_is_not_there_is_told_in_one_line() -> None:
    ran = await once("http://127.0.0.1:1", "--json")
    assert (ran.code, ran.out) == (1, "")
    assert re.fullmatch(r"interlock: http://127\.0\.0\.1:1/metrics: not reached: .+\n", ran.err)


async def test_a_name_that_no_resolver_takes_is_told_in_one_line() -> None:
    ran = await once(f"http://{'a' * 300}/")
    assert (ran.code, ran.out) == (1, "")
    assert "not reached: " in ran.err.splitlines()[-1]
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--json"], "--json"),
        (["--url", "ftp://h"], "--url"),
        (["--url", "http://"], "--url"),
        (["--url", "http://h:99999"], "--url"),
        (["--url", "http://xn--a/"], "--url"),
        (["--url", "http://ü..x/"], "--url"),
        (["--url", "http://127.0.0.1:1/\x07"], "--url"),
        ([], "no terminal"),
    ],
)
async def test_what_cannot_be_meant_is_refused(options: list[str], why: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *TOP, *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert why in err.decode()


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://127.0.0.1:8081", "http://127.0.0.1:8081/metrics"),
        ("http://127.0.0.1:8081/", "http://127.0.0.1:8081/metrics"),
        ("gateway:8081", "http://gateway:8081/metrics"),
        ("https://h/interlock/metrics?x=1#y", "https://h/interlock/metrics?x=1"),
    ],
)
def test_where_the_metrics_are(url: str, asked: str) -> None:
    assert metrics_url(url) == asked


async def test_a_password_in_the_address_is_used_and_not_shown() -> None:
    async with answering(http(b"", b"401 Unauthorized")) as url:
        ran = await once(url.replace("://", "://operator:s3cret@"))
    assert (ran.code, ran.err) == (1, f"interlock: {url}/metrics: the answer has the status 401\n")


class Terminal:
    """`interlock top` in a pseudo-terminal of its own. `text` is all that it wrote."""

    def __init__(self, child: "subprocess.Popen[bytes]", keyboard: int) -> None:
        self.child, self.keyboard = child, keyboard
        self.text = ""

    def size(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self.keyboard, (lines, columns))

    def press(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    async def until(self, wanted: str, within_s: float = 20.0) -> str:
        """All from here until it shows this."""
        begun = len(self.text)
        async with asyncio.timeout(within_s):
            while wanted not in self.text[begun:]:
                await self._read()
        return self.text[begun:]

    async def ended(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(20):
            while self.child.poll() is None:
                await self._read()
        await self._read()
        return int(self.child.returncode)

    async def _read(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self.text += os.read(self.keyboard, 65536).decode("utf-8", "replace")
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def terminal(url: str, columns: int = 120, lines: int = 40) -> Iterator[Terminal]:
    keyboard, screen = pty.openpty()
    termios.tcsetwinsize(screen, (lines, columns))
    os.set_blocking(keyboard, False)
    rest = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    takes_it = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "  # so that its size and Ctrl-C are signals
    child = subprocess.Popen(
        [*TOP[:2], takes_it + TOP[2], "--url", url, "--every", "0.5"],
        stdin=screen,
        stdout=screen,
        stderr=screen,
        env={**rest, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    try:
        yield Terminal(child, keyboard)
    finally:
        child.kill()
        child.wait()
        os.close(screen)
        os.close(keyboard)


LEAVES = "\x1b[?1049l"  # the alternate screen: what was there before is shown again
HIDES, SHOWS = "\x1b[?25l", "\x1b[?25h"  # the cursor


async def test_it_is_live_in_a_terminal_of_any_size_until_q() -> None:
    async with scripted() as (engine, served):
        engine.script = lambda seen: completion("Hi", "there", pause_s=0.01)
        async with load(served.chat):
            with terminal(served.admin_url) as shown:
                await shown.until("rates and times come with the second scrape")
                wide = await shown.until("nothing is wrong")
                assert "tokens/s" in wide
                shown.size(50, 12)
                async with asyncio.timeout(20):
                    while max(map(len, frame := await _frame(shown))) > 50:
                        pass
                assert len(frame) <= 12
                shown.press(b"x")  # any other key does nothing
                shown.press(b"q")
                assert await shown.ended() == 0
    assert shown.text.count(HIDES) == shown.text.count(SHOWS) == 1
    assert shown.text.rindex(LEAVES) > shown.text.rindex("nothing is wrong")


@pytest.mark.parametrize("end", [b"\x03", b"\x04", signal.SIGTERM])
async def test_it_ends_and_leaves_the_terminal_as_it_was(end: bytes | signal.Signals) -> None:
    async with answering(http(text_of(UP))) as url:
        with terminal(url) as shown:
            await shown.until("nothing is wrong")
            before = termios.tcgetattr(shown.keyboard)[3]
            assert not before & termios.ICANON
            if isinstance(end, bytes):
                shown.press(end if end != b"\x04" else b"Q")
            else:
                shown.child.send_signal(end)
            assert await shown.ended() == 0
            assert termios.tcgetattr(shown.keyboard)[3] & termios.ICANON
    assert LEAVES in shown.text


async def test_a_gateway_that_goes_and_comes_back_is_shown_as_such() -> None:
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(answering(http(text_of(UP))))
        port = int(url.rpartition(":")[2])
        with terminal(url) as shown:
            await shown.until("nothing is wrong")
            await stack.aclose()
            text = await shown.until("trying again; what is shown is of")
            assert "not reached" in text
            assert "running" in text  # what it said last stays
            async with answering(http(text_of(UP)), port=port):
                await shown.until("nothing is wrong")
                shown.press(b"q")
                assert await shown.ended() == 0


async def test_names_that_would_take_the_terminal_over_are_text_there() -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J"
    samples = {f'interlock_engine_up{{model="{hostile}",engine="{hostile}"}}': 0.0}
    async with answering(http(text_of(samples))) as url:
        with terminal(url) as shown:
            await shown.until("no engine can serve it")
            shown.press(b"q")
            assert await shown.ended() == 0
    assert "\x1b]0;" not in shown.text
    assert "\\x1b]0;owned" in shown.text


async def _frame(shown: Terminal) -> list[str]:
    """What is drawn next, without its colours: all between two moves to the terminal's top."""
    await shown.until("\x1b[H")
    frame = (await shown.until("\x1b[H")).partition("\x1b[H")[0]
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).replace("\r", "").rstrip("\n").split("\n")
