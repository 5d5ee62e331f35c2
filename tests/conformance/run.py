"""`make conformance`: every case of the suite `canitoolcall`, by text and by ids, in every chunking. `python -m conformance.run`.

Exit code 1 if a case fails that is not in argued.yaml, or passes although it is.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml
from canitoolcall.checks import case_status, run_checks
from canitoolcall.fixtures import Family, Fixture, load_families, load_fixtures
from canitoolcall.results import CheckResult, Status
from conformance.replay import format_name, observations

from gateway.formats.base import Format
from gateway.formats.registry import load

ARGUED = Path(__file__).with_name("argued.yaml")


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
    formats, families, argued = load(), load_families(), argued_cases()
    passed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    wrong: list[str] = []
    for fixture in load_fixtures():
        family = families[fixture.family]
        total[fixture.family] += 1
        faults = failing(fixture, family, formats[format_name(fixture, family)])
        passed[fixture.family] += not faults
        if bool(faults) != (fixture.id in argued):
            wrong.append(fixture.id)
        if faults and show and show in fixture.id:
            _show(fixture, faults)
    for family_name, count in sorted(total.items()):
        print(f"{family_name:14} {passed[family_name]:4} of {count}")
    print(f"{'all':14} {passed.total():4} of {total.total()}; {len(argued)} are argued in argued.yaml")
    for case in wrong:
        print(f"not as argued.yaml says: {case}")
    return 1 if wrong else 0


def argued_cases() -> frozenset[str]:
    """The cases that we answer otherwise."""
    listed = yaml.safe_load(ARGUED.read_text(encoding="utf-8"))
    return frozenset((*listed["policy"], *listed["argued"]))


def _show(fixture: Fixture, faults: Sequence[tuple[str, CheckResult]]) -> None:
    print(f"\n{fixture.id} {fixture.tags}\n  raw: {fixture.raw_output!r}\n  wanted: {fixture.expected or fixture.expected_error}")
    if fixture.notes:
        print(f"  notes: {fixture.notes[:600]}")
    for mode, row in faults[:3]:
        print(f"  {mode} {row.check} {row.strategy}: {row.detail}")


if __name__ == "__main__":
    sys.exit(main())
