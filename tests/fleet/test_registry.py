"""What is known of the engines, and who is told of changes."""

import asyncio
from dataclasses import replace

import pytest
from support.wiring import fleet, lose
from yarl import URL

from engines.base import EngineInfo
from engines.registry import make
from gateway.errors import EngineUnreachable
from gateway.events import AttemptFailed, AttemptStarted
from gateway.fleet.registry import Member, Registry
from gateway.routing.view import FleetView


def member(name: str, model: str = "m", url: str = "http://127.0.0.1:9", key: str | None = None) -> Member:
    return Member(id=name, model=model, engine=make("llamacpp"), root=URL(url), api_key=key)


def test_views_are_of_one_model_and_keep_the_settings_order() -> None:
    registry = Registry([member("b"), member("other", "n"), member("a")])
    registry.set_ready("a", True)
    registry.set_info("b", EngineInfo(context_tokens=100))
    registry.running.apply(AttemptStarted("r", 1, "a", "m", 0.0))
    seen = registry.view("m")
    first, second = seen.engines
    assert (first.id, first.ready, first.running, first.context_tokens) == ("b", False, 0, 100)
    assert (second.id, second.ready, second.running, second.context_tokens) == ("a", True, 1, None)
    assert registry.view("nobody") == FleetView(())
    registry.running.apply(AttemptFailed("r", 1, "a", "broke"))
    registry.set_ready("a", False)
    now = registry.view("m").engines[1]
    assert (now.id, now.ready, now.running) == ("a", False, 0)
    assert seen.engines[1].running == 1  # a snapshot does not move


def test_what_each_engine_said_is_kept() -> None:
    registry = fleet("b", "c")
    registry.set_info("b", EngineInfo(context_tokens=100))
    assert registry.info("b").context_tokens == 100
    assert registry.info("c") == EngineInfo()


def test_engines_stand_as_they_are_arranged() -> None:
    registry = Registry([member("a"), member("b"), member("c")])
    before = registry.members
    registry.arrange(["c", "nobody", "b", "c"])
    assert list(registry.members) == ["c", "b", "a"]
    assert [each.id for each in registry.view("m").engines] == ["c", "b", "a"]
    assert list(before) == ["a", "b", "c"]  # who walks over them goes on


def test_a_drain_is_known_of_an_engine_that_was_away() -> None:
    registry = Registry([member("a"), member("b")])
    for name in ("a", "b"):
        registry.drain(name, True)
        registry.remove(name)
    registry.add(member("a"))
    assert registry.standing("a").draining
    registry.drain("a", False)
    registry.remove("a")
    registry.add(member("a"))
    registry.add(member("b", url="http://127.0.0.1:8"))
    assert [registry.standing(each).draining for each in ("a", "b")] == [False, True]


def test_drains_of_engines_that_are_gone_are_few() -> None:
    registry = Registry([member("here")])
    registry.drain("here", True)
    for number in range(1100):
        registry.add(member(f"{number}"))
        registry.drain(f"{number}", True)
        registry.remove(f"{number}")
    for each in ("0", "1099"):
        registry.add(member(each))
    assert [registry.standing(each).draining for each in ("here", "0", "1099")] == [True, False, True]


async def test_only_changes_wake_those_who_wait() -> None:
    registry = fleet("a", "b")
    registry.set_ready("a", False)
    woken = asyncio.create_task(registry.changed())
    await asyncio.sleep(0)
    registry.set_ready("a", False)
    await asyncio.sleep(0.01)
    assert not woken.done()
    registry.set_ready("b", True)
    await asyncio.wait_for(woken, 1)
    assert registry.is_ready("b")
    later = asyncio.create_task(registry.changed())
    await asyncio.sleep(0)
    registry.set_ready("b", True)
    await asyncio.sleep(0.01)
    assert not later.done()
    later.cancel()


def test_an_engine_that_traffic_lost_is_out_and_that_is_counted_while_it_is_out_too() -> None:
    registry = Registry([member("a"), member("b")])
    registry.set_ready("a", True)
    lose(registry, "a")
    assert registry.problem("a") == "unreachable"
    lose(registry, "a")
    assert (registry.losses("a"), registry.losses("b")) == (2, 0)


def test_an_engine_that_was_just_lost_may_return_until_a_probe_has_asked_it() -> None:
    now_s = 100.0
    registry = Registry([member("a")], clock=lambda: now_s)

    def returning() -> bool:
        (view,) = registry.view("m").engines
        return view.returning

    assert not returning(), "it has never been there"
    for problem in ("unreachable", "unhealthy", None):
        lose(registry, "a")
        assert returning()
        registry.set_ready("a", problem is None, problem or "unreachable")
        assert not returning()
    lose(registry, "a")
    registry.drain("a", True)
    assert not returning()
    registry.drain("a", False)
    now_s += 1.9
    assert returning()
    now_s += 0.2
    assert not returning()


@pytest.mark.parametrize(
    ("root", "path", "url"),
    [
        ("http://h:1", "/health", "http://h:1/health"),
        ("http://h:1/", "/health", "http://h:1/health"),
        ("http://h:1/base/", "/v1/models", "http://h:1/base/v1/models"),
    ],
)
def test_paths_are_below_the_engine_s_root(root: str, path: str, url: str) -> None:
    assert str(member("a", url=root).url(path)) == url


def test_a_key_is_never_shown() -> None:
    assert "sk-canary" not in repr(member("a", key="sk-canary"))


def test_what_is_new_of_an_engine_changes_nothing_that_is_known_of_it() -> None:
    registry = Registry([member("a"), member("b")])
    registry.set_ready("a", True)
    registry.leave("a")
    assert not registry.view("m").ready
    registry.add(member("a", key="sk-new"))
    assert [each.id for each in registry.view("m").engines] == ["a", "b"]
    assert registry.view("m").engines[0].usable
    assert registry.members["a"].api_key == "sk-new"


@pytest.mark.parametrize(("model", "url"), [("n", "http://127.0.0.1:9"), ("m", "http://127.0.0.1:10")])
def test_an_engine_that_is_elsewhere_now_is_out_until_it_was_asked(model: str, url: str) -> None:
    registry = Registry([member("a"), member("b")])
    registry.set_ready("a", True)
    asked_before = registry.losses("a")
    registry.add(member("a", model, url))
    assert registry.problem("a") == "not_probed"
    assert registry.losses("a") != asked_before  # the old one's answer does not count for the new one
    assert str(registry.members["a"].root) == url


def test_one_that_leaves_gets_nothing_and_its_operator_s_wish_is_another() -> None:
    registry = Registry([member("a")])
    registry.set_ready("a", True)
    registry.drain("a", True)
    registry.leave("a")
    registry.add(member("a"))
    assert not registry.view("m").ready  # drained still
    registry.drain("a", False)
    assert registry.view("m").ready
    registry.remove("a")
    assert registry.view("m") == FleetView(())


@pytest.mark.parametrize("place", [{"url": "http://127.0.0.1:10"}, {"model": "n"}])
def test_an_engine_that_moves_is_drained_still(place: dict[str, str]) -> None:
    registry = Registry([member("a"), member("b")])
    registry.drain("a", True)
    registry.add(member("a", **place))
    registry.add(member("b", **place))
    assert [registry.standing(each).draining for each in ("a", "b")] == [True, False]
    registry.set_ready("a", True)
    assert not registry.view(place.get("model", "m")).engines[0].usable


def test_an_engine_that_says_its_own_key_has_said_nothing_of_it() -> None:
    registry = Registry([member("a", key="canary-0123"), member("b")])
    said = EngineInfo(version="b1 --api-key canary-0123", model="canary-0123.gguf", context_tokens=64)
    recorded = registry.set_info("a", said)
    assert recorded == registry.info("a")
    assert "canary" not in f"{recorded} {registry.weights('a')} {registry.view('m')}"
    assert registry.info("a").context_tokens == 64
    assert "b1" in str(registry.info("a").version)
    assert registry.set_info("b", said) == said
    assert registry.set_info("gone", said) is None


def test_engines_answer_alike_where_the_operator_or_they_themselves_say_so() -> None:
    a, b, c = member("a"), member("b"), member("c")
    registry = Registry([a, b, c])
    assert registry.weights("a") != registry.weights("b"), "nothing is known of them"
    for name, model in (("a", "Q4.gguf"), ("b", "Q8.gguf"), ("c", "Q4.gguf")):
        registry.set_info(name, EngineInfo(model=model))
    assert registry.weights("a") == registry.weights("c") != registry.weights("b")
    registry.add(replace(b, weights="same"))
    registry.add(replace(c, weights="same"))
    assert registry.weights("a") != registry.weights("b") == registry.weights("c")
    registry = Registry([replace(a, engine_model="lora"), replace(b, engine_model="lora"), replace(c, engine=make("vllm"))])
    assert registry.weights("a") == registry.weights("b") != registry.weights("c")


@pytest.mark.parametrize("way", ["told", "a visit"])
def test_the_ranks_of_a_server_that_is_gone_are_gone_together(way: str) -> None:
    ranks = [replace(member(f"r.{rank}"), rank=rank) for rank in range(3)]
    registry = Registry([*ranks, member("same address"), replace(member("elsewhere", url="http://h:2"), rank=0)])
    for engine_id in registry.members:
        registry.set_ready(engine_id, True)
    if way == "told":
        lose(registry, "r.1")
    else:
        registry.visit("r.1").failed(EngineUnreachable("gone"))
    assert [each.id for each in registry.view("m").engines if each.ready] == ["same address", "elsewhere"]
    assert [registry.losses(engine_id) for engine_id in registry.members] == [1, 1, 1, 0, 0]


def test_an_engine_that_is_elsewhere_now_has_all_its_room() -> None:
    """What runs at the old place still runs, and is counted, but not against the new one."""
    registry = Registry([member("a")])
    registry.running.apply(AttemptStarted("r", 1, "a", "m", 0.0))
    registry.add(replace(member("a"), most_running=1))  # another bound: the same engine
    assert [engine.running for engine in registry.view("m").engines] == [1]
    registry.add(member("a", url="http://h:2"))
    assert [engine.running for engine in registry.view("m").engines] == [0]
    assert registry.running.counts == {("m", "a"): 1}
    registry.running.apply(AttemptStarted("s", 1, "a", "m", 0.0))
    registry.running.apply(AttemptFailed("r", 1, "a", "broke"))
    assert [engine.running for engine in registry.view("m").engines] == [1]
