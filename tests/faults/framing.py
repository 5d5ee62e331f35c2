"""The same event in every way in which server-sent events may be written, and cut into pieces."""

from collections.abc import Callable, Mapping
from itertools import pairwise

_BOM = b"\xef\xbb\xbf"
_KEEPALIVE = b": keep-alive\n\n"
_FIELDS = b"event: message\nid: 7\nretry: 100\n"
_UNKNOWN = b"colour: blue\nnocolon\n"


def framed(data: bytes, style: str, *, first: bool) -> list[bytes]:
    """The pieces of one event. A style that is none of these leaves it plain and whole; `first`: nothing came before."""
    written = _plain(data)
    if style in _WRITTEN:
        written = _WRITTEN[style](data)
    if style == "bom" and first:
        written = _BOM + written
    return _CUT[style](written) if style in _CUT else [written]


def _plain(data: bytes) -> bytes:
    return b"data: %s\n\n" % data


def _over_lines(data: bytes) -> bytes:
    """JSON may have a line end after its first bracket."""
    return b"data: {\ndata: %s\n\n" % data[1:] if data.startswith(b"{") else _plain(data)


def _inside_characters(written: bytes) -> list[bytes]:
    """Cuts before each byte that goes on with a character."""
    cuts = [at for at, byte in enumerate(written) if byte & 0xC0 == 0x80]
    return [written[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(written)], strict=True) if begin < end]


def _inside_lines(written: bytes) -> list[bytes]:
    """Cuts in `data`, in the JSON, and between the two line ends."""
    cuts = [0, 3, len(written) // 2, len(written) - 1, len(written)]
    return [written[begin:end] for begin, end in pairwise(cuts) if begin < end]


def _bytes(written: bytes) -> list[bytes]:
    return [written[at : at + 1] for at in range(len(written))]


_WRITTEN: Mapping[str, Callable[[bytes], bytes]] = {
    "crlf": lambda data: _plain(data).replace(b"\n", b"\r\n"),
    "cr": lambda data: _plain(data).replace(b"\n", b"\r"),
    "keepalive": lambda data: _KEEPALIVE + _plain(data) + _KEEPALIVE,
    "no_space": lambda data: b"data:%s\n\n" % data,
    "multi_data": _over_lines,
    "event_fields": lambda data: _FIELDS + _plain(data),
    "unknown_field": lambda data: _UNKNOWN + _plain(data),
}
_CUT: Mapping[str, Callable[[bytes], list[bytes]]] = {
    "split_utf8": _inside_characters,
    "split_lines": _inside_lines,
    "trickle": _bytes,
}
