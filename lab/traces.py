"""Recorded traffic without its words: when requests came, how long they were, and which of their prefixes were equal.

Three shapes are read, told apart by their first line: Mooncake's JSON lines, our JSON lines of agents' sessions, and Azure's CSV.
A file is read line by line; what is kept of it is bounded, and what is wrong with it is told with its line.
"""

import csv
import random
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

import msgspec

from gateway.wire.jsonio import Decoder, JsonError

T = TypeVar("T")

BLOCK_TOKENS = 512  # of Mooncake's traces; agents' sessions are brought to it
MOST_REQUESTS = 2_000_000
MOST_BLOCKS = 40_000_000  # of all prompts together: about 400 MB
_MOST_LINE_BYTES = 16 << 20
_MOST_SESSIONS_BYTES = 256 << 20
_MOST_TOKENS = 1 << 31
_MOST_MS = 1e14
_MOST_THINK_S = 600.0  # who thought longer had gone away
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TURN_SHARE = 0.6  # how much of an earlier prompt a later one holds, to be a turn of the same session


class TraceError(Exception):
    """The file is no trace that can be read. Its message begins with the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a gateway knows of a request as it comes.

    `path` names its blocks of tokens from the start: equal names mean equal prefixes up to there. Tokens after the last named
    block are its own. `session` is what a client would send as its cache key.
    """

    id: int
    tokens: int
    path: tuple[int, ...]
    session: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `at_s`: when it came, in seconds from the trace's start. `after` is the id of the request of its session that
    it followed, `think_s` seconds after that one's end."""

    prompt: Prompt
    output_tokens: int
    at_s: float
    after: int | None = None
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests whose ids are their places. `paced`: its sessions say how long their users thought between two requests."""

    name: str
    requests: tuple[Request, ...]
    block_tokens: int = BLOCK_TOKENS
    paced: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """How a trace is read: at most `limit` requests. The rest is for agents' sessions, whose starts the data lacks: they are
    drawn by `seed` at `sessions_per_s`, without the sessions that grow beyond `most_input_tokens`."""

    limit: int | None = None
    seed: int = 1
    sessions_per_s: float = 0.05
    most_input_tokens: int = 180_000


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _SessionLine(msgspec.Struct):
    """`r`: seconds, tokens in and out, blocks, the request with the longest common prefix, its blocks, think, service, nested."""

    bs: int
    tool: int
    sys: int
    r: list[tuple[float, int, int, int, int, int, float, float, int]]


def read(file: Path, reading: Reading | None = None) -> Trace:
    """The trace in this file. Raises TraceError."""
    reading = reading or Reading()
    try:
        with file.open("rb") as stream:
            first = stream.readline(_MOST_LINE_BYTES)
            stream.seek(0)
            if b"ContextTokens" in first:
                requests, paced = _azure(file, stream, reading), False
            elif b'"hash_ids"' in first:
                requests, paced = _mooncake(file, stream, reading), False
            elif b'"r"' in first:
                requests, paced = _sessions(file, stream, reading), True
            else:
                raise TraceError(f"{file}:1: neither Mooncake's JSON lines, nor sessions of agents, nor Azure's CSV")
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None
    if not requests:
        raise TraceError(f"{file}: no requests")
    return Trace(file.stem, tuple(requests), paced=paced)


def multiplied(trace: Trace, copies: int) -> Trace:
    """The trace with so many times its sessions, at the same moments. No copy shares a block with another: else the cache would
    seem better the more load there is."""
    size = len(trace.requests)
    blocks = _after_last(trace, lambda prompt: max(prompt.path, default=-1))
    sessions = _after_last(trace, lambda prompt: prompt.session)
    if size * copies > MOST_REQUESTS:
        raise TraceError(f"{trace.name}: {copies} copies are more than {MOST_REQUESTS} requests")
    made = [
        Request(
            Prompt(
                each.prompt.id + copy * size,
                each.prompt.tokens,
                tuple(block + copy * blocks for block in each.prompt.path) if copy else each.prompt.path,
                each.prompt.session + copy * sessions,
            ),
            each.output_tokens,
            each.at_s,
            None if each.after is None else each.after + copy * size,
            each.think_s,
        )
        for copy in range(copies)
        for each in trace.requests
    ]
    return Trace(trace.name, tuple(made), trace.block_tokens, trace.paced)


def _after_last(trace: Trace, of: Callable[[Prompt], int]) -> int:
    return max((of(each.prompt) for each in trace.requests), default=-1) + 1


def _lines(file: Path, stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that hold something, with their numbers."""
    number = 0
    while line := stream.readline(_MOST_LINE_BYTES + 1):
        number += 1
        if len(line) > _MOST_LINE_BYTES:
            _fail(file, number, f"a line of more than {_MOST_LINE_BYTES} bytes")
        if line.strip():
            yield number, line


def _fail(file: Path, line: int, message: str) -> NoReturn:
    raise TraceError(f"{file}:{line}: {message}")


def _decoded(decoder: Decoder[T], file: Path, number: int, line: bytes) -> T:
    try:
        return decoder.decode(line)
    except JsonError as error:
        _fail(file, number, f"{error.path}: {error.message}" if error.path else error.message)


class _Room:
    """What may still be kept of a trace."""

    def __init__(self, file: Path, limit: int | None) -> None:
        self._file = file
        self._requests = MOST_REQUESTS if limit is None else min(limit, MOST_REQUESTS)
        self._hard = limit is None
        self._blocks = MOST_BLOCKS

    def full(self, line: int, taken: int) -> bool:
        """Whether there are as many requests as were wanted. Raises TraceError where the file holds more than can be kept."""
        if taken >= self._requests and self._hard:
            _fail(self._file, line, f"more than {MOST_REQUESTS} requests: read fewer, with a limit")
        return taken >= self._requests

    def take(self, line: int, blocks: int) -> None:
        """Counts a prompt's blocks."""
        self._blocks -= blocks
        if self._blocks < 0:
            _fail(self._file, line, f"prompts of more than {MOST_BLOCKS} blocks: read fewer, with a limit")


def _check_tokens(file: Path, line: int, tokens_in: int, tokens_out: int) -> None:
    if not (0 < tokens_in < _MOST_TOKENS and 0 <= tokens_out < _MOST_TOKENS):
        _fail(file, line, f"{tokens_in} tokens in and {tokens_out} out: not a request")


def _mooncake(file: Path, stream: BinaryIO, reading: Reading) -> list[Request]:
    requests: list[Request] = []
    decoder, room, sessions = Decoder(_MooncakeLine), _Room(file, reading.limit), _Sessions()
    for number, line in _lines(file, stream):
        if room.full(number, len(requests)):
            break
        row = _decoded(decoder, file, number, line)
        _check_tokens(file, number, row.input_length, row.output_length)
        blocks, fit = len(row.hash_ids), -(-row.input_length // BLOCK_TOKENS)
        if blocks > fit:
            _fail(file, number, f"hash_ids: {blocks} blocks of {BLOCK_TOKENS} for {row.input_length} tokens, which fill {fit}")
        if min(row.hash_ids, default=0) < 0 or not 0 <= row.timestamp < _MOST_MS:
            _fail(file, number, "a negative id or time")
        room.take(number, blocks)
        path = tuple(row.hash_ids)
        prompt = Prompt(len(requests), row.input_length, path, sessions.of(path))
        requests.append(Request(prompt, max(row.output_length, 1), row.timestamp / 1000))
    return requests


class _Sessions:
    """Which session a prompt is a turn of, where the data does not say: that of the prompt of which it begins with the most."""

    def __init__(self) -> None:
        self._owner: dict[
            int, tuple[int, int]
        ] = {}  # of a block: the session that last held it as its own, and that prompt's blocks
        self._count = 0

    def of(self, path: tuple[int, ...]) -> int:
        known = shared(path, self._owner)
        session, length = self._owner[path[known - 1]] if known else (-1, 0)
        if known < 2 or known < _TURN_SHARE * length:
            session = self._count
            self._count += 1
        for block in path[known:] or path[-1:]:
            self._owner[block] = (session, len(path))
        return session


def shared(path: Sequence[int], held: Container[int]) -> int:
    """How many of a path's blocks, from the start, are held, by what holds no block without those before it."""
    low, high = 0, len(path)
    while low < high:
        middle = (low + high + 1) >> 1
        if path[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low


def _azure(file: Path, stream: BinaryIO, reading: Reading) -> list[Request]:
    requests: list[Request] = []
    room, start = _Room(file, reading.limit), None
    for number, line in _lines(file, stream):
        if number > 1 and room.full(number, len(requests)):
            break
        try:
            (row,) = csv.reader([line.decode()])
        except (UnicodeDecodeError, ValueError, csv.Error):
            _fail(file, number, "not a line of CSV")
        if number == 1:
            if tuple(row) != _AZURE:
                _fail(file, 1, f"the columns are {', '.join(row)}, not {', '.join(_AZURE)}")
            continue
        try:
            moment, tokens_in, tokens_out = datetime.fromisoformat(row[0]).replace(tzinfo=None), int(row[1]), int(row[2])
        except (ValueError, IndexError):
            _fail(file, number, "not a time and two counts of tokens")
        _check_tokens(file, number, tokens_in, tokens_out)
        start = start or moment
        prompt = Prompt(len(requests), tokens_in, (), len(requests))
        requests.append(Request(prompt, max(tokens_out, 1), (moment - start).total_seconds()))
        if requests[-1].at_s < 0:
            _fail(file, number, "a time before the first")
    return requests


def _sessions(file: Path, stream: BinaryIO, reading: Reading) -> list[Request]:
    lines, size = [], 0
    for number, line in _lines(file, stream):
        lines.append((number, line))
        size += len(line)
        if size > _MOST_SESSIONS_BYTES:
            _fail(file, number, f"sessions of more than {_MOST_SESSIONS_BYTES} bytes")
    rng = random.Random(reading.seed)  # noqa: S311  repeatable, not secret
    rng.shuffle(lines)
    requests: list[Request] = []
    decoder, room, names = Decoder(_SessionLine), _Room(file, reading.limit), _Names()
    start_s, session = 0.0, 0
    for number, line in lines:
        row = _decoded(decoder, file, number, line)
        if max((each[1] for each in row.r), default=0) > reading.most_input_tokens:
            continue
        if room.full(number, len(requests)):
            break
        start_s += rng.expovariate(reading.sessions_per_s)
        room.take(number, sum(each[3] * row.bs // BLOCK_TOKENS for each in row.r))
        requests.extend(_turns(file, number, row, names, Request(Prompt(len(requests), 1, (), session), 1, start_s)))
        session += 1
    return requests[: reading.limit]


class _Names:
    """Names of blocks. Sessions with the same sizes of tools and system prompt are taken to share these: the data names blocks
    within a session only."""

    def __init__(self) -> None:
        self._next = 0
        self._heads: dict[tuple[int, int], tuple[int, ...]] = {}

    def new(self, count: int) -> tuple[int, ...]:
        """So many that nobody has."""
        self._next += count
        return tuple(range(self._next - count, self._next))

    def head(self, tools: int, system: int) -> tuple[int, ...]:
        """The blocks of the tools and the system prompt of these sizes."""
        if (tools, system) not in self._heads:
            self._heads[tools, system] = self.new((tools + system) // BLOCK_TOKENS)
        return self._heads[tools, system]


def _turns(file: Path, line: int, row: _SessionLine, names: _Names, first: Request) -> Iterator[Request]:
    """The requests of one session; `first` holds its first id, its number and its start."""
    if row.bs < 1 or BLOCK_TOKENS % row.bs or min(row.tool, row.sys) < 0 or max(row.tool, row.sys) > _MOST_TOKENS:
        _fail(file, line, f"blocks of {row.bs} tokens, {row.tool} of tools, {row.sys} of system prompt")
    scale, paths = BLOCK_TOKENS // row.bs, list[tuple[int, ...]]()
    for place, (at_s, tokens_in, tokens_out, blocks, like, kept, think_s, _, _) in enumerate(row.r):
        _check_tokens(file, line, tokens_in, tokens_out)
        if not (-1 <= like < place and kept >= 0 and 0 <= blocks * row.bs <= tokens_in + row.bs and at_s >= 0):
            _fail(file, line, f"r[{place}]: {blocks} blocks, {kept} of them from request {like}, at {at_s} s")
        wanted = min(blocks * row.bs, tokens_in) // BLOCK_TOKENS
        known = names.head(row.tool, row.sys)[:wanted] if like < 0 else paths[like][: min(kept // scale, wanted)]
        paths.append(known + names.new(wanted - len(known)))
        yield Request(
            Prompt(first.prompt.id + place, max(tokens_in, 2), paths[-1], first.prompt.session),
            max(tokens_out, 1),
            first.at_s + at_s,
            first.prompt.id + place - 1 if place else None,
            min(max(think_s, 0.0), _MOST_THINK_S),
        )
