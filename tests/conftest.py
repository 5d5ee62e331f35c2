"""Fixtures that tests of several packages share."""

import pytest
from support.llamacpp import local_engine
from support.vllm import vllm

__all__ = ["local_engine", "vllm"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests were skipped even where none was; `-ra` lists each with its reason."""
    terminalreporter.write_line(f"skipped: {len(terminalreporter.stats.get('skipped', []))}")
