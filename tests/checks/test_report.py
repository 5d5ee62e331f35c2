"""A check's result as text, JSON and JUnit XML."""

import json
from xml.etree import ElementTree as Xml

import pytest

from gateway.checks.base import CHECKS, Case, Report
from gateway.checks.report import report_json, report_junit, report_text

CASES = (
    Case("template", "files", "passed"),
    Case("template", "system", "failed", "its text <sentinel> & more is lost", "edit the template"),
    Case("reasoning", "on", "passed"),
    Case("reasoning", "off", "skipped", "the template has no switch"),
    Case("stop", "one token: \x1b[31m</s>\x00", "failed", "it is\ntwo \ud800 tokens\x07", "write one"),
    Case("tool_call", "single call", "passed"),
)


def report(
    cases: tuple[Case, ...] = CASES, *, reference: str | None = "transformers 5.24.0", engine: str | None = None
) -> Report:
    return Report("m", "digest", "2026-03-14T15:09:26+00:00", "0.1.0", reference, engine, cases)


def parsed(of: Report) -> Xml.Element:
    return Xml.fromstring(report_junit([of]).encode())  # noqa: S314  our own


def test_the_text_is_a_line_a_test_and_what_did_not_pass() -> None:
    assert [*report_text(report())] == [
        "m (against transformers 5.24.0)",
        "  template   FAILED  2 cases, 1 failed",
        "    system: its text <sentinel> & more is lost",
        "      fix: edit the template",
        "  reasoning  passed  2 cases, 1 not run",
        "    off (not run): the template has no switch",
        "  stop       FAILED  1 case, 1 failed",
        "    one token: \ufffd[31m</s>\ufffd: it is\ufffdtwo \ufffd tokens\ufffd",
        "      fix: write one",
        "  tool_call  passed  1 case",
    ]


def test_the_text_names_what_it_was_compared_with() -> None:
    assert next(report_text(report(reference=None))) == "m (without a reference)"
    assert next(report_text(report(engine="llama.cpp b1"))) == "m (against transformers 5.24.0, llama.cpp b1)"


def test_a_test_of_which_nothing_ran_has_not_passed() -> None:
    nothing = report((Case("stop", "a", "skipped", "why"),))
    assert not nothing.passed
    assert "  stop       FAILED  1 case, 1 not run" in [*report_text(nothing)]
    assert report(tuple(Case(name, "a", "passed") for name in CHECKS)).passed


def test_the_json_has_its_documented_shape() -> None:
    value = json.loads(report_json([report(), report(engine="e")]).encode())
    assert value["interlock_check"] == 1
    first, second = value["models"]
    assert (first["engine"], second["engine"]) == (None, "e")
    assert {key: first[key] for key in ("model", "at", "interlock", "reference", "passed")} == {
        "model": "m",
        "at": "2026-03-14T15:09:26+00:00",
        "interlock": "0.1.0",
        "reference": "transformers 5.24.0",
        "passed": False,
    }
    assert [*first["tests"]] == [*CHECKS]
    assert first["tests"]["reasoning"] == {"passed": True, "cases": 2, "failed": [], "skipped": ["off"]}
    assert first["cases"][1] == {
        "test": "template",
        "name": "system",
        "status": "failed",
        "diagnosis": "its text <sentinel> & more is lost",
        "fix": "edit the template",
    }
    assert len(first["cases"]) == len(CASES)


def test_junit_loads_in_a_standard_parser_with_what_its_schema_asks_for() -> None:
    root = parsed(report())
    assert (root.tag, root.get("tests"), root.get("failures"), root.get("skipped"), root.get("errors")) == (
        "testsuites",
        "6",
        "2",
        "1",
        "0",
    )
    suites = root.findall("testsuite")
    assert [suite.get("name") for suite in suites] == [f"m.{name}" for name in CHECKS]
    for suite in suites:
        assert {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"} <= {*suite.keys()}
        assert suite.get("timestamp") == "2026-03-14T15:09:26"
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
        assert all({"name", "classname", "time"} <= {*case.keys()} for case in suite.findall("testcase"))
        properties = {each.get("name"): each.get("value") for each in suite.findall("properties/property")}
        assert properties == {"model": "m", "interlock": "0.1.0", "reference": "transformers 5.24.0"}
    failure = suites[0].find("testcase[@name='system']/failure")
    assert failure is not None
    assert (failure.get("message"), failure.get("type")) == ("its text <sentinel> & more is lost", "template")
    assert failure.text == "its text <sentinel> & more is lost\nFix: edit the template"
    left = suites[1].find("testcase[@name='off']/skipped")
    assert left is not None
    assert left.get("message") == "the template has no switch"


def test_what_xml_forbids_is_replaced_in_junit() -> None:
    root = parsed(report())
    case = root.find("testsuite[@name='m.stop']/testcase")
    assert case is not None
    assert case.get("name") == "one token: \ufffd[31m</s>\ufffd"
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "it is\ntwo \ufffd tokens\ufffd"


@pytest.mark.parametrize("code", [*range(0x20), 0x7F, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF, 0x10FFFF])
def test_any_character_makes_xml_that_can_be_read(code: int) -> None:
    case = Case("stop", f"a{chr(code)}", "failed", f"b{chr(code)}", f"c{chr(code)}")
    parsed(report((case,)))
