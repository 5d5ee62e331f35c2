"""The table of kinds, and what holds for an engine of any kind."""

from types import SimpleNamespace

import pytest

from engines.base import Work
from engines.registry import _table, known, make
from gateway.errors import EngineError
from gateway.request import GenerateRequest
from gateway.wire.jsonio import decode
from gateway.wire.sse import SseEvent

WORK = Work(request=GenerateRequest("m", (), body=b'{"messages":[]}'), ids=(1, 2), max_tokens=8, model="m")


def test_the_kinds_that_settings_name_are_known() -> None:
    assert {"llamacpp", "openai", "vllm"} <= set(known())


def test_a_kind_that_is_not_known_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        make("none")


def test_two_adapters_of_one_kind_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = SimpleNamespace(ENGINE=SimpleNamespace(kind="twin"))
    monkeypatch.setattr("importlib.import_module", lambda _: twin)
    with pytest.raises(RuntimeError, match="two engine adapters are of kind 'twin'"):
        _table()


@pytest.mark.parametrize("kind", known())
def test_every_engine_is_made_fresh_and_asks_for_a_stream(kind: str) -> None:
    engine = make(kind)
    assert engine is not make(kind)
    assert engine.kind == kind
    call = engine.call(WORK)
    assert call.path.startswith("/")
    assert decode(call.body)["stream"] is True
    assert engine.health_path.startswith("/")


@pytest.mark.parametrize("kind", known())
@pytest.mark.parametrize("data", [b"", b"nonsense", b"[]", b"5", b'{"error":{}}', b'{"choices":5,"content":5,"text":5}'])
def test_every_reader_calls_nonsense_broken(kind: str, data: bytes) -> None:
    reader = make(kind).reader(WORK)
    assert reader.done is False
    with pytest.raises(EngineError):
        reader.chunk(SseEvent(data))
    assert reader.done is False


@pytest.mark.parametrize("kind", known())
@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b"{}", b'{"data":5,"build_info":5}'])
def test_every_engine_survives_answers_that_mean_nothing(kind: str, body: bytes) -> None:
    engine = make(kind)
    assert engine.info([body] * len(engine.info_paths)) == engine.info([])
    assert engine.error(500, body).status == 502
