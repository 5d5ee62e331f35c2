"""Tools for a model whose template ignores them: stated in words, its calls forced into shape by the engine's own constraint.

The statement is the first text of the prompt and depends on the tools alone, not on the choice among them, so that the engine's
prefix cache holds it over all turns. Invariant: no call and no result of the history is lost; each is written in the syntax in
which the model is asked to call, with the very bytes of its arguments where they are a JSON object.
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.formats.base import CallSyntax
from gateway.prompt.conversation import Turn
from gateway.prompt.normalize import arguments_object, broken_note, tool_dict
from gateway.prompt.rig import Support
from gateway.request import CallAnswer, GenerateRequest, ToolCall, ToolSpec
from gateway.wire import jsonio

MAX_CALLS = 8  # calls in one answer: a model under a grammar may not stop by itself


def restate(conversation: Sequence[Turn], tools: Sequence[ToolSpec], syntax: CallSyntax) -> list[Turn]:
    """The conversation as text alone: tools in the system message, calls in the assistant's, results in the user's."""
    stated: list[Turn] = []
    run: list[Turn] = []
    for turn in conversation:
        if turn.role == "tool":
            run.append(turn)
            continue
        stated += _results(run)
        run = []
        stated.append(_with_calls(turn, syntax))
    stated += _results(run)
    return _with_tools(stated, tools, syntax) if tools else stated


def broken_calls(conversation: Sequence[Turn]) -> list[str]:
    """The notes on calls whose arguments are no JSON object."""
    return [
        broken_note(turn.index, number)
        for turn in conversation
        for number, call in enumerate(turn.calls)
        if arguments_object(call.arguments) is None
    ]


def cut_thoughts(conversation: Sequence[Turn], old_thoughts: Support) -> list[str]:
    """The note on thoughts of a running tool loop: its results are a user's words here, after which a template may show no
    thought from before."""
    results = [turn.index for turn in conversation if turn.role == "tool"]
    begun = max((turn.index for turn in conversation if turn.role == "user"), default=-1)
    thoughts = [turn.index for turn in conversation if turn.reasoning and begun < turn.index < max(results, default=-1)]
    if not thoughts or old_thoughts == "yes":
        return []
    return [f"messages[{thoughts[0]}]: thoughts are left out, the template shows none before a result ({len(thoughts)} in all)"]


def call_answer(request: GenerateRequest, syntax: CallSyntax, *, max_calls: int = MAX_CALLS) -> CallAnswer:
    """What the engine must enforce: calls only, or text as well where the choice is `auto`."""
    choice = request.tool_choice
    named = choice.mode == "named"
    single = not request.parallel_tool_calls or (named and len(choice.names) == 1)
    return CallAnswer(
        tools=tuple(tool for tool in request.tools if not named or tool.name in choice.names),
        opener=syntax.opener,
        closer=syntax.closer,
        separator=syntax.separator,
        name_key=syntax.name_key,
        arguments_key=syntax.arguments_key,
        or_text=choice.mode == "auto",
        max_calls=1 if single else max_calls,
    )


def _with_tools(conversation: list[Turn], tools: Sequence[ToolSpec], syntax: CallSyntax) -> list[Turn]:
    stated = statement(tools, syntax)
    first, *rest = conversation
    if first.role in {"system", "developer"}:
        return [replace(first, text=f"{stated}\n\n{first.text}" if (first.text or "").strip() else stated), *rest]
    return [Turn(0, "system", stated), *conversation]


def statement(tools: Sequence[ToolSpec], syntax: CallSyntax) -> str:
    """The tools and how to call them, in few words: a small model reads them too."""
    lines = "\n".join(jsonio.dumps(tool_dict(tool)["function"]) for tool in tools)
    shape = f'{{"{syntax.name_key}": "function name", "{syntax.arguments_key}": {{...}}}}'
    return (
        f"You can use these functions:\n{lines}\n\n"
        f"To use one, write only this:\n{syntax.opener}{shape}{syntax.closer}\n"
        "The result is then given to you in <tool_response></tool_response>. If no function is needed, answer in words."
    )


def _with_calls(turn: Turn, syntax: CallSyntax) -> Turn:
    if not turn.calls:
        return turn
    pieces = [syntax.separator.join(call_text(call, syntax) for call in turn.calls)]
    if turn.text:
        pieces.insert(0, turn.text)
    return replace(turn, text="\n".join(pieces), calls=())


def call_text(call: ToolCall, syntax: CallSyntax) -> str:
    """A call as the model is asked to write it. Arguments that are no object stand there as a string."""
    plain = arguments_object(call.arguments)
    kept = plain is not None and call.arguments.lstrip().startswith("{")
    arguments = call.arguments.strip() if kept else jsonio.dumps(call.arguments if plain is None else plain)
    name = jsonio.dumps(call.name)
    return f'{syntax.opener}{{"{syntax.name_key}": {name}, "{syntax.arguments_key}": {arguments}}}{syntax.closer}'


def _results(run: Sequence[Turn]) -> list[Turn]:
    """The results that follow one message, as one user message."""
    if not run:
        return []
    text = "\n".join(f"<tool_response>\n{turn.text}\n</tool_response>" for turn in run)
    return [Turn(run[0].index, "user", text)]
