"""A settings file that is read again: its engines are taken, nothing else is, and no engine is dropped that is still named."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from yarl import URL

from engines.registry import make
from gateway.errors import SettingsError
from gateway.fleet.discovery import Membership
from gateway.fleet.registry import Member, Registry
from gateway.fleet.reload import Engines, Troubles, WatchedFile
from gateway.fleet.sources import SettingsFile, Sources
from gateway.settings import EngineSettings, ModelSettings, Settings

POLL_S = 0.02


def engine(name: str) -> dict[str, str]:
    return {"id": name, "url": "http://h:1", "kind": "llamacpp"}


def model(name: str, *engines: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "source": "m.gguf", **({"engines": [engine(each) for each in engines]} if engines else {}), **keys}


def settings(*models: dict[str, Any], **keys: Any) -> Settings:
    return Settings.model_validate({"models": models, **keys})


class _Roll:
    def joined(self, model: str, engine: str) -> None:
        """Nobody is told."""

    def left(self, model: str, engine: str) -> None:
        """Likewise."""


class Place:
    """Sources whose files are `said` here: the settings, and the engines of each file."""

    def __init__(self, folder: Path, first: Settings) -> None:
        self.said: Settings | SettingsError = first
        self.files: dict[str, Engines | SettingsError] = {}
        self.reads = 0
        self.registry = Registry(())
        self.troubles = Troubles()
        adapter = make("llamacpp")

        def wire(model: str, entry: EngineSettings) -> Member:
            return Member(id=entry.id, model=model, engine=adapter, root=URL(entry.url))

        self.membership = Membership(self.registry, wire, _Roll(), self.troubles, linger_s=30.0)
        file = SettingsFile(WatchedFile(folder / "interlock.yaml"), self._read)
        self.sources = Sources(first, self.membership, self.troubles, read_engines=self._read_engines, file=file, poll_s=POLL_S)

    def _read(self) -> Settings:
        self.reads += 1
        if isinstance(self.said, SettingsError):
            raise self.said
        return self.said

    def _read_engines(self, _: ModelSettings, path: Path) -> Engines:
        found = self.files[path.name]
        if isinstance(found, SettingsError):
            raise found
        return found

    async def reload(self, said: Settings | SettingsError) -> None:
        """The file says this now, and was read."""
        self.said, before = said, self.reads
        assert self.sources.reload is not None
        self.sources.reload()
        await until(lambda: self.reads > before)
        await asyncio.sleep(2 * POLL_S)

    def usable(self, name: str = "m") -> list[str]:
        return [each.id for each in self.registry.view(name).engines if each.usable]


async def until(happened: Callable[[], object], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def place(folder: Path, first: Settings) -> AsyncIterator[Place]:
    here = Place(folder, first)
    tasks = [asyncio.create_task(each.run()) for each in (here.membership, here.sources)]
    for engine_id in here.registry.members:
        here.registry.set_ready(engine_id, True)
    try:
        yield here
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)


async def test_engines_of_models_that_are_served_are_taken(tmp_path: Path) -> None:
    async with place(tmp_path, settings(model("m", "a"), model("n", "x"))) as here:
        with capture_logs() as logs:
            await here.reload(settings(model("n", "y"), model("m", "a", "b")))
        await until(lambda: list(here.registry.members) == ["a", "y", "b"] or list(here.registry.members) == ["a", "b", "y"])
        assert here.usable() == ["a"]
        assert not [each for each in logs if "keys" in each]


async def test_what_else_is_new_is_told_and_not_taken(tmp_path: Path) -> None:
    async with place(tmp_path, settings(model("m", "a"), model("gone", "x"))) as here:
        with capture_logs() as logs:
            await here.reload(settings(model("m", "a", "b", format="hermes"), model("new", "c"), limits={"n": 1}))
        assert list(here.registry.members) == ["a", "b", "x"]
        (told,) = [each["keys"] for each in logs if "keys" in each]
        assert told == ["models[0].format", "models[1].name", "models (without gone)", "limits.n"]


async def test_an_error_changes_nothing(tmp_path: Path) -> None:
    async with place(tmp_path, settings(model("m", "a"))) as here:
        await here.reload(SettingsError(("f:1:1: x: y",)))
        assert here.usable() == ["a"]
        assert here.troubles.told() == {"settings": ["f:1:1: x: y"]}
        await here.reload(settings(model("m", "a", "b")))
        assert here.troubles.told() == {}
        assert list(here.registry.members) == ["a", "b"]


async def test_an_engine_that_moves_into_a_file_never_leaves(tmp_path: Path) -> None:
    async with place(tmp_path, settings(model("m", "a"))) as here:
        here.files["e.yaml"] = (EngineSettings.model_validate(engine("a")),)
        with capture_logs() as logs:
            await here.reload(settings(model("m", engines_file=Path("e.yaml"))))
            assert here.usable() == ["a"]
            await here.reload(settings(model("m", "a")))
        assert here.usable() == ["a"]
        assert not [each for each in logs if "leave" in each["event"]]


@pytest.mark.parametrize("said", [(), SettingsError(("e: bad",))])
async def test_a_new_file_that_is_wrong_or_empty_is_told_or_taken(tmp_path: Path, said: Engines | SettingsError) -> None:
    async with place(tmp_path, settings(model("m", "a"))) as here:
        here.files["e.yaml"] = said
        await here.reload(settings(model("m", "b", engines_file=Path("e.yaml"))))
        await until(lambda: list(here.registry.members) == ["b"])
        assert here.troubles.told() == ({} if said == () else {"engines_file": ["e: bad"]})
