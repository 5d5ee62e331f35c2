"""Templates that would take for ever, or all memory: each is refused, within 300 MB. They run in a process of their own."""

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from support.bombs import FAULTY, HARMLESS, STOPPED, UNCOMPILED, confine, outcome

from gateway.prompt.budget import Limits

MOST_BYTES = 300_000_000


@pytest.fixture(scope="module")
def confined() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=confine) as executor:
        yield executor


@pytest.mark.parametrize("name", STOPPED)
def test_what_would_not_end_is_stopped(confined: Executor, name: str) -> None:
    kind, said, memory_bytes = confined.submit(outcome, STOPPED[name]).result()
    assert kind == "BadRequest"
    assert said.startswith("The model's chat template was stopped: ")
    assert "there is" not in said  # it was foreseen
    assert memory_bytes < MOST_BYTES


@pytest.mark.parametrize("name", FAULTY)
def test_what_chat_templates_do_not_do_is_refused(confined: Executor, name: str) -> None:
    kind, said, memory_bytes = confined.submit(outcome, FAULTY[name]).result()
    assert kind == "BadRequest"
    assert said.startswith("The model's chat template cannot render this: ")
    assert memory_bytes < MOST_BYTES


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_so_is_rendered(confined: Executor, name: str) -> None:
    kind, said, memory_bytes = confined.submit(outcome, HARMLESS[name]).result()
    assert (kind, said) == ("", "")
    assert memory_bytes < MOST_BYTES


@pytest.mark.parametrize("name", UNCOMPILED)
def test_what_takes_too_long_to_compile_is_a_fault_of_the_model(confined: Executor, name: str) -> None:
    kind, said, memory_bytes = confined.submit(outcome, UNCOMPILED[name]).result()
    assert kind == "ModelFileError"
    assert said.startswith("The model's chat template ")
    assert memory_bytes < MOST_BYTES


def test_memory_that_is_not_there_is_a_refusal_too(confined: Executor) -> None:
    limits = Limits(value_bytes=1 << 40, made_bytes=1 << 40, steps=1 << 40)
    kind, said, _ = confined.submit(outcome, "{{ 'a' * 4000000000 }}", limits).result()
    assert kind == "BadRequest"
    assert "was stopped: it needs more memory than there is" in said
