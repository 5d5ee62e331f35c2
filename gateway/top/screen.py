"""A view in a terminal: what is wrong first, then models, engines and failures.

Invariant: nothing is taller or wider than the terminal, but for a list that is printed once; the worst rows are those that stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.top.rows import SERVING, EngineRow, FailureRow, ModelRow, ParseFailureRow
from gateway.top.view import View
from gateway.top.wording import UNKNOWN, count, rate, seconds, share, text

Row = TypeVar("Row")
_RED, _YELLOW, _GREEN, _DIM = "bold red", "yellow", "green", "dim"
_NAME_CHARS = 40
_GAP = 2  # between columns
_WAITS_S = 1.0  # in the queue: longer is marked


@dataclass(frozen=True, slots=True)
class Frame:
    """What is around a view: whose it is, what time it is, why there is none newer (empty: there is), and the size of the
    terminal, its height None where the list is printed once."""

    url: str
    clock: str
    width: int
    height: int | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class _Column(Generic[Row]):
    """`of` gives the text and its style. Where a terminal is too narrow the column with the largest `goes` goes first; 0: it
    stays."""

    title: str
    of: Callable[[Row], tuple[str, str]]
    goes: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True)
class _List(Generic[Row]):
    title: str
    columns: Sequence[_Column[Row]]
    rows: Sequence[Row]

    def table(self, most: int, width: int) -> Table:
        """The first rows, with how many more there are, in columns that fit."""
        more = len(self.rows) - most
        title = f"{self.title}{f' (and {more} more)' if more > 0 else ''}"
        cells = [[column.of(row) for row in self.rows[:most]] for column in self.columns]
        names = [column.title if at else title for at, column in enumerate(self.columns)]
        widths = [max(map(cell_len, (name, *(text for text, _ in each)))) for name, each in zip(names, cells, strict=True)]
        shown = _fitting([column.goes for column in self.columns], widths, width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="dim bold", pad_edge=False)
        for at in shown:
            table.add_column(names[at], justify="left" if self.columns[at].left else "right", no_wrap=True, overflow="ellipsis")
        for row in zip(*(cells[at] for at in shown), strict=True):
            table.add_row(*(Text(*cell) for cell in row))
        return table


def _fitting(goes: Sequence[int], widths: Sequence[int], width: int) -> list[int]:
    """Which columns are shown."""
    shown = list(range(len(widths)))
    while sum(widths[at] + _GAP for at in shown) - _GAP > width:
        first = max(shown, key=lambda at: (goes[at], at))
        if not goes[first]:
            break
        shown.remove(first)
    return shown


def screen(view: View | None, frame: Frame) -> RenderableType:
    """The whole of it. Without a view it says what it waits for."""
    if view is None:
        waits = Text(text(frame.lost) if frame.lost else "waiting for the first scrape", _RED if frame.lost else _DIM)
        return Group(_head(None, frame), Text(""), _one_line(waits))
    parts: list[RenderableType] = [_head(view, frame), _gateway(view), *_wrong(view, frame)]
    lists = [each for each in _lists(view) if each.rows]
    sizes = [len(each.rows) for each in lists]
    if frame.height is not None:
        sizes = rooms(sizes, frame.height - len(parts))
    for each, most in zip(lists, sizes, strict=False):
        parts += [Text(""), each.table(most, frame.width)]
    return Group(*parts)


def rooms(sizes: Sequence[int], lines: int) -> list[int]:
    """How many rows of each list are shown in so many lines: one by one in turn, beside the two lines that each begins with.
    The last lists are left out where not even a row of each has room."""
    shown = [*sizes]
    while shown and 3 * len(shown) > lines:
        shown.pop()
    given, left = [0] * len(shown), lines - 2 * len(shown)
    while left > 0 and given != shown:
        for at, size in enumerate(shown):
            if given[at] < size and left > 0:
                given[at] += 1
                left -= 1
    return given


def _lists(view: View) -> list[_List[Any]]:
    return [
        _List("model", _MODELS, sorted(view.models, key=_badness_of_model)),
        _List("engine", _ENGINES, sorted(view.engines, key=_badness_of_engine)),
        _List("fault in the output", _PARSE, view.parse_failures),
        _List("request not ok", _FAILURES, view.failures),
    ]


def _head(view: View | None, frame: Frame) -> Text:
    version = f" {text(view.gateway.version)}" if view is not None and view.gateway.version else ""
    line = Text.assemble(
        ("interlock top", "bold"), (version, _DIM), ("  ", ""), (text(frame.url), "cyan"), (f"  {frame.clock}", _DIM)
    )
    if view is not None and view.window_s is not None:
        line.append(f"  of the last {view.window_s:.0f} s", _DIM)
    if frame.height is not None:
        line.append("  q quits", _DIM)
    return _one_line(line)


def _gateway(view: View) -> Text:
    gateway = view.gateway
    if view.window_s is None:
        why = "the gateway was started again: " if view.restarted else ""
        known = f"{count(gateway.running)} running, {count(gateway.waiting)} waiting; "
        return _one_line(Text(f"{known}{why}rates and times come with the second scrape", _YELLOW))
    parts = [
        (rate(gateway.requests_per_s), "requests/s"),
        (rate(gateway.output_tokens_per_s), "tokens/s"),
        (count(gateway.running), "running"),
        (count(gateway.waiting), "waiting"),
        (f"{seconds(gateway.ttft_p50_s)} / {seconds(gateway.ttft_p95_s)}", "TTFT p50 / p95"),
        (share(gateway.failed_share), "fail"),
    ]
    line = Text()
    for value, name in parts:
        line.append(value, "bold").append(f" {name}   ", _DIM)
    return _one_line(line)


def _wrong(view: View, frame: Frame) -> list[Text]:
    """What is wrong, in so many lines as a third of the terminal has."""
    lines = [Text("")]
    if frame.lost:
        lines.append(_one_line(Text(f"✗ {text(frame.lost)}", _RED)))
    if view.restarted and view.window_s is not None:
        lines.append(_one_line(Text("! the gateway was started again", _YELLOW)))
    most = len(view.troubles) if frame.height is None else max(3, frame.height // 3)
    for trouble in view.troubles[:most]:
        critical = trouble.severity == "critical"
        where = " ".join(text(each, _NAME_CHARS) for each in (trouble.model, trouble.engine) if each is not None)
        style = _RED if critical else _YELLOW
        lines.append(
            _one_line(
                Text.assemble(
                    ("✗ " if critical else "! ", style), (where or "the gateway", f"{style}"), f"  {text(trouble.what)}"
                )
            )
        )
    if len(view.troubles) > most:
        lines.append(Text(f"  and {len(view.troubles) - most} more", _DIM))
    if len(lines) == 1 and view.window_s is not None:
        lines.append(Text("✓ nothing is wrong", _GREEN))
    return lines


def _one_line(line: Text) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _plain(of: Callable[[Row], str]) -> Callable[[Row], tuple[str, str]]:
    """Dimmed where it is not known."""

    def told(row: Row) -> tuple[str, str]:
        words = of(row)
        return words, _DIM if words == UNKNOWN else ""

    return told


def _marked(of: Callable[[Row], str], bad: Callable[[Row], bool], style: str = _RED) -> Callable[[Row], tuple[str, str]]:
    def told(row: Row) -> tuple[str, str]:
        words, plain = _plain(of)(row)
        return words, style if bad(row) else plain

    return told


def _badness_of_model(row: ModelRow) -> tuple[bool, float, str]:
    return row.engines_up > 0 and not row.checks_failed, -(row.failed_share or 0), row.model


def _badness_of_engine(row: EngineRow) -> tuple[bool, float, str, str]:
    return row.state == "up", -(row.failed_share or 0), row.model, row.engine


def _state_style(row: EngineRow) -> tuple[str, str]:
    return row.state, _GREEN if row.state == "up" else _YELLOW if row.state in SERVING else _RED


def _says(row: EngineRow) -> str:
    """What the engine says of itself: running, and waiting there."""
    if row.engine_running is None and row.engine_waiting is None:
        return UNKNOWN
    return f"{count(row.engine_running)}+{count(row.engine_waiting)}"


_MODELS: Sequence[_Column[ModelRow]] = (
    _Column("model", _marked(lambda r: text(r.model, _NAME_CHARS), lambda r: not r.engines_up), left=True),
    _Column("up", _marked(lambda r: f"{r.engines_up}/{r.engines}", lambda r: r.engines_up < r.engines)),
    _Column("req/s", _plain(lambda r: rate(r.requests_per_s))),
    _Column("fail", _marked(lambda r: share(r.failed_share), lambda r: bool(r.failed))),
    _Column("running", _plain(lambda r: count(r.running)), 2),
    _Column("waiting", _marked(lambda r: count(r.waiting), lambda r: bool(r.waiting), _YELLOW), 1),
    _Column(
        "wait p95", _marked(lambda r: seconds(r.queue_wait_p95_s), lambda r: (r.queue_wait_p95_s or 0) > _WAITS_S, _YELLOW), 3
    ),
    _Column("TTFT p50", _plain(lambda r: seconds(r.ttft_p50_s))),
    _Column("p95", _plain(lambda r: seconds(r.ttft_p95_s))),
    _Column("per token", _plain(lambda r: seconds(r.inter_token_p50_s)), 7),
    _Column("tokens/s", _plain(lambda r: rate(r.output_tokens_per_s)), 5),
    _Column("cached", _plain(lambda r: share(r.cached_share)), 6),
    _Column("faults", _marked(lambda r: count(r.parse_failures), lambda r: bool(r.parse_failures), _YELLOW), 2),
)
_ENGINES: Sequence[_Column[EngineRow]] = (
    _Column("engine", _marked(lambda r: text(r.engine, _NAME_CHARS), lambda r: r.state not in SERVING), left=True),
    _Column("model", _plain(lambda r: text(r.model, _NAME_CHARS)), 4, left=True),
    _Column("state", _state_style, left=True),
    _Column("running", _plain(lambda r: count(r.running))),
    _Column("it says", _plain(_says), 3),
    _Column("KV", _marked(lambda r: share(r.kv_usage), lambda r: (r.kv_usage or 0) > 0.95, _YELLOW), 1),
    _Column("req/s", _plain(lambda r: rate(r.requests_per_s)), 2),
    _Column("fail", _marked(lambda r: share(r.failed_share), lambda r: bool(r.failed), _YELLOW)),
    _Column("TTFT p50", _plain(lambda r: seconds(r.ttft_p50_s)), 1),
    _Column("p95", _plain(lambda r: seconds(r.ttft_p95_s)), 1),
    _Column("tokens/s", _plain(lambda r: rate(r.output_tokens_per_s)), 5),
    _Column("cached", _plain(lambda r: share(r.cached_share)), 6),
    _Column("restarts", _marked(lambda r: count(r.restarts), lambda r: bool(r.restarts), _YELLOW), 8),
    _Column("is", _plain(lambda r: text(" ".join(filter(None, (r.kind, r.version))), 24)), 9, left=True),
)
_PARSE: Sequence[_Column[ParseFailureRow]] = (
    _Column("kind", _plain(lambda r: text(r.kind)), left=True),
    _Column("model", _plain(lambda r: text(r.model, _NAME_CHARS)), left=True),
    _Column("engine", _plain(lambda r: text(r.engine, _NAME_CHARS)), 1, left=True),
    _Column("format", _plain(lambda r: text(r.format)), 2, left=True),
    _Column("of late", _marked(lambda r: count(r.recent), lambda r: bool(r.recent), _YELLOW)),
    _Column("in all", _plain(lambda r: count(r.total))),
)
_FAILURES: Sequence[_Column[FailureRow]] = (
    _Column("reason", _plain(lambda r: text(r.reason)), left=True),
    _Column("outcome", _plain(lambda r: text(r.outcome)), left=True),
    _Column("model", _plain(lambda r: text(r.model, _NAME_CHARS)), left=True),
    _Column("of late", _plain(lambda r: count(r.recent))),
    _Column("in all", _plain(lambda r: count(r.total))),
)
