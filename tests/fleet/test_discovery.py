"""Engines come, change and go as what names them says, and none that is busy is dropped."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs
from support.wiring import lose
from yarl import URL

from engines.registry import make
from gateway.events import AttemptFailed, AttemptStarted
from gateway.fleet.discovery import MOST_ENGINES, Changes, DiscoveryRules, Membership, engines_of, reconcile
from gateway.fleet.registry import Member, Registry
from gateway.fleet.reload import Troubles
from gateway.fleet.resolve import ResolveTimes
from gateway.settings import EngineSettings

LLAMACPP, VLLM = make("llamacpp"), make("vllm")


def member(name: str, url: str = "http://h:1", model: str = "m") -> Member:
    return Member(id=name, model=model, engine=LLAMACPP, root=URL(url))


def entry(name: str, url: str = "http://h:1", **keys: object) -> EngineSettings:
    return EngineSettings.model_validate({"id": name, "url": url, "kind": "llamacpp", **keys})


def wire(model: str, each: EngineSettings) -> Member:
    return replace(member(each.id, each.url, model), api_key=each.api_key_env)


@pytest.mark.parametrize(
    ("wanted", "present", "changes"),
    [
        ([], [], Changes()),
        ([member("a")], [member("a")], Changes()),
        ([member("a"), member("b")], [], Changes(added=(member("a"), member("b")))),
        ([], [member("a"), member("b")], Changes(removed=("a", "b"))),
        ([member("a", "http://h:2")], [member("a")], Changes(changed=(member("a", "http://h:2"),))),
        (
            [member("c"), member("b", model="n")],
            [member("a"), member("b")],
            Changes(added=(member("c"),), changed=(member("b", model="n"),), removed=("a",)),
        ),
    ],
)
def test_the_difference(wanted: list[Member], present: list[Member], changes: Changes) -> None:
    assert reconcile(wanted, {each.id: each for each in present}) == changes


@pytest.mark.parametrize("wanted", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("present", [(), ("a",), ("b", "c")])
def test_what_was_changed_as_it_says_is_as_wanted(wanted: tuple[str, ...], present: tuple[str, ...]) -> None:
    here = {name: member(name, "http://old:1") for name in present}
    changes = reconcile([member(name) for name in wanted], here)
    for name in changes.removed:
        del here[name]
    here |= {each.id: each for each in (*changes.added, *changes.changed)}
    assert here == {name: member(name) for name in wanted}
    assert reconcile(here.values(), here) == Changes()


@pytest.mark.parametrize(
    ("ranks", "addresses", "expected"),
    [
        (None, None, [("e", "http://h:1/pre", None)]),
        (2, None, [("e.0", "http://h:1/pre", 0), ("e.1", "http://h:1/pre", 1)]),
        (None, (), []),
        (
            None,
            ("10.0.0.1", "fd00::1"),
            [("e@10.0.0.1", "http://10.0.0.1:1/pre", None), ("e@fd00::1", "http://[fd00::1]:1/pre", None)],
        ),
        (2, ("10.0.0.1",), [("e@10.0.0.1.0", "http://10.0.0.1:1/pre", 0), ("e@10.0.0.1.1", "http://10.0.0.1:1/pre", 1)]),
    ],
)
def test_an_entry_stands_for_each_address_and_rank(
    ranks: int | None, addresses: tuple[str, ...] | None, expected: list[tuple[str, str, int | None]]
) -> None:
    made = list(engines_of(member("e", "http://h:1/pre"), ranks, addresses))
    assert [(each.id, str(each.root), each.rank) for each in made] == expected


@dataclass
class Roll:
    """What the metrics are told."""

    told: list[tuple[str, str, str]] = field(default_factory=list)

    def joined(self, model: str, engine: str) -> None:
        self.told.append(("joined", model, engine))

    def left(self, model: str, engine: str) -> None:
        self.told.append(("left", model, engine))


@dataclass
class Names:
    """A name server: the addresses of each host, or what it raises."""

    answers: dict[str, list[str] | Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Place:
    membership: Membership
    registry: Registry
    roll: Roll
    names: Names
    troubles: Troubles

    @property
    def ids(self) -> list[str]:
        return list(self.registry.members)

    def usable(self, model: str = "m") -> list[str]:
        return [each.id for each in self.registry.view(model).engines if each.usable]

    def all_ready(self) -> None:
        for engine_id in self.ids:
            self.registry.set_ready(engine_id, True)


@contextlib.asynccontextmanager
async def place(linger_s: float = 30.0, times: ResolveTimes | None = None) -> AsyncIterator[Place]:
    registry, roll, names, troubles = Registry(()), Roll(), Names(), Troubles()
    rules = DiscoveryRules(names, times or ResolveTimes(every_s=0.05, retry_s=0.05, gap_s=0.0, limit_s=1.0))
    membership = Membership(registry, wire, roll, troubles, linger_s=linger_s, rules=rules)
    running = asyncio.create_task(membership.run())
    try:
        yield Place(membership, registry, roll, names, troubles)
    finally:
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()


async def until(happened: Callable[[], object], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.01)


async def test_engines_of_settings_and_file_are_laid_together() -> None:
    async with place() as here:
        here.membership.list_engines("m", (entry("a"), entry("b", "http://h:2")))
        here.membership.file_engines("m", (entry("c", "http://h:3"),))
        here.membership.apply()
        here.membership.apply()
        assert here.ids == ["a", "b", "c"]
        assert here.roll.told == [("joined", "m", name) for name in "abc"]
        here.membership.file_engines("m", ())
        here.membership.apply()
        await until(lambda: here.ids == ["a", "b"])
        assert here.roll.told[3:] == [("left", "m", "c")]


async def test_a_busy_engine_that_is_removed_gets_nothing_new_and_ends_what_runs() -> None:
    async with place() as here:
        here.membership.list_engines("m", (entry("a"), entry("b")))
        here.membership.apply()
        here.all_ready()
        here.registry.running.apply(AttemptStarted("r", 1, "b", "m", 0.0))
        here.membership.list_engines("m", (entry("a"),))
        here.membership.apply()
        assert here.usable() == ["a"]
        await asyncio.sleep(0.5)
        assert here.ids == ["a", "b"]
        here.registry.running.apply(AttemptFailed("r", 1, "b", "broke"))
        await until(lambda: here.ids == ["a"])
        assert here.roll.told[-1] == ("left", "m", "b")


async def test_one_that_never_ends_is_forgotten_in_the_end() -> None:
    async with place(linger_s=0.3) as here:
        here.membership.list_engines("m", (entry("a"),))
        here.membership.apply()
        here.registry.running.apply(AttemptStarted("r", 1, "a", "m", 0.0))
        here.membership.list_engines("m", ())
        here.membership.apply()
        await until(lambda: here.ids == [])


async def test_one_that_leaves_and_is_named_again_stays() -> None:
    async with place() as here:
        here.membership.list_engines("m", (entry("a"),))
        here.membership.apply()
        here.all_ready()
        here.registry.running.apply(AttemptStarted("r", 1, "a", "m", 0.0))
        here.membership.list_engines("m", ())
        here.membership.apply()
        assert here.usable() == []
        here.membership.list_engines("m", (entry("a"),))
        here.membership.apply()
        assert here.usable() == ["a"]  # it needs no probe: it is the same
        here.registry.running.apply(AttemptFailed("r", 1, "a", "broke"))
        await asyncio.sleep(0.3)
        assert here.ids == ["a"]


async def test_an_id_at_another_url_is_another_engine_and_a_new_key_is_not() -> None:
    async with place() as here:
        here.membership.list_engines("m", (entry("a"),))
        here.membership.apply()
        here.all_ready()
        here.membership.list_engines("m", (entry("a", api_key_env="OTHER"),))
        here.membership.apply()
        assert here.usable() == ["a"]
        assert here.registry.members["a"].api_key == "OTHER"
        here.membership.list_engines("m", (entry("a", "http://h:2"),))
        here.membership.apply()
        assert here.usable() == []
        assert here.registry.problem("a") == "not_probed"


async def test_an_engine_may_move_to_another_model() -> None:
    async with place() as here:
        here.membership.list_engines("m", (entry("a"),))
        here.membership.list_engines("n", (entry("b"),))
        here.membership.apply()
        here.membership.list_engines("m", ())
        here.membership.list_engines("n", (entry("b"), entry("a")))
        here.membership.apply()
        assert [each.id for each in here.registry.view("n").engines] == ["b", "a"]
        assert here.roll.told[2:] == [("left", "m", "a"), ("joined", "n", "a")]


async def test_an_id_is_that_of_the_first_who_named_it_and_the_others_are_told() -> None:
    async with place() as here:
        with capture_logs() as logs:
            here.membership.list_engines("m", (entry("a", "http://h:1"),))
            here.membership.file_engines("n", (entry("a", "http://h:2"), entry("b")))
            here.membership.apply()
            here.membership.apply()
        assert {each.id: str(each.root) for each in here.registry.members.values()} == {"a": "http://h:1", "b": "http://h:1"}
        assert [(each["engine"], each["why"]) for each in logs if each["event"] == "engines not taken"] == [
            ("a", "its id is that of an engine of m")
        ]


async def test_files_and_names_add_so_many_engines_and_no_more() -> None:
    async with place() as here:
        here.names.answers["h"] = [f"10.0.{number // 200}.{number % 200}" for number in range(300)]
        with capture_logs() as logs:
            here.membership.list_engines("m", (entry("own", "http://other:1"), entry("e", resolve=True)))
            here.membership.file_engines("n", tuple(entry(f"f{number}") for number in range(MOST_ENGINES + 1)))
            here.membership.apply()
            await until(lambda: "e@10.0.0.0" in here.ids)
        models = [each.model for each in here.registry.members.values()]
        assert (models.count("m"), models.count("n")) == (MOST_ENGINES + 1, MOST_ENGINES)
        assert any(each["event"] == "engines not taken" for each in logs)


async def test_engines_stand_in_the_order_in_which_they_are_named() -> None:
    async with place() as here:
        here.membership.list_engines("m", (entry("a"), entry("b")))
        here.membership.apply()
        here.membership.list_engines("m", (entry("c"), entry("b"), entry("a")))
        here.membership.apply()
        assert here.ids == ["c", "b", "a"]
        here.registry.drain("b", True)
        here.membership.list_engines("m", (entry("c"),))
        here.membership.apply()
        await until(lambda: here.ids == ["c"])
        here.membership.list_engines("m", (entry("a"), entry("b"), entry("c")))
        here.membership.apply()
        assert here.ids == ["a", "b", "c"]
        assert [each.draining for each in here.registry.view("m").engines] == [False, True, False]


async def test_a_name_s_addresses_are_engines_that_come_and_go_with_them() -> None:
    async with place() as here:
        here.names.answers["h"] = ["10.0.0.2", "10.0.0.1", "10.0.0.1", "fe80::1%lo", "h"]
        here.membership.list_engines("m", (entry("e", resolve=True),))
        here.membership.apply()
        await until(lambda: here.ids == ["e@10.0.0.1", "e@10.0.0.2"])
        here.names.answers["h"] = ["10.0.0.2", "fd00::2", "10.0.0.3", "::ffff:10.0.0.2"]
        await until(lambda: here.ids == ["e@10.0.0.2", "e@10.0.0.3"])  # what has an address of each kind is one engine
        here.names.answers["h"] = ["fd00::2"]
        await until(lambda: here.ids == ["e@fd00::2"])
        here.membership.list_engines("m", ())
        here.membership.apply()
        await until(lambda: here.ids == [])
        asked = len(here.names.asked)
        await asyncio.sleep(0.3)
        assert len(here.names.asked) <= asked + 1


@pytest.mark.parametrize(
    "answer", [OSError(-3, "Temporary failure"), OSError(-2, "no such name"), TimeoutError(), [], UnicodeError("x")]
)
async def test_a_name_server_that_fails_takes_no_engine_out(answer: list[str] | Exception) -> None:
    async with place() as here:
        here.names.answers["h"] = ["10.0.0.1"]
        here.membership.list_engines("m", (entry("e", resolve=True),))
        here.membership.apply()
        await until(lambda: here.ids)
        with capture_logs() as logs:
            here.names.answers["h"] = answer
            await until(here.troubles.told)
            asked = len(here.names.asked)
            await until(lambda: len(here.names.asked) > asked + 2)
        assert here.ids == ["e@10.0.0.1"]
        assert list(here.troubles.told()) == ["dns"]
        assert here.troubles.told()["dns"][0].startswith("h: ")
        assert len([each for each in logs if each["log_level"] == "warning"]) == 1
        here.names.answers["h"] = ["10.0.0.1"]
        await until(lambda: not here.troubles.told())


async def test_a_name_is_asked_for_again_where_an_engine_cannot_be_reached() -> None:
    async with place(times=ResolveTimes(every_s=60.0, retry_s=60.0, gap_s=0.05, limit_s=1.0)) as here:
        here.names.answers["h"] = ["10.0.0.1", "10.0.0.2"]
        here.membership.list_engines("m", (entry("e", resolve=True),))
        here.membership.apply()
        await until(lambda: here.ids)
        here.all_ready()
        here.names.answers["h"] = ["10.0.0.2", "10.0.0.3"]
        await asyncio.sleep(0.2)
        assert here.names.asked == ["h"]
        lose(here.registry, "e@10.0.0.1")
        await until(lambda: here.ids == ["e@10.0.0.2", "e@10.0.0.3"])
        assert here.names.asked == ["h", "h"]


async def test_an_engine_that_stays_out_of_reach_is_no_reason_to_ask_for_ever() -> None:
    async with place(times=ResolveTimes(every_s=60.0, retry_s=60.0, gap_s=0.0, limit_s=1.0)) as here:
        here.names.answers["h"] = ["10.0.0.1"]
        here.membership.list_engines("m", (entry("e", resolve=True),))
        here.membership.apply()
        await until(lambda: here.ids)
        for _ in range(20):
            here.registry.set_ready("e@10.0.0.1", False)
            lose(here.registry, "e@10.0.0.1")
            await asyncio.sleep(0.01)
        assert len(here.names.asked) <= 3
