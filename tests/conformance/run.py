"""`make conformance`: every case of the suite `canitoolcall`, by text and by ids, in every chunking. `python -m conformance.run`.

Exit code 1 if a case fails that is not among the argued ones.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from canitoolcall.checks import case_status, run_checks
from canitoolcall.fixtures import Family, Fixture, load_families, load_fixtures
from canitoolcall.results import CheckResult, Status

from conformance.replay import format_name, observations
from gateway.formats.base import Format
from gateway.formats.registry import load


def failing(fixture: Fixture, family: Family, form: Format) -> list[tuple[str, CheckResult]]:
    """The rows that are not a strict pass, each with the mode."""
    rows = []
    for mode, observation in observations(fixture, family, form):
        found = run_checks(fixture, family, observation)
        if case_status(found) is not Status.PASS or any(row.status is not Status.PASS for row in found):
            rows += [(mode, row) for row in found if row.status is not Status.PASS]
    return rows


def main() -> int:
    """Prints a line a family and, with `--show`, each fault."""
    options = argparse.ArgumentParser()
    options.add_argument("--show", default="", help="show the faults of the cases whose id contains this")
    show = options.parse_args().show
    formats, families = load(), load_families()
    passed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for fixture in load_fixtures():
        family = families[fixture.family]
        total[fixture.family] += 1
        form = formats.get(format_name(fixture, family))
        faults = failing(fixture, family, form) if form is not None else None
        passed[fixture.family] += faults == []
        if faults and show and show in fixture.id:
            _show(fixture, faults)
    for family_name, count in sorted(total.items()):
        print(f"{family_name:14} {passed[family_name]:4} of {count}")
    print(f"{'all':14} {passed.total():4} of {total.total()}")
    return 0 if passed == total else 1


def _show(fixture: Fixture, faults: Sequence[tuple[str, CheckResult]]) -> None:
    print(f"\n{fixture.id} {fixture.tags}\n  raw: {fixture.raw_output!r}\n  wanted: {fixture.expected or fixture.expected_error}")
    if fixture.notes:
        print(f"  notes: {fixture.notes[:600]}")
    for mode, row in faults[:3]:
        print(f"  {mode} {row.check} {row.strategy}: {row.detail}")


if __name__ == "__main__":
    sys.exit(main())
