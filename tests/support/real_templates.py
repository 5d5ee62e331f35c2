"""Chat templates of real models, which are not part of the project: without them, what needs them is skipped."""

from pathlib import Path

import pytest

REAL_TEMPLATES = Path(__file__).parents[3] / "shared" / "templates"
REAL_FILES = sorted(REAL_TEMPLATES.glob("*.jinja"))

needs_real = pytest.mark.skipif(not REAL_TEMPLATES.is_dir(), reason=f"the real templates are not here ({REAL_TEMPLATES})")


def real_template(name: str) -> str:
    """A real template's source; the test is skipped where it is not here."""
    file = REAL_TEMPLATES / f"{name}.jinja"
    if not file.exists():
        pytest.skip(f"the real template is not here ({file})")
    return file.read_text(encoding="utf-8")
