"""What the admin port tells of the engines, and what an operator does with one."""

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from support.gateway import Served, scripted, serving, settings_for
from support.scripted_engine import CLOSE, HEAD, RESET, ScriptedEngine, Step, completion, event, llama_end, llama_token
from support.wiring import fleet
from yarl import URL

from engines.base import EngineInfo, EngineLoad
from gateway.observe.drift import Drift
from gateway.routing.view import Belief
from gateway.server.admin import Told, _entry, _without_secrets

KEY = "sk-canary-admin-41b7"
IDS = ("a/b:1", "c/drain")


async def engines(served: Served) -> dict[str, Any]:
    response = await served.client.get(f"{served.admin_url}/fleet")
    assert response.status_code == 200
    return {each["id"]: each for each in response.json()["engines"]}


def two(first: ScriptedEngine, second: ScriptedEngine, **changed: Any) -> Any:
    """Settings of one model on two engines whose ids have all that ids may have."""
    urls = dict(zip(IDS, (first.url, second.url), strict=True))
    return settings_for("", engines=[{"id": name, "url": url, "kind": "llamacpp"} for name, url in urls.items()], **changed)


async def test_the_fleet_is_shown_as_it_stands() -> None:
    async with scripted(engine={"most_running": 5, "weights": "w"}) as (engine, served):
        tokens = [step for at in range(1, 30) for step in (event(llama_token("a", at)), 0.05)]
        engine.script = lambda seen: [HEAD, *tokens, event(llama_end(29)), b"0\r\n\r\n", CLOSE]
        request = asyncio.create_task(served.chat(stream=True))
        async with asyncio.timeout(10):
            while (await engines(served))["e"]["running"] != 1:
                await asyncio.sleep(0.01)
        served.gateway.registry.set_load("e", EngineLoad(running=2, waiting=1, kv_usage=0.25))
        found = await engines(served)
        assert (await request).status_code == 200
        assert (await engines(served))["e"]["running"] == 0
    assert list(found) == ["e"]
    shown = found["e"]
    assert (shown["load"].pop("age_s") >= 0, shown.pop("load")) == (True, {"running": 2, "waiting": 1, "kv_usage": 0.25})
    info = shown.pop("info")
    assert set(info) == set(EngineInfo.__dataclass_fields__)
    assert set(shown.pop("router")) == set(Belief.__dataclass_fields__)
    assert shown.pop("predictions")["state"] == "not_told"
    assert shown.pop("kv_events") == {"state": "off", "reason": ""}
    assert shown == {
        "id": "e",
        "model": "m",
        "kind": "llamacpp",
        "url": engine.url,
        "ready": True,
        "problem": None,
        "draining": False,
        "leaving": False,
        "breaker": {"state": "closed", "failing": 0},
        "rests_s": 0,
        "share": 1,
        "running": 1,
        "most_running": 5,
        "weights": "text:w",
    }


async def test_failures_show_in_the_breaker() -> None:
    async with scripted(failures={"eject_failures": 2}) as (engine, served):
        engine.script = lambda seen: [b"HTTP/1.1 500 no\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}", CLOSE]
        for _ in range(2):
            await served.chat()
        assert (await engines(served))["e"]["breaker"] == {"state": "open", "failing": pytest.approx(1.0, abs=0.1)}


async def test_a_drained_engine_gets_no_requests_until_it_is_undone() -> None:
    async with contextlib.AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(ScriptedEngine().running()) for _ in IDS]
        served = await stack.enter_async_context(serving(two(first, second)))
        admin = await stack.enter_async_context(httpx.AsyncClient(base_url=served.admin_url, trust_env=False))
        with capture_logs() as logs:
            answers = [await admin.post(f"/fleet/{IDS[0]}/drain") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert [answer.json()["draining"] for answer in answers] == [True, True]
        assert [each["engine"] for each in logs if each["event"].startswith("engine drains")] == [IDS[0]]
        for _ in range(3):
            assert (await served.chat()).status_code == 200
        assert (len(first.calls), len(second.calls)) == (0, 3)
        assert {name: each["draining"] for name, each in (await engines(served)).items()} == {IDS[0]: True, IDS[1]: False}
        told = (await served.client.get(f"{served.admin_url}/ready")).json()
        assert (told["status"], told["problems"]) == ("ready", {"m": {IDS[0]: "draining"}})
        public = await served.client.get("/ready")
        assert (public.json()["models"], public.json()["problems"]) == ({"m": True}, {"m": ["draining"]})
        assert IDS[0] not in public.text  # who can reach the API need not know the engines
        await admin.post(f"/fleet/{IDS[1].replace('/', '%2F')}/drain")
        assert (await served.client.get("/ready")).status_code == 503
        assert (await served.chat()).status_code == 503
        for name in IDS:
            assert (await admin.delete(f"/fleet/{name}/drain")).json()["draining"] is False
        assert (await admin.delete(f"/fleet/{IDS[0]}/drain")).status_code == 200
        assert (await served.chat()).status_code == 200
        assert len(first.calls) == 1


async def test_a_running_answer_outlives_its_engine_s_drain() -> None:
    async with scripted() as (engine, served):
        tokens = [step for at in range(1, 12) for step in (event(llama_token("a", at)), 0.05)]
        engine.script = lambda seen: [HEAD, *tokens, event(llama_end(11)), b"0\r\n\r\n", CLOSE]
        request = asyncio.create_task(served.stream())
        while not engine.calls:
            await asyncio.sleep(0.01)
        assert (await served.client.post(f"{served.admin_url}/fleet/e/drain")).status_code == 200
        assert (await request)[-1] == "[DONE]"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_an_unknown_engine_is_not_found(method: str) -> None:
    async with scripted() as (_, served):
        for name in ("x", "e/e", "%00", "e" * 5000):
            response = await served.client.request(method, f"{served.admin_url}/fleet/{name}/drain")
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (404, "engine_not_found", "id")
            assert len(error["message"]) < 200


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"origin": "http://evil.example"}, 403),  # over plain HTTP a browser says no more
        ({"origin": "null"}, 403),
        ({"host": "10.0.0.1:8081", "origin": "http://10.0.0.1"}, 403),  # another port is another site
        ({"host": "10.0.0.1:8081", "origin": "http://10.0.0.1:8081"}, 200),
        ({"host": "evil.example:8081", "origin": "http://evil.example:8081", "sec-fetch-site": "same-origin"}, 403),
        ({"host": "own.example", "origin": "https://OWN.example"}, 200),
    ],
)
async def test_a_page_of_another_site_drains_nothing(said: dict[str, str], status: int) -> None:
    async with scripted(server={"admin_names": ["Own.example"]}) as (_, served):
        response = await served.client.post(f"{served.admin_url}/fleet/e/drain", headers=said)
        assert response.status_code == status, response.text
        assert (await engines(served))["e"]["draining"] is (status == 200)
        assert (await served.client.delete(f"{served.admin_url}/fleet/e/drain", headers=said)).status_code == status
        if status != 200:
            assert response.json()["error"]["code"] == "foreign_site"


HOSTS = {
    "127.0.0.1": True,
    "[::1]:8081": True,
    "localhost:1": True,
    "gateway": True,
    "gateway.ns.svc.cluster.local": True,
    "interlock.internal.": True,
    "own.example:9": True,
    "evil.example": False,
    "127.0.0.1.evil.example": False,
    "x.own.example": False,
    "evil.example:x": False,
    "[::1": False,
    "": False,
}


async def test_who_asks_for_another_host_is_told_nothing() -> None:
    """A page's own name may lead here."""
    async with scripted(server={"admin_names": ["own.example"]}) as (_, served):
        for path in ("/fleet", "/explain?last=1"):
            for host, own in HOSTS.items():
                answer = await served.client.get(f"{served.admin_url}{path}", headers={"host": host})
                assert answer.status_code == (200 if own else 403), host
        for path in ("/health", "/ready", "/metrics"):  # probes and scrapers go by any name
            assert (await served.client.get(f"{served.admin_url}{path}", headers={"host": "evil.example"})).status_code == 200


async def test_only_the_admin_port_has_them() -> None:
    async with scripted() as (_, served):
        for method, path in (
            ("GET", "/fleet"),
            ("POST", "/fleet/e/drain"),
            ("DELETE", "/fleet/e/drain"),
            ("GET", "/explain?last=1"),
        ):
            assert (await served.client.request(method, path)).status_code == 404, path
        assert (await engines(served))["e"]["draining"] is False
        assert (await served.client.get(f"{served.admin_url}/fleet/e/drain")).status_code == 405


async def test_no_admin_answer_holds_a_secret() -> None:
    """The key and the prompt, with an engine that tells its key wherever it can."""
    async with ScriptedEngine().running() as engine:
        engine.answers["/props"] = {
            "build_info": "b1",
            "model_alias": f"its {KEY}",
            "default_generation_settings": {"n_ctx": 4096},
        }
        answers: Iterator[Sequence[Step]] = iter(
            [completion("Hi"), [RESET], [HEAD, event({"error": {"message": KEY, "code": 500}}), CLOSE]]
        )
        engine.script = lambda seen: next(answers)
        settings = settings_for(engine.url, engine={"api_key_env": "ADMIN_KEY"})
        async with serving(settings, environ={**os.environ, "ADMIN_KEY": KEY}) as served:
            for _ in range(3):
                await served.chat(messages=[{"role": "user", "content": "canary-prompt"}])
            paths = ("/fleet", "/explain?last=9", "/ready", "/openapi.json", "/metrics")
            told = {path: (await served.client.get(f"{served.admin_url}{path}")).text for path in paths}
            told["drain"] = (await served.client.post(f"{served.admin_url}/fleet/e/drain")).text
    assert '"model":"its [redacted]"' in told["/fleet"]
    assert len(told["/explain?last=9"]) > 1000
    for where, text in told.items():
        assert KEY not in text, where
        assert "canary-prompt" not in text, where


def test_an_address_is_shown_without_its_user_and_its_query() -> None:
    assert _without_secrets(URL("http://u:p@h:1/x?key=k#f")) == "http://h:1/x"
    registry = fleet("e", url="http://user:hidden@h:9/pre")
    registry.set_info("e", EngineInfo(version="v" * 9000))
    told = Told(lambda model, engine: Belief(0, 0, 0, 0.0, 1.0, 1.0), lambda model, engine: Drift())
    entry = _entry(registry, registry.members["e"], registry.view("m").engines[0], told, str)
    assert (entry.url, len(entry.info.version or ""), entry.load) == ("http://h:9/pre", 256, None)


async def test_the_api_s_description_has_the_answers() -> None:
    async with scripted() as (_, served):
        document = (await served.client.get(f"{served.admin_url}/openapi.json")).json()
    assert {"/fleet", "/fleet/{engine_id}/drain", "/explain"} <= set(document["paths"])
    schemas = document["components"]["schemas"]
    assert {"Fleet", "EngineEntry", "Explanations", "RequestStory", "AttemptStory"} <= set(schemas)
    assert {"breaker", "load", "info", "url"} <= set(schemas["EngineEntry"]["properties"])
