"""The operator's page: what it shows is what `/fleet`, `/metrics` and `/explain` say, it is text whatever it holds, and a browser
has no complaint of it."""

import asyncio
import base64
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from html.parser import HTMLParser
from itertools import count
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from prometheus_client.core import GaugeMetricFamily, Metric
from support.browser import browser, looking
from support.events import MADE
from support.gateway import Served, sample, scripted, serving, settings_for
from support.scripted_engine import HEAD, RESET, ScriptedEngine, completion

from engines.base import EngineInfo, EngineLoad
from gateway.made import Made
from gateway.observe.explain import AttemptStory, RequestStory
from gateway.observe.faults import LastFaults
from gateway.observe.redact import Redactor
from gateway.request import Fault
from gateway.routing.view import Belief
from gateway.server.admin import BreakerEntry, CacheEntry, EngineEntry, EventsEntry, LoadEntry
from gateway.server.page import Facts, Page
from gateway.server.profiles import CheckResult, ModelProfile

BAD_CALL = ("Let me see. ", "<tool_call>", '{"name": "f", ', "oops", "</tool_call>")


class _Text(HTMLParser):
    """A page's text, as a reader has it, and its tags with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if not (self.tags and self.tags[-1][0] == "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def rows(html: str, table: str) -> list[list[str]]:
    """The cells of a table's body, each as one line of text."""
    found = re.search(f'<table id="{table}".*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    body = found[1] if found is not None else ""
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)]
    return [[_Text(cell).text for cell in each] for each in cells]


async def page(served: Served, query: str = "") -> httpx.Response:
    return await served.client.get(f"{served.admin_url}/{query}")


@contextlib.asynccontextmanager
async def two_engines(**changed: Any) -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine, Served]]:
    """A gateway that renders for two engines, in the format Hermes."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(ScriptedEngine().running()) for _ in range(2)]
        named = [{"id": name, "url": each.url, "kind": "llamacpp"} for name, each in zip("ab", engines, strict=True)]
        served = await stack.enter_async_context(serving(settings_for("", engines=named, format="hermes", **changed)))
        yield engines[0], engines[1], served


async def test_what_it_shows_is_what_the_other_paths_say() -> None:
    async with two_engines() as (first, second, served):
        first.script = lambda seen: completion("Hi", "there")
        failing = iter([True])
        second.script = lambda seen: [HEAD, RESET] if next(failing, False) else completion("Hi")
        await page(served)
        await asyncio.sleep(0.6)  # a window is half a second at least
        answers = [await served.chat() for _ in range(6)]
        assert {answer.status_code for answer in answers} == {200}
        served.gateway.registry.set_load("a", EngineLoad(running=2, waiting=1, kv_usage=0.25))
        html = (await page(served)).text
        metrics = await served.metrics()
        fleet = (await served.client.get(f"{served.admin_url}/fleet")).json()["engines"]
        told = (await served.client.get(f"{served.admin_url}/explain?last=12")).json()["requests"]
    engines = {row[0].split()[0]: row for row in rows(html, "engines")}
    assert set(engines) == {each["id"] for each in fleet}
    for each in fleet:
        row = engines[each["id"]]
        assert each["url"] in row[0]
        assert row[1:3] == ["m", row[2]]
        assert row[2].split()[0] == ("up" if each["ready"] else "down")
        assert row[3] == str(each["running"])
        cached = metrics.get(sample("interlock_cached_prompt_tokens_total", model="m", engine=each["id"]))
        prompt = metrics[sample("interlock_prompt_tokens_total", model="m", engine=each["id"])]
        assert row[9] == ("–" if cached is None else f"{cached / prompt:.0%}")
        assert row[10].split()[0] == str(each["router"]["index_entries"])
    assert engines["a"][4:6] == ["2 + 1 waiting", "25%"]
    (model,) = rows(html, "models")
    assert model[:2] == ["m", "2/2"]
    assert model[3] == "0%"
    assert float(model[2]) > 0
    decisions = rows(html, "decisions")
    assert [row[0] for row in decisions] == [each["request_id"][-8:] for each in told]
    assert [row[2] for row in decisions] == [each["outcome"] for each in told]
    for row, each in zip(decisions, told, strict=True):
        assert all(attempt["engine"] in row[6] and attempt["why"] in row[6] for attempt in each["attempts"])


async def test_rates_come_with_the_second_page() -> None:
    async with scripted() as (_, served):
        first = (await page(served)).text
        await served.chat()
        await asyncio.sleep(0.6)
        second = (await page(served)).text
    assert "rates and times come with the next refresh" in first
    assert rows(first, "models")[0][2:4] == ["–", "–"]
    assert "numbers of the last" in second
    assert float(rows(second, "models")[0][2]) > 0


async def test_an_engine_that_is_down_is_the_first_thing_said() -> None:
    async with two_engines() as (first, _, served):
        assert "Nothing is wrong" in (await page(served)).text
        first.up = False
        await served.settled(sample("interlock_engine_up", model="m", engine="a"), 0.0, within_s=30)
        await asyncio.sleep(0.6)
        text = _Text((await page(served)).text).text
        (entry, _) = (await served.client.get(f"{served.admin_url}/fleet")).json()["engines"]
    assert text.index("m on a down:") < text.index("Models")
    assert f"m on a down: {entry['problem']}" in text


async def test_a_drained_engine_is_shown_as_such() -> None:
    async with two_engines() as (_, _, served):
        await served.client.post(f"{served.admin_url}/fleet/b/drain")
        html = (await page(served)).text
    assert "drained by an operator" in {row[0].split()[0]: row for row in rows(html, "engines")}["b"][2]


async def test_the_last_faults_are_shown_with_the_raw_output_around_them() -> None:
    async with two_engines() as (first, second, served):
        first.script = second.script = lambda seen: completion(*BAD_CALL)
        for _ in range(3):
            await served.chat()
        html = (await page(served)).text
        told = (await served.client.get(f"{served.admin_url}/explain?last=1")).text
    (row, *_) = rows(html, "faults")
    assert row[1:4] == ["m", row[2], "hermes"]
    assert row[4].startswith("invalid json at ")
    assert "<tool_call>" in row[5]
    assert "oops" in row[5]
    assert "alike" in row[0]
    assert "oops" not in told  # nowhere else


async def test_a_secret_in_the_output_is_not_shown() -> None:
    key = "canary-engine-key-77"
    engine = {"api_key_env": "ENGINE_KEY"}
    async with ScriptedEngine().running() as scripted_engine:
        scripted_engine.script = lambda seen: completion("<tool_call>", f'{{"key": {key}, bad')
        settings = settings_for(scripted_engine.url, engine=engine, format="hermes")
        async with serving(settings, environ={"ENGINE_KEY": key}) as served:
            await served.chat()
            html = (await page(served)).text
    assert "[redacted]" in rows(html, "faults")[0][5]
    assert key not in html


async def test_an_operator_can_have_no_output_shown() -> None:
    async with two_engines(server={"failure_texts": False}) as (first, second, served):
        first.script = second.script = lambda seen: completion(*BAD_CALL)
        await served.chat()
        html = (await page(served)).text
    assert rows(html, "faults")[0][4:] == [rows(html, "faults")[0][4], "–"]
    assert "oops" not in html
    assert "server.failure_texts" in html


async def test_how_each_model_is_spoken_to_is_shown() -> None:
    async with two_engines() as (_, _, served):
        text = _Text((await page(served)).text).text
        prompter = served.gateway.models[0].rendered
        assert prompter is not None
        digest = sha256(prompter.prompter.sources["default"].encode()).hexdigest()[:16]
    about = text.partition("How models are spoken to")[2]
    for word in ("format hermes", f"template default {digest}", "<|im_end|> 2", "check not checked as it is", "developer"):
        assert word in about


@pytest.mark.parametrize(
    ("query", "seconds"), [("", "5"), ("?refresh=30", "30"), ("?refresh=0", None), ("?refresh=3600", "3600")]
)
async def test_the_browser_asks_again_as_often_as_wanted(query: str, seconds: str | None) -> None:
    async with scripted() as (_, served):
        tags = _Text((await page(served, query)).text).tags
    refreshes = [about["content"] for tag, about in tags if tag == "meta" and about.get("http-equiv") == "refresh"]
    assert refreshes == ([seconds] if seconds is not None else [])


@pytest.mark.parametrize("refresh", ["-1", "x", "", "3601", "99999", "1.5", "5;url=http://evil.example", "²"])
async def test_another_refresh_is_refused(refresh: str) -> None:
    async with scripted() as (_, served):
        response = await served.client.get(f"{served.admin_url}/", params={"refresh": refresh})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "refresh")


async def test_it_is_for_this_address_alone_and_allows_nothing_but_its_own_style() -> None:
    async with scripted() as (_, served):
        response = await page(served)
        foreign = await served.client.get(f"{served.admin_url}/", headers={"host": "evil.example"})
        public = await served.client.get("/")
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "foreign_site")
    assert public.status_code == 404
    style = re.search(r"<style>(.*?)</style>", response.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(sha256(style[1].encode()).digest()).decode()
    policy = dict(each.strip().split(" ", 1) for each in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["style-src"] == f"'sha256-{digest}'"
    assert not {"script-src", "connect-src"} & policy.keys()
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"
    tags = {tag for tag, _ in _Text(response.text).tags}
    assert not {"script", "iframe", "form", "object", "img"} & tags


HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}\x1b[2J\u202e\x00\ud800"
BELIEF = Belief(0, 0, 0, 0.0, 100.0, 1.0)


def hostile_facts() -> Facts:
    """Everything that others say is hostile, also where the settings allow no such name."""
    load, cache = LoadEntry(1, 2, 0.99, 0.5), CacheEntry("drifts", 1, 2, 3, 4, 5)
    info = EngineInfo(version=HOSTILE, model=HOSTILE)
    engine = EngineEntry(
        HOSTILE, HOSTILE, HOSTILE, f"http://{HOSTILE}", False, HOSTILE, True, True, BreakerEntry("half_open", 0.5), 3.0, 0.5,
        1, 2, load, info, HOSTILE, BELIEF, cache, EventsEntry("shadow", HOSTILE),
    )  # fmt: skip
    attempt = AttemptStory(1, HOSTILE, HOSTILE, 0.0, outcome="failed", reason=HOSTILE)
    story = RequestStory(HOSTILE, HOSTILE, HOSTILE, HOSTILE, attempts=[attempt] * 6)
    faults = LastFaults(Redactor(), lambda: 0.0, shows=True)
    fault = Fault("invalid_json", 3, True, HOSTILE, 5, False)
    faults(replace(MADE, request_id=HOSTILE, model=HOSTILE, engine=HOSTILE, format=HOSTILE, made=Made(faults=(fault,))))
    model = ModelProfile(
        HOSTILE, (HOSTILE,), HOSTILE, True, HOSTILE, HOSTILE + "2", 9, ((HOSTILE, HOSTILE),), ((1, HOSTILE),),
        ((HOSTILE, HOSTILE),), (HOSTILE,), HOSTILE, HOSTILE, HOSTILE, (CheckResult(HOSTILE, False, 1, (HOSTILE,)),),
    )  # fmt: skip

    def metrics() -> Iterator[Metric]:
        up = GaugeMetricFamily("interlock_engine_up", "", labels=("model", "engine"))
        up.add_metric((HOSTILE, HOSTILE), 0)
        yield up
        failed = GaugeMetricFamily("interlock_request_failures_total", "", labels=("model", "outcome", "reason"))
        failed.add_metric((HOSTILE, HOSTILE, HOSTILE), 2)
        yield failed

    return Facts(lambda _: metrics, lambda: [engine], lambda _: [story], faults, lambda: True, (model,))


async def test_hostile_words_are_text_wherever_they_stand() -> None:
    seconds = count()
    made = Page(hostile_facts(), lambda: float(next(seconds)))
    html = await made.html(0)
    parsed = _Text(html)
    assert not {"script", "img"} & {tag for tag, _ in parsed.tags}
    assert not [about for _, about in parsed.tags if any(name.startswith("on") for name in about)]
    links = [link for _, about in parsed.tags if (link := about.get("href"))]
    assert all(link.startswith(("/", "data:")) for link in links)
    shown = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}\\x1b[2J\\u202e\\x00\\ud800"
    assert parsed.text.count(shown) > 20
    assert not [char for char in html if not char.isprintable() and char != "\n"]
    html.encode()


async def test_all_who_look_at_once_are_given_one_page_whatever_they_have_asked_again() -> None:
    looked = 0

    def engines() -> list[EngineEntry]:
        nonlocal looked
        looked += 1
        return []

    made = Page(dataclasses.replace(hostile_facts(), engines=engines), lambda: 0.0)
    pages = await asyncio.gather(*(made.html(seconds % 4) for seconds in range(40)))
    assert looked == 1
    assert len(set(pages)) == 4
    for seconds, html in enumerate(pages[:4]):
        assert html.count('<meta http-equiv="refresh"') == (1 if seconds else 0)
        assert (f"every {seconds} s" if seconds else "paused") in _Text(html).text
        assert "<!--" not in html


@pytest.mark.parametrize("path", ["", "fleet", "explain?last=1"])
async def test_a_page_of_another_site_can_link_to_it_and_do_no_more(path: str) -> None:
    async with scripted() as (_, served):

        async def status(**said: str) -> int:
            headers = {name.replace("_", "-"): value for name, value in said.items()}
            return (await served.client.get(f"{served.admin_url}/{path}", headers=headers)).status_code

        for dest in ("empty", "image", "script", "iframe"):
            assert await status(sec_fetch_site="cross-site", sec_fetch_mode="no-cors", sec_fetch_dest=dest) == 403
        assert await status(sec_fetch_site="cross-site") == 403
        assert await status(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document") == 200
        assert await status(sec_fetch_site="same-origin", sec_fetch_dest="empty") == 200
        assert await status(sec_fetch_site="none", sec_fetch_dest="document") == 200


@contextlib.asynccontextmanager
async def serving_page(made: Page) -> AsyncIterator[str]:
    """A page alone on a loopback port, with its headers."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = (await made.html(0)).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in made.headers.items())
        head += f"content-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + head.encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_a_browser_shows_hostile_words_as_text_and_runs_none() -> None:
    seconds = count()
    made = Page(hostile_facts(), lambda: float(next(seconds)))
    async with serving_page(made) as url, browser() as started, looking(started) as seen:
        await seen.page.goto(url)
        assert await seen.page.locator("script, img, [onerror]").count() == 0
        assert "<script>alert(1)</script>" in await seen.page.locator("#engines").inner_text()
    assert seen.complaints == []
    assert {re.sub("^(data:[^,]*),.*", "\\1", asked) for asked in seen.asked} <= {url, "data:image/svg+xml"}


async def test_a_browser_under_load_has_no_complaint_and_asks_nobody_else() -> None:
    """On a wide screen and a narrow one, and without scripts; it asks again by itself, and can be told not to."""
    async with two_engines() as (first, second, served), browser() as started:
        first.script = second.script = lambda seen: completion(*BAD_CALL, pause_s=0.01)
        over = asyncio.Event()

        async def load() -> None:
            while not over.is_set():
                await served.chat()

        asking = [asyncio.create_task(load()) for _ in range(3)]
        try:
            async with looking(started, scripts=False) as seen:
                await seen.page.goto(f"{served.admin_url}/?refresh=1")
                async with asyncio.timeout(30):
                    while await seen.page.locator("text=rates and times come with").count():
                        await asyncio.sleep(0.2)
                    while seen.asked.count(f"{served.admin_url}/?refresh=1") < 3:
                        await asyncio.sleep(0.2)
                shown = {await each.inner_text() for each in await seen.page.locator("#engines tbody th").all()}
                assert {text.split()[0] for text in shown} == {"a", "b"}
                assert "<tool_call>" in await seen.page.locator("#faults").inner_text()
                await seen.page.get_by_text("pause").click()
                assert seen.page.url == f"{served.admin_url}/?refresh=0"
                assert await seen.page.locator("meta[http-equiv=refresh]").count() == 0
            async with looking(started, 360, 740) as narrow:
                await narrow.page.goto(f"{served.admin_url}/?refresh=0")
                width = await narrow.page.evaluate("document.documentElement.scrollWidth")
                assert width <= 360  # nothing is cut or needs to be moved sideways
                cells = narrow.page.locator("#engines tbody tr").first.locator("td")
                boxes = [await cell.bounding_box() for cell in await cells.all()]
                assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)
        finally:
            over.set()
            await asyncio.gather(*asking)
    for each in (seen, narrow):
        assert each.complaints == []
        assert {asked.partition("?")[0] for asked in each.asked if not asked.startswith("data:")} == {f"{served.admin_url}/"}
