"""The vLLM that the tests of a run share."""

from collections.abc import Iterator

import pytest
from support.vllm import VllmUnderTest, running_vllm


@pytest.fixture(scope="session")
def vllm() -> Iterator[VllmUnderTest]:
    """Leave it as you found it; its prefix cache is as earlier tests have left it."""
    with running_vllm() as engine:
        yield engine
