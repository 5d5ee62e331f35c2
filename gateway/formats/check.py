"""Checks of finished JSON: the calls of an engine that parses them itself, and answers that shall fit a schema."""

from collections.abc import Callable, Sequence

from gateway.formats.schema import Parameters
from gateway.request import FailureKind, JsonAnswer, ToolSpec
from gateway.wire.jsonio import JsonError, decode


def call_check(tools: Sequence[ToolSpec]) -> Callable[[str, str], list[FailureKind]]:
    """A check of a whole call's name and arguments text, which gives the kinds of failure. Schemas are read when first needed."""
    known = {tool.name: tool for tool in tools}
    parameters: dict[str, Parameters] = {}

    def check(name: str, arguments: str) -> list[FailureKind]:
        if name not in known:
            return ["unknown_tool"]
        try:
            value = decode(arguments)
        except JsonError:
            return ["invalid_json"]
        if not isinstance(value, dict):
            return ["not_an_object"]
        if name not in parameters:
            parameters[name] = Parameters(known[name].parameters)
        return [] if parameters[name].accepts(arguments) else ["schema_mismatch"]

    return check


def answer_check(wanted: JsonAnswer) -> Callable[[str], list[FailureKind]]:
    """A check of a whole answer, which gives the kinds of failure. The schema is read when first needed, and once."""
    known: list[Parameters] = []

    def check(text: str) -> list[FailureKind]:
        try:
            value = decode(text)
        except JsonError:
            return ["invalid_json"]
        if wanted.schema is None:
            return [] if isinstance(value, dict) else ["not_an_object"]
        if not known:
            known.append(Parameters(wanted.schema))
        return [] if known[0].accepts(text) else ["schema_mismatch"]

    return check
