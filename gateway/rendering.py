"""A client's request to its prompt: what both the answer and the debugging routes are made from.

Small requests are rendered where they are, so that they wait for no long one, in a few steps of their template. What needs more
goes to another process, or to a thread where the gateway has none: neither conversations nor templates hold the loop up.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gateway.errors import BadRequest
from gateway.fleet.registry import Registry
from gateway.model import Model, Rendered, fitted
from gateway.prompt.prompter import Plan
from gateway.prompt.renderer import Draft, Rendering
from gateway.prompt.template import Stopped
from gateway.request import GenerateRequest, Prompt

T = TypeVar("T")
HERE_BODY_BYTES = 4 * 1024  # tokenised in some 2 ms
HERE_STEPS = 1_000  # of some 1 to 4 µs; a small chat with eight tools takes fewer in all but a few of 40 real templates
THREAD_BODY_BYTES = 32 * 1024


async def prompt_for(model: Model, request: GenerateRequest, registry: Registry) -> Prompt | None:
    """The prompt with its token limit, or None where the engine templates itself. Raises a GatewayError."""
    if model.rendered is None:
        return None
    _check_biases(request, model.rendered.prompter.tokenizer.vocab_size)
    context = context_of(model, registry)
    return fitted(await _prompt(model.rendered, request, context), request.max_tokens, context)


def context_of(model: Model, registry: Registry) -> int | None:
    """The most tokens of a prompt and its answer together: the least that the model's files and its engines say."""
    said = [registry.info(each.id).context_tokens for each in registry.members.values() if each.model == model.name]
    own = model.rendered.prompter.context_tokens if model.rendered is not None else None
    return min((context for context in (own, *said) if context is not None), default=None)


async def _off_loop(body: bytes, work: Callable[[], T]) -> T:
    """What takes a time that grows with the body is done in a thread where that is long."""
    return work() if len(body) < THREAD_BODY_BYTES else await asyncio.to_thread(work)


def _check_biases(request: GenerateRequest, size: int) -> None:
    """Refuses ids that the vocabulary lacks: engines pass over them without a word, or fail."""
    for token_id, _ in request.sampling.logit_bias:
        if token_id >= size:
            raise BadRequest(
                f"Invalid value for 'logit_bias.{token_id}': the vocabulary's ids are 0 to {size - 1}.",
                param=f"logit_bias.{token_id}",
            )


async def _prompt(rendered: Rendered, request: GenerateRequest, context_tokens: int | None) -> Prompt:
    prompter, body = rendered.prompter, request.body
    plan = await _off_loop(body, lambda: prompter.plan(request, context_tokens))
    here = _rendered_here(rendered, plan) if len(body) < HERE_BODY_BYTES else None
    rendering = here or await _elsewhere(rendered, plan.draft)
    return await _off_loop(body, lambda: prompter.finished(plan, rendering))


def _rendered_here(rendered: Rendered, plan: Plan) -> Rendering | None:
    """None where the template needs more steps."""
    try:
        return rendered.prompter.renderer.render(replace(plan.draft, steps=HERE_STEPS))
    except Stopped:
        return None


async def _elsewhere(rendered: Rendered, draft: Draft) -> Rendering:
    if rendered.apart is not None:
        return await rendered.apart(draft)
    async with rendered.turn:  # renders in several threads only take the interpreter from each other, and from the loop
        return await asyncio.to_thread(rendered.prompter.renderer.render, draft)
