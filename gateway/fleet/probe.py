"""Asks each engine whether it can serve, what it is, and whether it has the tokenizer that its prompts are made with.

A failed probe takes an engine out, the next good one puts it back. Invariant: no engine whose model is rendered here is ready
before its ids for a text were the model's own, since it was last down or another; but for kinds that cannot tokenise.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import structlog

from engines.base import EngineInfo
from gateway.errors import EngineError, GatewayError
from gateway.fleet.parity import Parity
from gateway.fleet.registry import Member, Problem, Registry
from gateway.upstream import Upstream

_log = structlog.get_logger("interlock.fleet")

_MAX_IDS_BYTES = 1 << 18  # the text has some thousands of tokens at the most
_MISMATCH = (
    "its token ids for a text are not those of the model's `source`: it serves another model or another revision of it, or its "
    "files and `source` are not of the same model"
)


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """How often a ready engine is asked, how often one that is not, and how long it may take to answer (seconds)."""

    ready_s: float = 2.0
    down_s: float = 0.25
    limit_s: float = 5.0


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why an engine cannot serve: the word, and the sentence and figures for the log."""

    problem: Problem
    why: str
    figures: Mapping[str, object] = field(default_factory=dict)


class Prober:
    """Probes the engines of a registry until its task is cancelled.

    `parity` has, by name, the models that are rendered here. `on_info` is told what an engine is, at first and when that changes.
    """

    def __init__(
        self,
        registry: Registry,
        upstream: Upstream,
        parity: Mapping[str, Parity],
        on_info: Callable[[Member, EngineInfo], None],
        times: ProbeTimes | None = None,
    ) -> None:
        self._registry = registry
        self._upstream = upstream
        self._parity = parity
        self._on_info = on_info
        self._times = times or ProbeTimes()
        self._known: set[str] = set()  # engines that have said what they are
        self._uncompared: set[str] = set()  # engines that cannot tokenise, told of once
        self._told: dict[str, Problem | None] = {}  # what was last logged of each engine

    async def run(self) -> None:
        """Probes for ever, each engine at its own pace."""
        async with asyncio.TaskGroup() as group:
            for member in self._registry.members.values():
                group.create_task(self._watch(member))

    async def _watch(self, member: Member) -> None:
        while True:
            await self._rest(member, await self.probe(member))

    async def _rest(self, member: Member, ready: bool) -> None:
        """Waits for the next probe, but no longer than until traffic finds the engine gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.ready_s if ready else self._times.down_s):
                while self._registry.is_ready(member.id) == ready:
                    await self._registry.changed()

    async def probe(self, member: Member) -> bool:
        """Asks one engine once, and records the answer."""
        try:
            fault = await self._examine(member)
        except GatewayError as error:
            fault = _Fault("unreachable", error.message)
        except Exception:  # a bug of ours in one probe must not end the probing of all engines
            _log.exception("probe failed", engine=member.id)
            fault = _Fault("probe_failed", "the probe failed")
        if fault is None:
            self._registry.set_ready(member.id, True)
        else:
            self._registry.set_ready(member.id, False, fault.problem)
        self._tell(member, fault)
        return fault is None

    def _tell(self, member: Member, fault: _Fault | None) -> None:
        """Logs what is new."""
        problem = fault.problem if fault is not None else None
        if member.id in self._told and self._told[member.id] == problem:
            return
        self._told[member.id] = problem
        if fault is None:
            _log.info("engine ready", engine=member.id)
        else:
            _log.warning("engine not ready", engine=member.id, problem=fault.problem, why=fault.why, **fault.figures)

    async def _examine(self, member: Member) -> _Fault | None:
        """What is wrong with an engine. Its tokenizer is compared where it was down, or is another now."""
        status, body = await self._get(member, member.engine.health_path)
        if status != 200:
            return _Fault("unhealthy", f"status {status}")
        another = await self._identify(member, body)
        return await self._compare(member) if another or not self._registry.is_ready(member.id) else None

    async def _identify(self, member: Member, health: bytes) -> bool:
        """Reads what the engine is, each time: one that was restarted between two probes may be another. True where it is."""
        bodies = []
        for path in member.engine.info_paths:
            status, body = (200, health) if path == member.engine.health_path else await self._get(member, path)
            bodies.append(body if status == 200 else b"")
        info = member.engine.info(bodies)
        if info == self._registry.info(member.id) and member.id in self._known:
            return False
        self._registry.set_info(member.id, info)
        self._on_info(member, info)
        self._known.add(member.id)
        return True

    async def _compare(self, member: Member) -> _Fault | None:
        """Asks for the engine's ids of the model's text. Until they have come the engine is out."""
        parity = self._parity.get(member.model)
        if parity is None:
            return None
        call = member.engine.tokenize(parity.text, member.engine_model)
        if call is None:
            self._tell_uncompared(member)
            return None
        if self._registry.is_ready(member.id):
            self._registry.set_ready(member.id, False, "tokenizer_unknown")
        try:
            status, body = await self._upstream.post(
                member.url(call.path), call, api_key=member.api_key, limit_s=self._times.limit_s, max_bytes=_MAX_IDS_BYTES
            )
            ids = member.engine.token_ids(body) if status == 200 else None
        except EngineError as error:
            return _Fault("tokenizer_unknown", _unknown(call.path, error.message))
        if not ids:  # a kind's request to an engine of another is answered with an empty list
            what = f"status {status}" if ids is None else "it gave no ids: see that `kind` is right"
            return _Fault("tokenizer_unknown", _unknown(call.path, what))
        difference = parity.difference(ids)
        return None if difference is None else _Fault("tokenizer_mismatch", _MISMATCH, asdict(difference))

    def _tell_uncompared(self, member: Member) -> None:
        if member.id not in self._uncompared:
            self._uncompared.add(member.id)
            _log.warning("tokenizer not compared: this kind of engine cannot tokenise", engine=member.id, kind=member.engine.kind)

    async def _get(self, member: Member, path: str) -> tuple[int, bytes]:
        return await self._upstream.get(member.url(path), api_key=member.api_key, limit_s=self._times.limit_s)


def _unknown(path: str, what: str) -> str:
    return (
        f"it did not tokenise the text that tells whether its model is this one ({what}): let `POST {path}` through to it, where "
        "something stands before it, and see that the engine's `kind`, `url` and `model` are right"
    )
