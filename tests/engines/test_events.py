"""Events as values: any bytes give valid UTF-8, and valid ones themselves."""

import pytest

from engines.events import mended, read
from gateway.errors import EngineBroke
from gateway.wire.jsonio import Decoder


@pytest.mark.parametrize("data", [b"", b"plain", "é🦙".encode()])
def test_utf8_stays_as_it_is(data: bytes) -> None:
    assert mended(data) is data


@pytest.mark.parametrize(
    ("data", "meant"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xc3", "\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
    ],
)
def test_what_is_not_utf8_is_replaced(data: bytes, meant: str) -> None:
    assert mended(data) == meant.encode()


def test_what_is_not_the_protocols_is_a_broken_engine() -> None:
    decoder = Decoder(dict[str, int])
    assert read(decoder, b'{"a":1}') == {"a": 1}
    with pytest.raises(EngineBroke, match="not what its protocol says"):
        read(decoder, b'{"a":"x"}')
