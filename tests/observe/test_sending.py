"""Spans on their way: bounded, counted, and one line of the log where they cannot be sent."""

import asyncio
import threading
from collections.abc import Sequence

from structlog.testing import capture_logs
from support.metrics import shown

from gateway.observe.sending import BATCH, Sender, counted
from gateway.observe.spans import Span

SPAN = Span("s", "internal", "1" * 32, 1, None, 1, 2, {})


def numbers(sender: Sender | None = None) -> dict[str, float]:
    metrics = counted(sender.counts) if sender is not None else counted()
    samples = [each for family in shown(metrics) for each in family.samples]
    return {each.labels.get("reason", each.name.removeprefix("interlock_spans_")): each.value for each in samples}


async def until(sender: Sender, name: str, value: float) -> None:
    async with asyncio.timeout(20):
        while numbers(sender)[name] != value:
            await asyncio.sleep(0.005)


async def test_a_full_queue_takes_no_part_of_a_request() -> None:
    sender = Sender(lambda spans: None, lambda: None, room=10)
    sender.put([SPAN] * 6)
    sender.put([SPAN] * 5)
    sender.put([SPAN] * 4)
    assert numbers(sender) == {"waiting": 10, "sent_total": 0, "full": 5, "unsent": 0}
    async with sender.sending():
        pass
    sender.put([SPAN])
    assert numbers(sender) == {"waiting": 0, "sent_total": 10, "full": 6, "unsent": 0}


async def test_a_batch_goes_at_once_and_what_is_left_at_the_end() -> None:
    batches: list[int] = []

    def send(spans: Sequence[Span]) -> None:
        batches.append(len(spans))

    closed: list[int] = []
    sender = Sender(send, lambda: closed.append(len(batches)), every_s=1000)
    async with sender.sending():
        sender.put([SPAN] * (BATCH - 1))
        sender.put([SPAN] * 2)
        await until(sender, "sent_total", BATCH + 1)
        sender.put([SPAN] * 3)
    assert batches == [BATCH, 1, 3]
    assert closed == [3]


async def test_a_failure_is_one_line_however_long_it_lasts_and_so_is_its_end() -> None:
    why: list[str | None] = ["refused", "refused", "refused", None, None]
    sender = Sender(lambda spans: why.pop(0), lambda: None, every_s=0.001)
    with capture_logs() as logs:
        async with sender.sending():
            for each in range(1, 4):
                sender.put([SPAN])
                await until(sender, "unsent", each)
            for each in range(1, 3):
                sender.put([SPAN])
                await until(sender, "sent_total", each)
    assert [(entry["log_level"], entry.get("why"), entry.get("dropped")) for entry in logs] == [
        ("warning", "refused", None),
        ("info", None, 3),
    ]


async def test_whatever_sending_raises_the_next_are_sent() -> None:
    raised: list[Exception] = [KeyError("no such"), MemoryError(), RecursionError()]

    def send(spans: Sequence[Span]) -> None:
        if raised:
            raise raised.pop(0)

    sender = Sender(send, lambda: None, every_s=0.001)
    with capture_logs() as logs:
        async with sender.sending():
            for each in range(1, 4):
                sender.put([SPAN])
                await until(sender, "unsent", each)
            sender.put([SPAN])
            await until(sender, "sent_total", 1)
    assert [(entry["log_level"], entry.get("why")) for entry in logs] == [("warning", "KeyError"), ("info", None)]


async def test_at_the_end_nobody_waits_for_a_collector_that_is_down() -> None:
    tries: list[int] = []

    def send(spans: Sequence[Span]) -> str:
        tries.append(len(spans))
        return "down"

    sender = Sender(send, lambda: None, every_s=1000)
    async with sender.sending():
        sender.put([SPAN] * (BATCH - 1))
        sender.put([SPAN] * 3 * BATCH)
    assert tries[0] == BATCH
    assert numbers(sender)["unsent"] == 4 * BATCH - 1
    assert numbers(sender)["waiting"] == 0


async def test_a_send_that_hangs_is_cut_and_says_nothing_more() -> None:
    cut = threading.Event()

    def send(spans: Sequence[Span]) -> str:
        cut.wait(20)
        return "cut"

    sender = Sender(send, cut.set, every_s=0.001)
    with capture_logs() as logs:
        async with asyncio.timeout(15), sender.sending():
            sender.put([SPAN])
    assert cut.is_set()
    assert not logs


def test_without_tracing_all_is_zero() -> None:
    assert numbers() == {"waiting": 0, "sent_total": 0, "full": 0, "unsent": 0}
