"""What checks came to: as text for a terminal, as JSON, and as JUnit XML.

Invariant: any case makes text that a terminal can show, and JSON and XML that a parser reads: characters that have no place
there become U+FFFD.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree as Xml

from gateway.checks.base import CHECKS, Case, Figures, Report, grammar_taxes
from gateway.prompt.profile import CheckName, Verdict
from gateway.wire import jsonio

VERSION = 1
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HALF = re.compile("[\ud800-\udfff]")
_NOT_SHOWN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_COUNTED = (("failures", "failed"), ("skipped", "skipped"))


def report_text(report: Report) -> Iterator[str]:
    """A line a test, and the cases that did not pass with what was seen and what to do."""
    against = [name for name in (report.reference, report.engine) if name is not None]
    yield _plain(" ".join([report.model, f"(against {', '.join(against)})" if against else "(without a reference)"]))
    for test, verdict in report.checked().tests.items():
        yield f"  {test:<10} {'passed' if verdict.passed else 'FAILED'}  {_counted(verdict)}"
        for case in _of(report, test):
            yield from _case_text(case)
    for each in report.figures:
        yield _plain(f"  {each.engine}, {each.mode} calls: {_measured(each)}")
    for engine, tax in grammar_taxes(report.figures).items():
        yield _plain(f"  {engine}: a token takes {tax:.2f} times as long under a grammar")


def _measured(each: Figures) -> str:
    rate, spent = each.failed, f"{each.s_per_token * 1000:.0f} ms a token" if each.s_per_token is not None else "no token"
    return (
        f"{each.called} answers of {each.asked} call, {rate.hits} of these cannot be read or do not fit their schema "
        f"(95 %: {rate.low:.0%} to {rate.high:.0%}); {spent}"
    )


def _counted(verdict: Verdict) -> str:
    cases = f"{verdict.cases} case{'' if verdict.cases == 1 else 's'}"
    apart = [f"{len(names)} {word}" for word, names in (("failed", verdict.failed), ("not run", verdict.skipped)) if names]
    return ", ".join([cases, *apart])


def _case_text(case: Case) -> Iterator[str]:
    if case.status == "passed":
        return
    yield _plain(f"    {case.name}{' (not run)' if case.status == 'skipped' else ''}: {case.diagnosis}")
    if case.fix:
        yield _plain(f"      fix: {case.fix}")


def report_json(reports: Sequence[Report]) -> str:
    """All reports as one JSON object; docs/ci.md says its shape."""
    text = jsonio.dumps({"interlock_check": VERSION, "models": [_values(report) for report in reports]}, indent=2)
    return _HALF.sub("\ufffd", text)


def _values(report: Report) -> dict[str, Any]:
    tests = report.checked().tests
    return {
        "model": report.model,
        "at": report.at,
        "interlock": report.interlock,
        "reference": report.reference,
        "engine": report.engine,
        "passed": report.passed,
        "tests": {name: _verdict(verdict) for name, verdict in tests.items()},
        "cases": [
            {"test": case.test, "name": case.name, "status": case.status, "diagnosis": case.diagnosis, "fix": case.fix}
            for case in report.cases
        ],
        "live": [_figures(each) for each in report.figures],
        "grammar_tax": {**grammar_taxes(report.figures)},
    }


def _figures(each: Figures) -> dict[str, Any]:
    return {
        "engine": each.engine,
        "mode": each.mode,
        "asked": each.asked,
        "called": each.called,
        "failed": each.failed.hits,
        "failed_low": each.failed.low,
        "failed_high": each.failed.high,
        "s_per_token": each.s_per_token,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {"passed": verdict.passed, "cases": verdict.cases, "failed": [*verdict.failed], "skipped": [*verdict.skipped]}


def report_junit(reports: Sequence[Report]) -> str:
    """All reports as JUnit XML: a suite for each test of each model."""
    suites = [_suite(report, test) for report in reports for test in CHECKS]
    root = Xml.Element("testsuites", {"name": "interlock check", **_totals([case for each in reports for case in each.cases])})
    root.extend(suites)
    Xml.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{Xml.tostring(root, encoding="unicode")}\n'


def _suite(report: Report, test: CheckName) -> Xml.Element:
    cases, at = _of(report, test), report.at.partition("+")[0].removesuffix("Z")
    name = _xml(f"{report.model}.{test}")
    suite = Xml.Element("testsuite", {"name": name, "timestamp": at, "hostname": "localhost", **_totals(cases)})
    properties = Xml.SubElement(suite, "properties")
    known = {"model": report.model, "interlock": report.interlock, "reference": report.reference, "engine": report.engine}
    for key, value in known.items():
        if value is not None:
            Xml.SubElement(properties, "property", name=key, value=_xml(value))
    for case in cases:
        element = Xml.SubElement(suite, "testcase", classname=name, name=_xml(case.name), time="0")
        if case.status == "failed":
            failure = Xml.SubElement(element, "failure", message=_xml(case.diagnosis), type=test)
            failure.text = _xml(f"{case.diagnosis}\nFix: {case.fix}" if case.fix else case.diagnosis)
        elif case.status == "skipped":
            Xml.SubElement(element, "skipped", message=_xml(case.diagnosis))
    return suite


def _totals(cases: Sequence[Case]) -> dict[str, str]:
    counts = {word: sum(case.status == status for case in cases) for word, status in _COUNTED}
    return {"tests": str(len(cases)), **{word: str(count) for word, count in counts.items()}, "errors": "0", "time": "0"}


def _of(report: Report, test: CheckName) -> list[Case]:
    return [case for case in report.cases if case.test == test]


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def _plain(text: str) -> str:
    return _NOT_SHOWN.sub("\ufffd", text)
