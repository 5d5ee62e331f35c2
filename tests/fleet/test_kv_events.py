"""What engines publish of their caches reaches the router whole, or is not used: gaps, restarts, and whatever else goes wrong."""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from prometheus_client.core import Metric
from structlog.testing import capture_logs
from support.kv_publisher import CLEARED, Publisher, removed, stored
from support.metrics import shown
from support.scripted_engine import KEEP, RESET, ScriptedEngine, Seen
from yarl import URL

from engines.kv_events import ZmqEvents
from engines.registry import make
from gateway.fleet import kv_mirror, kv_socket
from gateway.fleet.kv_events import KvEvents
from gateway.fleet.kv_mirror import Mirror, News
from gateway.fleet.kv_socket import Subscription
from gateway.fleet.kv_source import KvSource
from gateway.fleet.registry import Member, Registry
from gateway.routing.blocks import Blocks
from gateway.routing.chain import packed, token_chain
from gateway.routing.choice import Query, Tuning
from gateway.routing.router import Router
from gateway.routing.view import EngineView, FleetView
from gateway.upstream import Upstream
from gateway.wire.kv import MAX_MESSAGE_BYTES, BadEvents, KvBatch, Removed, Stored

CHUNK, ROOT = 8, 5
IDS = list(range(100, 164))


def chain(ids: Sequence[int]) -> tuple[int, ...]:
    return token_chain(ids, CHUNK, ROOT)


class Index:
    """The routers of one model, as the gateway has them."""

    def __init__(self) -> None:
        self.chunk_tokens = CHUNK
        self.router = Router(Tuning(chunk_tokens=CHUNK, hold_s=None), random.Random(1))
        self.said: list[str] = []
        self.handed = 0

    def root(self, model: str) -> int:
        assert model == "m"
        return ROOT

    def trust(self, _: str, engine: str, live: bool, block_tokens: int) -> None:
        self.said.append("live" if live else "shadow")
        self.router.trust(engine, live, block_tokens)

    def stored(self, _: str, engine: str, after: int | None, keys: tuple[int, ...]) -> None:
        self.handed += 1
        self.router.stored(engine, after, keys, asyncio.get_running_loop().time())

    def removed(self, _: str, engine: str, keys: tuple[int, ...]) -> None:
        self.router.removed(engine, keys)

    def cleared(self, _: str, engine: str) -> None:
        self.said.append("cleared")
        self.router.cleared(engine)

    def agrees(self, _: str, engine: str) -> bool:
        return self.router.agrees(engine)

    def held(self, ids: Sequence[int], engine: str = "a") -> int:
        """How many chunks of a prompt the router expects there."""
        view = FleetView((EngineView(engine, True),))
        choice = self.router.choose(Query("probe", chain(ids), len(ids) + 1, patient=False), view, 0.0)
        self.router.cancelled("probe", 0.0)
        return choice.cached_tokens // CHUNK


async def until(happened: Callable[[], object], limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.005)


def member(source: KvSource | None, name: str = "a", **more: Any) -> Member:
    return Member(id=name, model="m", engine=make("vllm"), root=URL("http://127.0.0.1:1"), kv_events=source, **more)


def source_of(publisher: Publisher, *, replay: bool = True, **more: Any) -> KvSource:
    return KvSource("zmq", publisher.live, publisher.replay if replay else None, **more)


class Followed:
    """A registry whose engines are followed, and what came of it."""

    def __init__(self, registry: Registry, upstream: Upstream) -> None:
        self.registry = registry
        self.index = Index()
        self.events = KvEvents(registry, upstream, self.index)

    def state(self, name: str = "a") -> tuple[str, str]:
        return self.events.states()["m", name]

    async def live(self) -> None:
        await until(lambda: self.state() == ("live", ""))

    async def shadow(self, reason: str) -> None:
        await until(lambda: self.state() == ("shadow", reason))

    async def holds(self, ids: Sequence[int], chunks: int) -> None:
        await until(lambda: self.index.held(ids) == chunks)

    def metric(self, name: str, **labels: str) -> float | None:
        return sampled(shown(self.events.metrics()), name, labels)


def sampled(metrics: Any, name: str, labels: Mapping[str, str]) -> float | None:
    found: list[Metric] = list(metrics)
    samples = [each for metric in found for each in metric.samples if each.name == name]
    return next((each.value for each in samples if labels.items() <= each.labels.items()), None)


@contextlib.asynccontextmanager
async def following(*members: Member) -> AsyncIterator[Followed]:
    registry = Registry(members)
    for each in members:
        registry.set_ready(each.id, True)
    async with Upstream() as upstream:
        followed = Followed(registry, upstream)
        task = asyncio.create_task(followed.events.run())
        try:
            yield followed
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


async def test_what_it_told_before_and_tells_now_is_known(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        publisher.publish(stored(IDS[:32]))
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            await followed.holds(IDS, 4)
            publisher.publish(stored(IDS, first=8))
            await followed.holds(IDS, 8)
            publisher.publish(removed(IDS, IDS[:60]), removed(IDS[:56]))
            await followed.holds(IDS, 6)
            assert followed.metric("interlock_engine_kv_events_live", model="m", engine="a") == 1
            assert followed.metric("interlock_kv_events_total", model="m", engine="a", kind="stored") == 2
            assert followed.metric("interlock_kv_events_total", kind="removed") == 2
            assert followed.metric("interlock_kv_event_gaps_total", model="m", engine="a") == 0


@pytest.mark.parametrize("topic_in_replay", [True, False])
async def test_what_got_lost_is_asked_for(tmp_path: Path, topic_in_replay: bool) -> None:
    with Publisher(tmp_path, topic_in_replay=topic_in_replay) as publisher:
        publisher.publish(stored(IDS[:16]))
        async with following(member(source_of(publisher))) as followed:
            await followed.holds(IDS, 2)
            publisher.publish(stored(IDS[:24], first=4))
            await followed.holds(IDS, 3)
            publisher.publish(stored(IDS[:48], first=6), lost=True)
            publisher.publish(stored(IDS, first=12))
            await followed.holds(IDS, 8)
            assert followed.metric("interlock_kv_event_gaps_total", engine="a") == 1
            assert followed.index.said == ["live"]


async def test_batches_that_come_twice_or_late_change_nothing(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            publisher.publish(stored(IDS[:32]))
            publisher.publish(removed(IDS[:32]), removed(IDS[:28]))
            await followed.holds(IDS, 3)
            publisher.again(0)
            publisher.publish(stored(IDS[:4]))
            publisher.again(1)
            publisher.publish(stored(list(range(8))))
            await followed.holds(list(range(8)), 1)
            assert followed.index.held(IDS) == 3
            assert followed.index.said == ["live"]


async def test_another_process_at_the_same_place_begins_with_nothing(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        publisher.publish(stored(IDS))
        publisher.publish(stored(IDS[:4]))
        async with following(member(source_of(publisher))) as followed:
            await followed.holds(IDS, 8)
            publisher.__exit__()
            with Publisher(tmp_path) as another:
                another.publish(stored(IDS[:24]))
                another.publish(stored(IDS[:4]))
                another.publish(stored(IDS[:8]))
                await followed.holds(IDS, 3)
                assert followed.state() == ("live", "")


async def test_one_of_which_something_else_tells_that_it_was_restarted_is_followed_from_its_start(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            publisher.publish(stored(IDS))
            await followed.holds(IDS, 8)
            followed.registry.restarted("a", 0, "a sign")
            await until(lambda: followed.index.said == ["live", "shadow", "cleared", "live"])
            await followed.holds(IDS, 8)
            assert followed.registry.standing("a").restarts == 1


async def test_a_number_that_goes_back_is_another_process(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher, replay=False))) as followed:
            await asyncio.sleep(0.1)
            assert followed.state() == ("shadow", "starting")
            while followed.state() != ("live", ""):  # the first may be published before it listens
                publisher._number = 0
                publisher.publish(stored(IDS))
                await asyncio.sleep(0.05)
            await followed.holds(IDS, 8)
            before = followed.registry.standing("a").restarts
            publisher._number = 0
            publisher.publish(stored(IDS[:16]))
            await followed.holds(IDS, 2)
            assert followed.state() == ("live", "")
            assert followed.registry.standing("a").restarts == before + 1


async def test_what_is_missing_and_cannot_be_asked_for_ends_it_until_all_is_cleared(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher, replay=False))) as followed:
            while followed.state() != ("live", ""):
                publisher._number = 0
                publisher.publish(stored(IDS))
                await asyncio.sleep(0.05)
            publisher.publish(stored(IDS[:8]), lost=True)
            with capture_logs() as logs:
                publisher.publish(stored(IDS[:16]))
                await followed.shadow("gap")
            assert [(each["log_level"], each["why"]) for each in logs] == [("warning", "gap")]
            assert followed.index.held(IDS) == 8  # the shadow goes on with what was known
            assert followed.metric("interlock_engine_kv_events_live", engine="a") == 0
            publisher.publish(CLEARED, stored(IDS[:16]))
            await followed.live()
            await followed.holds(IDS, 2)


async def test_an_engine_that_clears_all_holds_nothing(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        publisher.publish(stored(IDS))
        async with following(member(source_of(publisher))) as followed:
            await followed.holds(IDS, 8)
            publisher.publish({"type": "BlockMoved"}, CLEARED)
            await followed.holds(IDS, 0)
            assert followed.index.said == ["live", "cleared"]
            assert followed.metric("interlock_kv_events_total", kind="unknown") == 1
            assert followed.metric("interlock_kv_events_total", kind="cleared") == 1


async def test_another_process_that_has_told_nothing_yet(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        for _ in range(3):
            publisher.publish(stored(IDS))
        async with following(member(source_of(publisher))) as followed:
            await followed.holds(IDS, 8)
            publisher.__exit__()
            with Publisher(tmp_path):
                await followed.holds(IDS, 0)
                assert followed.state() == ("live", "")


async def test_a_replay_with_a_hole_is_no_replay(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        for _ in range(4):
            publisher.publish(stored(IDS))
        del publisher._buffer[2]
        async with following(member(source_of(publisher))) as followed:
            await followed.shadow("replay")


async def test_messages_that_are_no_batches_are_passed_over(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            publisher.raw(b"alone")
            publisher.raw(b"kv@a", b"short", b"payload")
            publisher.publish(stored(IDS))
            await followed.holds(IDS, 8)
            assert followed.state() == ("live", "")


async def test_an_engine_that_no_longer_has_what_it_told_first_is_not_followed_until_it_clears(tmp_path: Path) -> None:
    with Publisher(tmp_path, buffer=3) as publisher:
        for _ in range(6):
            publisher.publish(stored(IDS[:8]))
        async with following(member(source_of(publisher))) as followed:
            await followed.shadow("history")
            publisher.publish(stored(IDS))
            await until(lambda: followed.metric("interlock_kv_events_total", kind="stored") == 4)
            assert followed.index.held(IDS) == 0
            publisher.publish(stored(IDS), CLEARED, stored(IDS[:24]))
            await followed.live()
            await followed.holds(IDS, 3)


def test_a_replay_without_an_end_is_left_when_it_is_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    read = threading.Event()

    def batches(*_: object) -> tuple[()]:
        read.set()
        time.sleep(0.02)  # longer than the next takes to come
        return ()

    monkeypatch.setattr(ZmqEvents, "batches", batches)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as engine:
        port, ended = engine.bind_to_random_port("tcp://127.0.0.1"), threading.Event()

        def floods() -> None:
            name = engine.recv_multipart()[0]
            for number in range(1 << 20):
                if ended.is_set():
                    return
                engine.send_multipart((name, b"", number.to_bytes(8, "big"), b""))
                if number % 200 == 199:
                    time.sleep(0.05)

        flood = threading.Thread(target=floods)
        flood.start()
        follow = Subscription(
            context,
            Mirror(ZmqEvents(), Blocks(0, 128), None),
            "tcp://127.0.0.1:9",
            f"tcp://127.0.0.1:{port}",
            topic="",
            bind=False,
            say=lambda _: True,
            idle=lambda: True,
        )
        follow.start()
        try:
            assert read.wait(20)
            time.sleep(0.3)  # some hundreds wait
            follow.stop()
            assert follow.join(10), "it reads on"
        finally:
            ended.set()
            flood.join()
            follow.join(60)


async def test_a_replay_that_does_not_come_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_socket, "_REPLAY_MS", 50)
    monkeypatch.setattr(kv_socket, "_AGAIN_S", 0.05)
    with Publisher(tmp_path) as publisher:
        publisher.deaf = True
        publisher.publish(stored(IDS))
        async with following(member(source_of(publisher))) as followed:
            await followed.shadow("replay")
            publisher.publish(stored(IDS[:8]))
            publisher.deaf = False
            await followed.live()
            await followed.holds(IDS, 8)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "unreadable"),
        (b"\xc1", "unreadable"),
        (b'[1.0,[{"type":"BlockStored"}]]', "unreadable"),
    ],
)
async def test_bytes_that_are_no_events_end_it(tmp_path: Path, payload: bytes, reason: str) -> None:
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            publisher.send(payload)
            await followed.shadow(reason)
            publisher.publish(CLEARED, stored(IDS))
            await followed.live()
            await followed.holds(IDS, 8)


async def test_events_of_another_rank_are_not_the_members(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        publisher.publish(stored(IDS), rank=1)
        async with following(member(source_of(publisher))) as followed:
            await followed.shadow("rank")
            assert followed.index.held(IDS) == 0


async def test_another_topic_is_another_engines(tmp_path: Path) -> None:
    with Publisher(tmp_path, topic=b"kv@b") as publisher:
        async with following(member(source_of(publisher, topic="kv@a"))) as followed:
            await followed.live()
            publisher.publish(stored(IDS))
            await asyncio.sleep(0.2)
            assert followed.index.held(IDS) == 0


async def test_an_engine_that_connects_to_us(tmp_path: Path) -> None:
    ours = f"ipc://{tmp_path}/ours"
    with Publisher(tmp_path, connect=ours) as publisher:
        source = KvSource("zmq", ours, publisher.replay, bind=True)
        async with following(member(source)) as followed:
            await followed.live()
            publisher.publish(stored(IDS))
            await followed.holds(IDS, 8)


async def test_an_endpoint_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    async with following(member(KvSource("zmq", f"ipc://{tmp_path}/no/such/folder/x", bind=True))) as followed:
        await followed.shadow("socket")


async def test_an_engine_that_is_lost_and_comes_back(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        publisher.publish(stored(IDS))
        async with following(member(source_of(publisher))) as followed:
            await followed.holds(IDS, 8)
            followed.registry.set_ready("a", False)
            await followed.shadow("unreachable")
            assert followed.index.said == ["live", "shadow"]
            followed.registry.set_ready("a", True)
            await followed.live()
            assert followed.index.said == ["live", "shadow", "cleared", "live"]
            await followed.holds(IDS, 8)


async def test_engines_come_change_and_go(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with Publisher(tmp_path) as one, Publisher(tmp_path / "b") as two:
        one.publish(stored(IDS))
        two.publish(stored(IDS[:16]))
        async with following(member(None)) as followed:
            assert followed.state() == ("off", "")
            assert followed.metric("interlock_engine_kv_events_live", engine="a") is None
            followed.registry.add(member(source_of(one)))
            await followed.live()
            await followed.holds(IDS, 8)
            followed.registry.add(member(source_of(two)))
            await followed.holds(IDS, 2)
            followed.registry.add(member(None))
            await until(lambda: followed.state() == ("off", ""))
            assert followed.index.said[-1] == "shadow"
            assert followed.metric("interlock_kv_events_total", engine="a") is None


async def test_an_engine_that_tells_of_nothing_is_not_believed_until_it_has_started_anew(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            router, view = followed.index.router, FleetView((EngineView("a", True),))
            for number in range(3):
                ids = list(range(number * 1000, number * 1000 + 40))
                router.choose(Query(str(number), chain(ids), 41, patient=False), view, float(number))
                router.first_token(str(number), float(number))
                router.finished(str(number), float(number), 5)
            router.stored("a", None, chain(list(range(90_000, 90_008))), 60.0)
            with capture_logs() as logs:
                await followed.shadow("parity")
            assert [each["why"] for each in logs] == ["parity"]
            publisher.publish(stored(IDS[:4]))
            publisher.publish(stored(IDS[:8], first=1))
            await asyncio.sleep(0.1)
            assert followed.state() == ("shadow", "parity")
            publisher._number = 0
            publisher._buffer.clear()
            publisher.publish(stored(IDS))
            await followed.live()
            await followed.holds(IDS, 8)


async def test_a_loop_that_is_behind_is_told_all_when_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fleet.kv_events._MOST_WAITING", 2)
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            for end in range(1, 17):  # without the loop's turn in between
                publisher.publish(stored(IDS[: end * 4], first=end - 1))
                await asyncio.to_thread(lambda: None) if end == 1 else None
            await followed.holds(IDS, 8)
            await followed.live()


async def test_a_long_prompt_comes_in_pieces_between_which_the_loop_turns_to_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_mirror, "PIECE", 16)
    ids = list(range(300 * CHUNK))
    taken = [0]  # pieces, by turn of the loop

    async def turns() -> None:
        while True:
            taken.append(0)
            await asyncio.sleep(0)

    turning = asyncio.create_task(turns())
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            take = followed.index.stored

            def counted(model: str, engine: str, after: int | None, keys: tuple[int, ...]) -> None:
                taken[-1] += 1
                take(model, engine, after, keys)

            monkeypatch.setattr(followed.index, "stored", counted)
            publisher.publish(stored(ids, 8 * CHUNK))
            await followed.holds(ids, 296)
            assert (sum(taken), max(taken)) == (19, 8)
            assert followed.index.said == ["live"]
    turning.cancel()


async def test_of_a_conversation_that_grows_it_is_told_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Publisher(tmp_path) as publisher:
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            told: list[int] = []
            take = followed.index.stored

            def counted(model: str, engine: str, after: int | None, keys: tuple[int, ...]) -> None:
                told.extend(keys)
                take(model, engine, after, keys)

            monkeypatch.setattr(followed.index, "stored", counted)
            for end in range(2, 17, 2):
                publisher.publish(stored(IDS[: end * 4], first=end - 2))
                await followed.holds(IDS, end // 2)
            assert tuple(told) == chain(IDS)


PUBLISHES = """
import sys, zmq
count, size = map(int, sys.argv[1:])
publisher = zmq.Context().socket(zmq.XPUB)
publisher.setsockopt(zmq.SNDHWM, 0)
print(publisher.bind_to_random_port("tcp://127.0.0.1"), flush=True)
publisher.recv()
for number in range(count):
    publisher.send_multipart((b"", number.to_bytes(8, "big"), bytes(size)))
print("sent", flush=True)
sys.stdin.read()
"""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_what_an_engine_publishes_and_nobody_reads_waits_there(monkeypatch: pytest.MonkeyPatch) -> None:
    count, size, read, goes_on = 256, 1 << 20, list[int](), threading.Event()

    def batches(_: object, body: bytes) -> tuple[()]:
        read.append(len(body))
        assert goes_on.wait(30)
        return ()

    monkeypatch.setattr(ZmqEvents, "batches", batches)
    arguments = [sys.executable, "-c", PUBLISHES, str(count), str(size)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine, zmq.Context() as context:
        assert engine.stdin is not None
        assert engine.stdout is not None
        live, before = f"tcp://127.0.0.1:{int(engine.stdout.readline())}", resident_bytes()
        mirror = Mirror(ZmqEvents(), Blocks(0, 128), None)
        follow = Subscription(context, mirror, live, None, topic="", bind=False, say=lambda _: True, idle=lambda: True)
        follow.start()
        try:
            assert engine.stdout.readline() == b"sent\n"
            time.sleep(1)  # all of it would be here
            assert resident_bytes() - before < 100 << 20
            assert len(read) == 1
            goes_on.set()
            for _ in range(1000):
                if len(read) < count:
                    time.sleep(0.02)
            assert read == [size] * count
            assert mirror.complete, "nothing of it got lost"
        finally:
            goes_on.set()
            follow.stop()
            assert follow.join(10)
            engine.stdin.close()


async def test_messages_that_are_too_large_are_told_and_not_read(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        source = source_of(publisher, replay=False)
        async with following(member(source)) as followed:
            while followed.state() != ("live", ""):
                publisher._number = 0
                publisher.publish(stored(IDS))
                await asyncio.sleep(0.05)
            async with asyncio.timeout(15):
                while followed.state() != ("shadow", "oversize"):
                    publisher.send(bytes(MAX_MESSAGE_BYTES + 1))
                    await asyncio.sleep(0.1)
            async with asyncio.timeout(15):
                while followed.state() != ("live", ""):  # it may not be connected again yet
                    publisher.publish(CLEARED, stored(IDS[:16]))
                    await asyncio.sleep(0.1)
            await followed.holds(IDS, 2)


async def test_a_replay_that_is_too_large_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_socket, "_MOST_WAITING", 1 << 16)
    monkeypatch.setattr(kv_socket, "_AGAIN_S", 0.05)
    with Publisher(tmp_path) as publisher:
        for start in range(100):
            publisher.publish(stored(range(start * 10_000, start * 10_000 + 1000)))
        async with following(member(source_of(publisher))) as followed:
            await followed.shadow("oversize")
            assert followed.index.held(range(1000)) == 0
            monkeypatch.setattr(kv_socket, "_MOST_WAITING", 1 << 20)
            await followed.live()
            await followed.holds(range(1000), 125)


async def test_a_replay_without_an_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_socket, "_MOST_REPLAYED", 8)
    monkeypatch.setattr(kv_socket, "_AGAIN_S", 0.05)
    with Publisher(tmp_path) as publisher:
        for end in range(4, 48, 4):
            publisher.publish(stored(IDS[:end], first=end // 4 - 1))
        async with following(member(source_of(publisher))) as followed:
            await followed.shadow("replay")
            assert followed.index.held(IDS) == 0
            monkeypatch.setattr(kv_socket, "_MOST_REPLAYED", 12)
            await followed.live()
            await followed.holds(IDS, 5)


async def test_much_at_once_comes_in_pieces(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        for start in range(40):
            publisher.publish(stored(list(range(start * 10_000, start * 10_000 + 4096)), size=64))
        async with following(member(source_of(publisher))) as followed:
            await followed.live()
            await until(lambda: followed.index.router.entries == 40 * 512)
            assert followed.metric("interlock_kv_events_total", kind="stored") == 40


def test_where_an_engine_publishes() -> None:
    source = KvSource("zmq", "tcp://*:5557", "tcp://*:6557")
    assert source.live_at("10.0.0.7", None) == "tcp://10.0.0.7:5557"
    assert (source.live_at("::1", 3), source.replay_at("::1", 3)) == ("tcp://[::1]:5560", "tcp://[::1]:6560")
    bound = replace(source, endpoint="tcp://127.0.0.1:5557", replay_endpoint=None, bind=True)
    assert (bound.live_at("10.0.0.7", 1), bound.replay_at("10.0.0.7", 1)) == ("tcp://127.0.0.1:5558", None)
    assert replace(source, endpoint="tcp://*:5557", bind=True).live_at("10.0.0.7", 0) == "tcp://*:5557"
    assert KvSource("zmq", "ipc:///x").live_at("h", None) == "ipc:///x"


# TensorRT-LLM


def numbered(first: int, *data: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"event_id": first + at, "window_size": 128, "data": each} for at, each in enumerate(data)]


def trt_stored(ids: Sequence[int], first: int = 0, size: int = 4) -> dict[str, Any]:
    blocks = [
        {
            "type": "stored_block",
            "block_hash": hash(tuple(ids[:end])) & ((1 << 64) - 1),
            "tokens": [{"type": "unique_token", "token_id": each, "token_extra_id": 0} for each in ids[end - size : end]],
            "cache_level": 0,
            "priority": 35,
        }
        for end in range((first + 1) * size, len(ids) + 1, size)
    ]
    parent = hash(tuple(ids[: first * size])) & ((1 << 64) - 1) if first else None
    return {"type": "stored", "parent_hash": parent, "blocks": blocks}


class Cache:
    """A TensorRT-LLM that tells what waits, once."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.waiting: list[dict[str, Any]] = []
        self.number = 0
        self.refuses = self.resets = False
        self.engine._told = self._told  # type: ignore[method-assign]  # to see what is told

    def tell(self, *data: Mapping[str, Any]) -> None:
        self.waiting += numbered(self.number, *data)
        self.number += len(data)

    def _told(self, seen: Seen) -> object:
        assert seen.path == "/kv_cache_events"
        if self.resets:
            return [RESET]
        if self.refuses:
            return [b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", KEEP]
        told, self.waiting = self.waiting, []
        body = json.dumps(told).encode()
        return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body), KEEP]


@contextlib.asynccontextmanager
async def polled(cache: Cache) -> AsyncIterator[Followed]:
    async with cache.engine.running() as engine:
        source = KvSource("poll", poll_s=0.02)
        one = Member(id="a", model="m", engine=make("trtllm"), root=URL(engine.url), kv_events=source)
        async with following(one) as followed:
            yield followed


async def test_an_engine_that_is_asked_is_followed_from_its_first_event() -> None:
    cache = Cache()
    async with polled(cache) as followed:
        await asyncio.sleep(0.1)
        assert followed.state() == ("shadow", "starting")
        cache.tell({"type": "created", "num_blocks_per_cache_level": [9, 0]}, trt_stored(IDS[:32]))
        await followed.live()
        await followed.holds(IDS, 4)
        cache.tell(trt_stored(IDS, first=8), {"type": "removed", "block_hashes": [hash(tuple(IDS[:24])) & ((1 << 64) - 1)]})
        await followed.holds(IDS, 2)


async def test_an_engine_that_is_asked_and_misses_events_is_not_followed_until_it_has_started_anew() -> None:
    cache = Cache()
    async with polled(cache) as followed:
        cache.tell(trt_stored(IDS[:32]))
        await followed.live()
        cache.number += 3
        cache.tell(trt_stored(IDS[:8]))
        await followed.shadow("gap")
        assert followed.metric("interlock_kv_event_gaps_total", engine="a") == 1
        cache.number = 0
        cache.tell({"type": "created", "num_blocks_per_cache_level": [9, 0]}, trt_stored(IDS[:16]))
        await followed.live()
        await followed.holds(IDS, 2)
        assert followed.registry.standing("a").restarts == 1


async def test_an_engine_that_told_another_its_first_events_is_not_followed() -> None:
    cache = Cache()
    cache.number = 7
    async with polled(cache) as followed:
        cache.tell(trt_stored(IDS[:32]))
        await followed.shadow("history")
        cache.number = 4
        cache.tell(trt_stored(IDS[:32]))
        await asyncio.sleep(0.1)
        assert followed.state() == ("shadow", "history")


async def test_an_engine_without_the_route_is_not_followed_until_it_has_it() -> None:
    cache = Cache()
    cache.refuses = True
    async with polled(cache) as followed:
        await followed.shadow("refused")
        cache.refuses = False
        cache.tell(trt_stored(IDS[:32]))
        await followed.live()


async def test_an_engine_that_does_not_answer_is_asked_again() -> None:
    cache = Cache()
    async with polled(cache) as followed:
        cache.resets = True
        await until(lambda: len(cache.engine.seen) > 4)
        assert followed.state() == ("shadow", "starting")
        cache.resets = False
        cache.tell(trt_stored(IDS[:32]))
        await followed.live()
        followed.registry.set_ready("a", False)
        await followed.shadow("unreachable")


async def test_an_answer_that_is_none_is_told() -> None:
    cache = Cache()
    async with polled(cache) as followed:
        cache.waiting = [{"event_id": "x"}]
        await followed.shadow("unreadable")


# The mirror by itself


class Reader:
    def batches(self, _: bytes) -> Sequence[KvBatch]:
        raise BadEvents("none")


def test_a_mirror_that_is_told_too_much_at_once_tells_all_of_it() -> None:
    mirror = Mirror(Reader(), Blocks(ROOT, CHUNK), None)
    mirror.begin()
    assert [each.reason for each in mirror.news()] == [""]
    events = [Stored((start,), None, packed(range(start, start + 8)), 8) for start in range(3000)]
    mirror.read(KvBatch(tuple(events)))
    mirror.read(KvBatch((Removed((0,)),)))
    told = mirror.news()
    assert told[0].reason == ""
    assert sum(len(each.changes.stored) for each in told) == 2999
    assert mirror.news() == []


def leaf(parent: int, index: int) -> Stored:
    return Stored((10_000 + index,), parent, packed([index] * CHUNK), CHUNK)


def test_what_changes_much_is_told_in_pieces_what_is_gone_first() -> None:
    piece = kv_mirror.PIECE
    mirror = Mirror(Reader(), Blocks(ROOT, CHUNK), None)
    mirror.begin()
    mirror.read(KvBatch((Stored(tuple(range(1, 1001)), None, packed(range(1000 * CHUNK)), CHUNK),)))
    gone = [Stored((20_000 + each,), None, packed(range(each, each + CHUNK)), CHUNK) for each in range(1, 9001)]
    mirror.read(KvBatch(tuple(gone)))
    mirror.news()
    leaves = [leaf(1000, each) for each in range(20)]
    mirror.read(KvBatch((Removed(tuple(each.hashes[0] for each in gone)), *leaves)))
    told = mirror.news()
    assert [each.reason for each in told] == [None] * len(told)
    assert [dict(each.kinds) for each in told] == [{"removed": 1, "stored": 20}, *[{}] * (len(told) - 1)]
    assert [len(each.changes.removed) for each in told if each.changes.removed] == [piece, piece, 9000 - 2 * piece]
    assert [sum(len(run.keys) for run in each.changes.stored) for each in told] == [0, 0, 20]
    assert len({key for each in told for key in each.changes.removed}) == 9000


def test_all_that_an_engine_holds_is_told_in_pieces_that_go_on_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_mirror, "PIECE", 300)
    mirror = Mirror(Reader(), Blocks(ROOT, CHUNK), None)
    mirror.begin()
    mirror.read(KvBatch((Stored(tuple(range(1, 1001)), None, packed(range(1000 * CHUNK)), CHUNK),)))
    mirror.read(KvBatch(tuple(leaf(each, each) for each in range(100, 1000, 100))))
    told, held = mirror.news(), set[int | None]({None})
    sizes = [sum(len(run.keys) for run in each.changes.stored) for each in told]
    assert sizes == [300, 300, 300, 109]
    for run in [run for each in told for run in each.changes.stored]:
        assert run.after in held
        assert held.isdisjoint(run.keys)
        held.update(run.keys)
    assert set(chain(range(1000 * CHUNK))) < held


def test_a_mirror_whose_blocks_are_too_many_says_so() -> None:
    mirror = Mirror(Reader(), Blocks(ROOT, CHUNK, most_blocks=1), None)
    mirror.begin()
    mirror.read(KvBatch((Stored((1, 2), None, packed(range(16)), 8),)))
    assert [(each.reason, dict(each.kinds)) for each in mirror.news()] == [("overfull", {"stored": 1})]
    mirror.take(0, b"")
    assert mirror.reason == "unreadable"
    assert isinstance(mirror.news()[0], News)
