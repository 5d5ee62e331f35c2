"""Fixtures that tests of several packages share."""

import pytest
from hypothesis import settings
from support.llamacpp import local_engine
from support.vllm import vllm

__all__ = ["local_engine", "vllm"]

# An example may take its time: what runs beside it makes none fail.
settings.register_profile("no clock", parent=settings.default, deadline=None)
settings.load_profile("no clock")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests were skipped even where none was; `-ra` lists each with its reason."""
    terminalreporter.write_line(f"skipped: {len(terminalreporter.stats.get('skipped', []))}")
