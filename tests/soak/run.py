"""Twenty minutes of half the load that this place can take, a twentieth of it with faults, on a fleet of fault engines.

The engines, the gateway (`interlock serve`) and the clients, which are this process, share the machine's cores: the most that was
measured is that of all of them together. Everything is on loopback, and ends by itself. Exit code 1: a check failed.

`--faults` is about the share of requests that meet a fault. Only those do that are routed to the one engine that may fail then,
so that many times more ask for one; how many did is printed, by the engines' own records.

Tasks of the gateway's process are not counted: it has no figure for them. Each would hold a descriptor or an attempt, which are.
"""

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from faults.chaos import NONE
from faults.engine import process
from prometheus_client.parser import text_string_to_metric_families
from soak.load import CALM_S, TURN_S, Load
from soak.verdict import Check, Sample, descriptors, ended, memory, offered, outcomes, running, success
from support.gateway import tiny_model
from support.process import ServeProcess, serve_process

ENGINES = "abc"
CLIENTS = 48  # while the most is measured
MOST_PER_S = 400.0
WARM_UP_S = 2.0
SETTLES_S = 30.0
_FAILURES = {"eject_s": 3, "slow_start_s": 3}  # so that an engine that failed soon takes part again
_TIMEOUTS = {"headers_s": 2, "first_token_s": 2, "between_tokens_s": 1, "total_s": 15}


@dataclass(slots=True)
class Watch:
    """Looks at the gateway's process once a second, and prints a line a minute."""

    gateway: ServeProcess
    load: Load
    engine_ports: Collection[int]
    samples: list[Sample] = field(default_factory=list)

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            at_s = loop.time() - began_s
            self.samples.append(Sample(at_s, rss_kib(self.gateway.pid), *open_descriptors(self.gateway.pid, self.engine_ports)))
            if len(self.samples) % 60 == 0:
                print(self.line(), flush=True)
            await asyncio.sleep(began_s + len(self.samples) - loop.time())

    def line(self) -> str:
        """Where the soak is."""
        last, counts = self.samples[-1], self.load.counts
        return (
            f"{last.at_s:5.0f} s  {counts.sent} sent, {counts.good} of {counts.judged} good, {counts.apart} apart, "
            f"{counts.left} left, {counts.not_offered} not offered; {self.load.running} running, "
            f"{last.rss_kib / 1024:.1f} MiB, {last.descriptors} descriptors and {last.to_engines} to engines, "
            f"load average {os.getloadavg()[0]:.1f}"
        )


def rss_kib(pid: int) -> int:
    """The resident memory of a process, without its children."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("\nVmRSS:")[2].split()[0])


def open_descriptors(pid: int, ports: Collection[int] = ()) -> tuple[int, int]:
    """How many a process has open, but for connections to these ports, and how many such connections."""
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    there = {f"socket:[{row[9]}]" for row in rows if int(row[2].rpartition(":")[2], 16) in ports}
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    kept = sum(each in there for each in found)
    return len(found) - kept, kept


async def total(client: httpx.AsyncClient, gateway: ServeProcess, name: str) -> float:
    """The sum of a metric's samples."""
    text = (await client.get(f"{gateway.admin_url}/metrics")).text
    families = text_string_to_metric_families(text)
    return sum(each.value for family in families for each in family.samples if each.name == name)


async def settled(client: httpx.AsyncClient, watch: Watch, before: int) -> list[Check]:
    """What still runs, and the descriptors, once both are as before, or after a time in which they should be."""
    limit_s = time.monotonic() + SETTLES_S
    while True:
        in_flight = await total(client, watch.gateway, "interlock_inflight_requests")
        now, to_engines = open_descriptors(watch.gateway.pid, watch.engine_ports)
        checks = [running(in_flight), descriptors(before, now, to_engines, len(ENGINES))]
        if all(check.holds for check in checks) or time.monotonic() > limit_s:
            return checks
        await asyncio.sleep(0.5)


async def soak(gateway: ServeProcess, places: Sequence[Mapping[str, str]], wanted: argparse.Namespace) -> list[Check]:
    """The load, and what it did to this gateway."""
    load = Load(
        gateway.url, tuple(ENGINES), wanted.faults * len(ENGINES) * TURN_S / (TURN_S - CALM_S), random.Random(wanted.seed)
    )
    watch = Watch(gateway, load, [int(each["url"].rpartition(":")[2]) for each in places])
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        await load.closed(CLIENTS, WARM_UP_S)  # what is made once, by the first requests, is made
        await total(client, gateway, "interlock_inflight_requests")  # over a connection that stays
        before, _ = open_descriptors(gateway.pid, watch.engine_ports)
        most = await load.closed(CLIENTS, min(15.0, max(3.0, 0.1 * wanted.seconds)))
        rate = min(most, MOST_PER_S) / 2
        print(f"the most: {most:.0f} requests a second, {CLIENTS} at a time; offered: {rate:.0f}; seed {wanted.seed}", flush=True)
        watching = asyncio.create_task(watch.run())
        try:
            await load.open(rate, wanted.seconds)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        print(watch.line())
        at_the_end = await settled(client, watch, before)
        counted = await total(client, gateway, "interlock_requests_total")
        await tell(client, [each["admin_url"] for each in places], load)
    counts = load.counts
    return [offered(counts), memory(watch.samples, wanted.seconds), success(counts), outcomes(counts, counted), *at_the_end]


async def tell(client: httpx.AsyncClient, admin_urls: Sequence[str], load: Load) -> None:
    """Which faults were met, and what failed."""
    met: Counter[str] = Counter()
    for url in admin_urls:
        record: Any = (await client.get(f"{url}/admin/seen")).json()
        met.update(each["fault"] for each in record["requests"])
    share = (met.total() - met[NONE]) / max(load.counts.sent, 1)
    print(f"faults met: {share:.1%} of the requests; {len(met) - 1} kinds; calls of engines a request: ", end="")
    print(f"{met.total() / max(load.counts.sent, 1):.3f}")
    for why, count in load.failures.most_common(20):
        print(f"  failed {count} times: {why}")
    for example in list(load.examples)[:5]:
        print(f"  {example[:700]}")


async def main(wanted: argparse.Namespace, folder: Path) -> list[Check]:
    """Starts everything, and judges it."""
    checks: list[Check] = []
    code: int | None = 0
    async with contextlib.AsyncExitStack() as stack:
        options = ("--token-s", "0.01")
        places = [await stack.enter_async_context(process("--name", name, *options)) for name in ENGINES]
        engines = [{"id": name, "url": each["url"], "kind": wanted.kind} for name, each in zip(ENGINES, places, strict=True)]
        model = {"name": "m", "source": str(tiny_model()), "engines": engines}
        try:
            with serve_process({"models": [model], "timeouts": _TIMEOUTS, "failures": _FAILURES}, folder) as gateway:
                checks += await soak(gateway, places, wanted)
        except AssertionError as error:
            code = None
            print(f"the gateway's process: {str(error)[:2000]}")
    log = (folder / "interlock.log").read_text(errors="replace")
    if "Traceback" in log:
        print(log[max(0, log.index("Traceback") - 1000) :][:4000])
    return [*checks, *ended(code, log)]


def options() -> argparse.Namespace:
    """What the command line wants."""
    parser = argparse.ArgumentParser(prog="python -m soak.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--kind", choices=("vllm", "llamacpp"), default="vllm")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    return parser.parse_args()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="interlock-soak-") as place:
        found = asyncio.run(main(options(), Path(place)))
    print(*(each.line() for each in found), sep="\n")
    sys.exit(any(not each.holds for each in found))
