"""Asks each engine whether it can serve, what it is, and whether it has the tokenizer that its prompts are made with.

A failed probe takes an engine out, the next good one puts it back; one that only was not answered says nothing of an engine that
generated meanwhile, or while our own loop stood still, and little of one on which requests run: it may have a long prompt before
it. Invariant: no engine whose model is rendered here is ready before its ids for a text were the model's own, since it was last
out, said that it is another, or broke a connection; but for kinds that cannot tokenise. One that was restarted unseen, as another
that says the same of itself, is found at the next of the comparisons that go on while it serves: at once, where anything else
tells that it was restarted.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import structlog

from engines.base import Call, EngineInfo
from gateway.errors import EngineError, EngineTimeout, GatewayError
from gateway.fleet.following import Following
from gateway.fleet.parity import Parity
from gateway.fleet.registry import Member, Registry
from gateway.fleet.standing import Problem
from gateway.upstream import Upstream

_log = structlog.get_logger("interlock.fleet")

_STOOD_STILL = 0.1  # the share of a probe's time that the loop may stand still
_SILENT_IN_A_ROW = 3  # probes without an answer that take out an engine on which requests run: it may be busy with one
_GONE_IN_A_ROW = 3  # probes that find an engine gone, until what waits for its first token goes elsewhere
_MAX_IDS_BYTES = 1 << 18  # the text has some thousands of tokens at the most
_MISMATCH = (
    "its token ids for a text are not those of the model's `source`: it serves another model or another revision of it, or its "
    "files and `source` are not of the same model"
)


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """How often a ready engine is asked, how often one that is not, how long it may take to answer, and how long its ids count as
    the model's while it is ready (seconds)."""

    ready_s: float = 2.0
    down_s: float = 0.25
    limit_s: float = 5.0
    compare_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why an engine cannot serve: the word, and the sentence and figures for the log. `silent`: it did not answer in time."""

    problem: Problem
    why: str
    figures: Mapping[str, object] = field(default_factory=dict)
    silent: bool = False

    @property
    def gone(self) -> bool:
        """Whether it cannot serve whom it has."""
        return self.problem in ("unreachable", "unhealthy")


class Prober:
    """Probes the engines of a registry, those that come later too, until its task is cancelled.

    `parity` has, by name, the models that are rendered here. `on_info` is told what an engine is, at first and when that changes.
    `stood_s` is how long the loop has stood still until now.
    """

    def __init__(
        self,
        registry: Registry,
        upstream: Upstream,
        parity: Mapping[str, Parity],
        on_info: Callable[[Member, EngineInfo], None],
        *,
        stood_s: Callable[[], float],
        times: ProbeTimes | None = None,
    ) -> None:
        self._registry = registry
        self._upstream = upstream
        self._parity = parity
        self._on_info = on_info
        self._stood_s = stood_s
        self._times = times or ProbeTimes()

    async def run(self) -> None:
        """Probes for ever, each engine at its own pace."""
        await Following(self._registry, lambda member: self._watch(member).run()).run()

    def _watch(self, member: Member) -> "_Watch":
        parity = self._parity.get(member.model)
        return _Watch(
            member,
            self._registry,
            self._upstream,
            parity=parity,
            on_info=self._on_info,
            stood_s=self._stood_s,
            times=self._times,
        )


class _Watch:
    """The probes of one engine, and what is known from the last ones."""

    def __init__(
        self,
        member: Member,
        registry: Registry,
        upstream: Upstream,
        *,
        parity: Parity | None,
        on_info: Callable[[Member, EngineInfo], None],
        stood_s: Callable[[], float],
        times: ProbeTimes,
    ) -> None:
        self._member = member
        self._registry = registry
        self._upstream = upstream
        self._parity = parity
        self._ids_call = member.engine.tokenize(parity.text, member.engine_model) if parity is not None else None
        self._on_info = on_info
        self._stood_s = stood_s
        self._times = times
        self._silent = 0  # probes without an answer, in a row
        self._gone = 0  # probes that found it unreachable or unhealthy, in a row
        self._info: EngineInfo | None = None
        self._compared_s: float | None = None  # when its ids were last the model's; None where it may be another since
        self._life = 0  # that was compared
        self._told: Problem | None = "not_probed"

    async def run(self) -> None:
        """Probes for ever."""
        if self._parity is not None and self._ids_call is None:
            engine_id, kind = self._member.id, self._member.engine.kind
            _log.warning("tokenizer not compared: this kind of engine cannot tokenise", engine=engine_id, kind=kind)
        while True:
            await self._rest(await self._probe())

    async def _rest(self, ready: bool) -> None:
        """Waits for the next probe, but no longer than until traffic finds the engine gone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.ready_s if ready else self._times.down_s):
                while self._registry.is_ready(self._member.id) == ready:
                    await self._registry.changed()

    async def _probe(self) -> bool:
        """Asks the engine once, and records the answer: whether it can serve."""
        engine_id, registry = self._member.id, self._registry
        losses, began_s, stood_s = registry.losses(engine_id), registry.now_s(), self._stood_s()
        fault = await self._fault()
        stood_still = self._stood_s() - stood_s >= self._times.limit_s * _STOOD_STILL
        self._silent = self._silent + 1 if fault is not None and fault.silent else 0
        self._gone = self._gone + 1 if fault is not None and fault.gone and not stood_still else 0
        if self._silent and registry.is_ready(engine_id):
            if registry.heard_since(engine_id, began_s):
                self._silent = self._gone = 0
                return True
            if stood_still:
                self._silent = 0
                return False
            if self._silent < _SILENT_IN_A_ROW and registry.running.count(self._member.model, engine_id):
                return False
        if fault is not None:
            registry.set_ready(engine_id, False, fault.problem)
            if self._gone >= _GONE_IN_A_ROW:
                registry.give_up(engine_id, self._times.limit_s)
        elif losses == registry.losses(engine_id):
            life = registry.life(engine_id)
            registry.set_ready(engine_id, True)
            self._life += registry.life(engine_id) - life
        else:  # traffic lost it meanwhile: what it said may be of one that is gone
            return False
        self._tell(fault)
        return fault is None

    async def _fault(self) -> _Fault | None:
        """What a probe finds wrong."""
        try:
            return await self._examine()
        except GatewayError as error:
            return _Fault("unreachable", error.message, silent=isinstance(error, EngineTimeout))
        except Exception:  # a bug of ours in one probe must not end the probing of all engines
            _log.exception("probe failed", engine=self._member.id)
            return _Fault("probe_failed", "the probe failed")

    def _tell(self, fault: _Fault | None) -> None:
        """Logs what is new."""
        problem = fault.problem if fault is not None else None
        if self._told == problem:
            return
        self._told = problem
        if fault is None:
            _log.info("engine ready", engine=self._member.id)
        else:
            _log.warning("engine not ready", engine=self._member.id, problem=problem, why=fault.why, **fault.figures)

    async def _examine(self) -> _Fault | None:
        """What is wrong with the engine, if anything is."""
        status, body = await self._get(self._member.engine.health_path)
        if status != 200:
            return _Fault("unhealthy", f"status {status}")
        another = await self._identify(body)
        if another or not self._registry.is_ready(self._member.id):
            self._compared_s = None
        return await self._compared()

    async def _identify(self, health: bytes) -> bool:
        """Reads what the engine is, each time: one that was restarted between two probes may be another. True where it is."""
        engine = self._member.engine
        bodies = []
        for path in engine.info_paths:
            status, body = (200, health) if path == engine.health_path else await self._get(path)
            bodies.append(body if status == 200 else b"")
        info = engine.info(bodies)
        if info == self._info:
            return False
        if (recorded := self._registry.set_info(self._member.id, info)) is not None:
            self._on_info(self._member, recorded)
        self._info = info
        return True

    async def _compared(self) -> _Fault | None:
        """Sees, where it is time, that the engine's ids are the model's. One that may be another is out until they have come."""
        if self._parity is None or self._ids_call is None:
            return None
        now_s = asyncio.get_running_loop().time()
        if self._compared_s is None:
            if self._registry.is_ready(self._member.id):
                self._registry.set_ready(self._member.id, False, "tokenizer_unknown")
        elif now_s - self._compared_s < self._times.compare_s and self._life == self._registry.life(self._member.id):
            return None
        life = self._registry.life(self._member.id)
        fault = await self._difference(self._parity, self._ids_call)
        if fault is None:
            self._compared_s, self._life = now_s, life
        elif not fault.silent:
            self._compared_s = None
        return fault

    async def _difference(self, parity: Parity, call: Call) -> _Fault | None:
        """Asks for the engine's ids of the model's text: what is wrong with them."""
        member = self._member
        try:
            status, body = await self._upstream.post(
                member.url(call.path), call, api_key=member.api_key, limit_s=self._times.limit_s, max_bytes=_MAX_IDS_BYTES
            )
            ids = member.engine.token_ids(body) if status == 200 else None
        except EngineError as error:
            return _Fault("tokenizer_unknown", _unknown(call.path, error.message), silent=isinstance(error, EngineTimeout))
        if not ids:  # a kind's request to an engine of another is answered with an empty list
            what = f"status {status}" if ids is None else "it gave no ids: see that `kind` is right"
            return _Fault("tokenizer_unknown", _unknown(call.path, what))
        difference = parity.difference(ids)
        return None if difference is None else _Fault("tokenizer_mismatch", _MISMATCH, asdict(difference))

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await self._upstream.get(self._member.url(path), api_key=self._member.api_key, limit_s=self._times.limit_s)


def _unknown(path: str, what: str) -> str:
    return (
        f"it did not tokenise the text that tells whether its model is this one ({what}): let `POST {path}` through to it, where "
        "something stands before it, and see that the engine's `kind`, `url` and `model` are right"
    )
