"""What an engine is asked for a prompt that the gateway rendered, and what reads its answer: for requests and for checks."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from engines.base import Work
from gateway.answer import AnswerChecker, AnswerReader, AnswerRules
from gateway.formats.base import ParseOptions
from gateway.leak import LeakedTexts, Leaks, leaked_ids
from gateway.model import Rendered
from gateway.prompt.thought_end import ThoughtEnd
from gateway.prompt.tokenizer import Tokenizer
from gateway.request import CallAnswer, FailureKind, GenerateRequest, Prompt
from gateway.thought import ThoughtLimit
from gateway.transcript import Transcript

Check = Callable[[str], Sequence[FailureKind]]


def work_for(rendered: Rendered, request: GenerateRequest, prompt: Prompt, *, model: str | None = None, choice: int = 0) -> Work:
    """The engine's work. `model` is the name that the engine knows."""
    tokenizer = rendered.prompter.tokenizer
    form = rendered.format_for(bool(request.offered))
    constraint = prompt.constraint
    if constraint is not None and (closer := form.open_thought(prompt.tail)) is not None:
        constraint = replace(constraint, thought_closer=closer)
    return Work(
        request=request,
        ids=prompt.ids,
        stop_ids=prompt.stop_ids,
        stop_texts={token: tokenizer.text_of(token) for token in prompt.stop_ids},
        special_ids=tokenizer.special_ids.values(),
        visible=form.visible,
        constraint=constraint,
        max_tokens=prompt.max_tokens,
        model=model,
        choice=choice,
    )


def reader_for(
    rendered: Rendered,
    request: GenerateRequest,
    prompt: Prompt,
    *,
    rules: AnswerRules,
    by_ids: bool,
    hold_arguments: bool,
    new_call_id: Callable[[], str],
    check: Check | None = None,
) -> AnswerReader:
    """What reads one answer. `check` is for answers that shall be JSON.

    `by_ids`: the engine streams every id, so that the ids are what is read, and markers are ids, but in calls that a grammar
    makes: it knows texts only, so that the model may have spelled a marker.
    """
    tokenizer = rendered.prompter.tokenizer
    marked_by_ids = by_ids and not isinstance(prompt.constraint, CallAnswer)
    parser = rendered.format_for(bool(request.offered)).parser(
        ParseOptions(
            tools=request.offered,
            prompt_tail=prompt.tail,
            new_call_id=new_call_id,
            marker_ids=tokenizer.special_ids if marked_by_ids else {},
            calls=request.tool_choice.mode != "none",
            hold_arguments=hold_arguments,
            stops=frozenset(tokenizer.text_of(token) for token in prompt.stop_ids),
        )
    )
    return AnswerReader(
        parser,
        rules=rules,
        prompt_tokens=len(prompt.ids),
        stop=request.stop,
        one_call=not request.parallel_tool_calls or rendered.prompter.one_call,
        checker=AnswerChecker(check) if check is not None else None,
        detokenizer=tokenizer.detokenizer() if by_ids else None,
        leaks=_leaks(request, prompt, tokenizer, by_ids=by_ids),
        data_of=tokenizer.data_of if request.logprobs is not None or request.return_token_ids else None,
    )


def thought_limit(rendered: Rendered, request: GenerateRequest, prompt: Prompt, transcript: Transcript) -> ThoughtLimit | None:
    """What minds how long the thoughts are, where that is limited. One that the prompt has opened is ended by the closer that
    goes with its opener."""
    end = rendered.thought_end_for(bool(request.offered))
    if request.reasoning_budget is None or end is None:
        return None
    form = rendered.format_for(bool(request.offered))
    if (closer := form.open_thought(prompt.tail)) is not None:
        end = ThoughtEnd(*(text.replace(form.thought_closer, closer) for text in (end.before_any, end.before_text)))
    return ThoughtLimit(transcript, tokens=request.reasoning_budget, end=end, tokenizer=rendered.prompter.tokenizer)


def _leaks(request: GenerateRequest, prompt: Prompt, tokenizer: Tokenizer, *, by_ids: bool) -> Leaks | None:
    """What counts tokens that have no place in the answer. Where the client wants it to go on after stop tokens they have one."""
    stop_ids = frozenset[int]() if request.sampling.ignore_eos else prompt.stop_ids
    if by_ids:
        return leaked_ids(stop_ids, tokenizer.vocab_size)
    texts = [text for token_id in stop_ids if (text := tokenizer.text_of(token_id)) in tokenizer.special_ids]
    return LeakedTexts(texts) if texts else None
