"""The programs of `make services`."""

import os
import shutil
from pathlib import Path

import pytest

UNPACKED = Path(__file__).parents[2] / ".cache/services/usr"  # where they are put without root


def program(name: str) -> str:
    """Debian's, or one unpacked. In CI its absence is a failure, elsewhere a skip that says what to do."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), str(UNPACKED / "bin")]))
    if found is None:
        text = f"{name} is not installed: run `make services`"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    return found
