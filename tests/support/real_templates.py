"""Chat templates of real models, which are not part of the project: without them, what needs them is skipped.

It counts for no coverage, which must hold without them, and costs half as much so.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REAL_TEMPLATES = Path(__file__).parents[3] / "shared" / "templates"
REAL_FILES = sorted(REAL_TEMPLATES.glob("*.jinja"))
REAL = [pytest.param(file, marks=pytest.mark.no_cover) for file in REAL_FILES]

_SKIPPED = pytest.mark.skipif(not REAL_TEMPLATES.is_dir(), reason=f"the real templates are not here ({REAL_TEMPLATES})")


def needs_real(test: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a test that needs them all."""
    marked: Callable[..., Any] = pytest.mark.no_cover(_SKIPPED(test))
    return marked


def real_template(name: str) -> str:
    """A real template's source; the test is skipped where it is not here."""
    file = REAL_TEMPLATES / f"{name}.jinja"
    if not file.exists():
        pytest.skip(f"the real template is not here ({file})")
    return file.read_text(encoding="utf-8")
