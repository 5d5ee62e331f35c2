"""Files that change while the gateway runs: what is taken of them, and what is told where they are wrong."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.metrics import shown

from engines.base import Traits
from gateway.errors import SettingsError
from gateway.fleet import reload
from gateway.fleet.reload import EnginesFiles, Followed, Troubles, WatchedFile, needs_restart
from gateway.settings import EngineSettings, ModelSettings, Settings
from gateway.settings_engines import load_engines

KINDS = {
    "llamacpp": Traits(takes_ids=True, streams_ids=False, choices=False),
    "vllm": Traits(takes_ids=True, streams_ids=True, choices=False, ranks=True),
    "openai": Traits(takes_ids=False, streams_ids=False, choices=True),
}
MODEL = ModelSettings.model_validate({"name": "m", "source": "m.gguf", "engines_file": "e.yaml"})
A = "- {id: a, url: 'http://h:1', kind: llamacpp}\n"
B = "- {id: b, url: 'http://h:2', kind: vllm, ranks: 2}\n"


async def until(happened: Callable[[], object], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.01)


def engines(file: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """The ids, or what is wrong."""
    file.write_text(text)
    try:
        return [each.id for each in load_engines(file, MODEL, environ or {}, KINDS)]
    except SettingsError as error:
        return [problem.replace(f"{file}", "f") for problem in error.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (A + B, ["a", "b"]),
        ('[{"id": "a", "url": "http://h:1", "kind": "llamacpp"}]', ["a"]),
        ("[]", []),
        ("", ["f: must be a list of engines, as `- {id: …, url: …, kind: …}`; `[]` is none"]),
        ("engines: []", ["f: must be a list of engines, as `- {id: …, url: …, kind: …}`; `[]` is none"]),
        ("- {id: a", ["f:1:9: not valid YAML: expected ',' or '}', but got '<stream end>'"]),
        ("- 7", ["f:1:3: [0]: must be a mapping of keys"]),
        (A + A, ["f:2:4: [1].id: `a` is taken by [0].id"]),
        (B + A.replace("id: a", "id: b.1"), ["f:2:4: [1].id: `b.1` is taken by [0].id"]),
        (A.replace("id: a, ", ""), ["f:1:3: [0].id: is missing: in a list that changes a position is no name"]),
        (
            A.replace("id: a", "id: none"),
            ["f:1:4: [0].id: `none` is what metrics say where there is no engine: take another name"],
        ),
        (A.replace("kind", "knid"), ["f:1:3: [0].kind: is missing", "f:1:30: [0].knid: unknown key; did you mean `kind`?"]),
        (A.replace("}", ", ranks: 2}"), ["f:1:46: [0].ranks: llamacpp cannot be told which rank a request is for"]),
        (
            A.replace("llamacpp", "openai"),
            ["f:1:30: [0].kind: openai templates and parses by itself: the model needs `format: engine`"],
        ),
        (
            A.replace("}", ", api_key_env: K}"),
            ["f:1:46: [0].api_key_env: the environment variable that it names is not set, or is empty"],
        ),
        (
            A.replace("}", ", resolve: true}").replace("http:", "https:"),
            ["f:1:47: [0].resolve: needs an `http` URL: a certificate is of a name, not of an address"],
        ),
    ],
)
def test_a_file_of_engines(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert engines(tmp_path / "e.yaml", text) == expected


def test_a_file_of_engines_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load_engines(tmp_path / "e.yaml", MODEL, {}, KINDS)


def test_a_file_is_read_once_it_was_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("a")
    watched = WatchedFile(file)
    assert [watched.look(), watched.look()] == [False, False]
    file.write_text("ab")
    assert watched.look() is False  # it may be being written
    file.write_text("abc")
    assert [watched.look(), watched.look(), watched.look()] == [False, True, False]
    (tmp_path / "new").write_text("abc")
    os.replace(tmp_path / "new", file)
    assert [watched.look(), watched.look(), watched.look()] == [False, True, False]
    file.unlink()
    assert [watched.look(), watched.look(), watched.look()] == [False, True, False]


@contextlib.asynccontextmanager
async def followed(path: Path, troubles: Troubles, taken: list[str]) -> AsyncIterator[Followed[str]]:
    def read() -> str:
        try:
            text = path.read_text()
        except OSError as error:
            raise SettingsError((f"{path}: {error.strerror}",)) from None
        if "bad" in text:
            raise SettingsError((f"{path}: bad", f"{path}: worse"))
        return text

    file = Followed(WatchedFile(path), "engines_file", troubles, read=read, take=taken.append, poll_s=0.02)
    running = asyncio.create_task(file.run())
    try:
        yield file
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_wrong_file_changes_nothing_and_is_told_once_a_change(tmp_path: Path) -> None:
    file, troubles, taken = tmp_path / "f", Troubles(), list[str]()
    file.write_text("one")
    with capture_logs() as logs:
        async with followed(file, troubles, taken) as watched:
            watched.ask()
            await until(lambda: taken == ["one"])
            file.write_text("bad")
            await until(troubles.told)
            assert troubles.told() == {"engines_file": [f"{file}: bad", f"{file}: worse"]}
            assert {sample.labels["origin"]: sample.value for sample in shown(troubles.metrics())[0].samples} == {
                "settings": 0,
                "engines_file": 1,
                "dns": 0,
            }
            await asyncio.sleep(0.2)
            file.unlink()
            await until(lambda: troubles.told()["engines_file"] == [f"{file}: No such file or directory"])
            file.write_text("two")
            await until(lambda: taken == ["one", "two"])
            assert troubles.told() == {}
            file.write_text("bad")
            await until(troubles.told)
        assert troubles.told() == {}  # nobody follows it any more
    assert [each["problems"][0].split(": ")[1] for each in logs] == ["bad", "No such file or directory", "bad"]


def test_other_rights_are_a_change(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("a")
    watched = WatchedFile(file)
    file.chmod(0o600)
    assert [watched.look(), watched.look(), watched.look()] == [False, True, False]


async def test_what_is_wrong_is_tried_again_though_the_file_is_as_it_was(tmp_path: Path) -> None:
    """A file beside it may be what was missing, or the rights of a folder."""
    file, troubles, taken, reads = tmp_path / "f", Troubles(), list[str](), list[str]()
    file.write_text("one")

    def read() -> str:
        reads.append("")
        if not (tmp_path / "beside").exists():
            raise SettingsError(("nothing beside it",))
        return file.read_text()

    with capture_logs() as logs:
        watched = Followed(WatchedFile(file), "settings", troubles, read=read, take=taken.append, poll_s=0.02)
        watched.ask()
        running = asyncio.create_task(watched.run())
        await until(lambda: len(reads) > 3)
        assert troubles.told() == {"settings": ["nothing beside it"]}
        (tmp_path / "beside").touch()
        await until(lambda: taken)
        assert troubles.told() == {}
        running.cancel()
        await asyncio.wait([running])
    assert len(logs) == 1


async def test_a_change_that_is_asked_for_is_read_once(tmp_path: Path) -> None:
    file, taken = tmp_path / "f", list[str]()
    file.write_text("one")
    async with followed(file, Troubles(), taken) as watched:
        await asyncio.sleep(0.1)
        file.write_text("two and more")
        watched.ask()
        await until(lambda: taken)
        await asyncio.sleep(0.3)
    assert taken == ["two and more"]


async def test_a_file_that_hangs_is_told_and_then_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "_READ_S", 0.05)
    troubles, taken, hangs = Troubles(), list[str](), threading.Event()

    def read() -> str:
        hangs.wait()
        return "late"

    watched = Followed(WatchedFile(tmp_path / "f"), "engines_file", troubles, read=read, take=taken.append, poll_s=0.02)
    watched.ask()
    running = asyncio.create_task(watched.run())
    try:
        await until(troubles.told)
        assert "not read after 0.05 s" in troubles.told()["engines_file"][0]
        hangs.set()
        await until(lambda: taken == ["late"])
        assert troubles.told() == {}
    finally:
        hangs.set()
        running.cancel()
        await asyncio.wait([running])


async def test_all_files_are_read_when_that_is_asked_for(tmp_path: Path) -> None:
    reads: list[str] = []

    def read(model: str, _: Path) -> tuple[EngineSettings, ...]:
        reads.append(model)
        return ()

    files = EnginesFiles(read, lambda *_: None, Troubles(), 0.02)
    files.follow({"m": tmp_path / "1", "n": tmp_path / "2"})
    running = asyncio.create_task(files.run())
    try:
        await until(lambda: sorted(reads) == ["m", "n"])
        await asyncio.sleep(0.1)
        files.ask()
        await until(lambda: sorted(reads) == ["m", "m", "n", "n"])
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_files_of_models_come_and_go(tmp_path: Path) -> None:
    taken: dict[str, tuple[EngineSettings, ...]] = {}
    troubles = Troubles()
    files = EnginesFiles(lambda _, path: load_engines(path, MODEL, {}, KINDS), taken.__setitem__, troubles, 0.02)
    one, two = tmp_path / "1.yaml", tmp_path / "2.yaml"
    one.write_text(A)
    files.follow({"m": one})
    running = asyncio.create_task(files.run())
    try:
        await until(lambda: [each.id for each in taken.get("m", ())] == ["a"])
        files.follow({"m": two})  # which is not there yet
        await until(troubles.told)
        assert [each.id for each in taken["m"]] == ["a"]
        two.write_text(A + B)
        await until(lambda: [each.id for each in taken["m"]] == ["a", "b"])
        files.follow({})
        assert taken["m"] == ()
        two.write_text("[]")
        await asyncio.sleep(0.2)
        assert troubles.told() == {}
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_troubles_are_told_by_where_they_are_and_not_all_of_them() -> None:
    troubles = Troubles()
    assert troubles.begin("dns", "h", ("no address",))
    assert not troubles.begin("dns", "h", ("no address",))
    assert troubles.begin("settings", "f", tuple(f"f:{line}: x" for line in range(20)))
    assert troubles.told() == {"dns": ["h: no address"], "settings": [f"f:{line}: x" for line in range(10)]}


def settings(**changed: Any) -> Settings:
    model = {"name": "m", "source": "m.gguf", "engines": [{"url": "http://h:1", "kind": "llamacpp"}]}
    models = [{**model, **changed.pop("model", {})}, *changed.pop("more", ())]
    return Settings.model_validate({"models": models, **changed})


OTHER = {"name": "n", "format": "engine", "engines": [{"url": "http://h:2", "kind": "openai"}]}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({}, []),
        ({"model": {"engines": [{"url": "http://h:9", "kind": "vllm", "ranks": 2}], "engines_file": "e.yaml"}}, []),
        ({"server": {"port": 1, "drain_s": 2}}, ["server.port", "server.drain_s"]),
        ({"limits": {"n": 1}, "require_checks": True}, ["limits.n", "require_checks"]),
        ({"model": {"format": "hermes", "aliases": ["x"]}}, ["models[0].aliases", "models[0].format"]),
        ({"more": [OTHER]}, ["models[1].name"]),
        ({"model": {"name": "x"}}, ["models[0].name", "models (without m)"]),
    ],
)
def test_what_needs_a_restart_is_told_by_its_key(new: dict[str, Any], expected: list[str]) -> None:
    assert list(needs_restart(settings(), settings(**new))) == expected


def test_models_may_stand_in_another_order() -> None:
    assert list(needs_restart(settings(more=[OTHER]), Settings(models=settings(more=[OTHER]).models[::-1]))) == []
