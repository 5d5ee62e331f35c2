"""A client's request to its prompt: what both the answer and the debugging routes are made from.

Small requests are rendered where they are, since going elsewhere costs more; longer ones in a thread; those that would hold the
interpreter for long in another process, where the gateway has one.
"""

import asyncio

from gateway.errors import BadRequest
from gateway.fleet.registry import Registry
from gateway.model import Model, Rendered, fitted
from gateway.request import GenerateRequest, Prompt

THREAD_BODY_BYTES = 32 * 1024
APART_BODY_BYTES = 100 * 1024
APART_MESSAGES = 50


async def prompt_for(model: Model, request: GenerateRequest, registry: Registry) -> Prompt | None:
    """The prompt with its token limit, or None where the engine templates itself. Raises a GatewayError."""
    if model.rendered is None:
        return None
    _check_biases(request, model.rendered.prompter.tokenizer.vocab_size)
    context = context_of(model, registry)
    return fitted(await _prompt(model.rendered, request, context), request.max_tokens, context)


def context_of(model: Model, registry: Registry) -> int | None:
    """The most tokens of a prompt and its answer together: the least that the model's files and its engines say."""
    said = [engine.context_tokens for engine in registry.view(model.name).engines]
    own = model.rendered.prompter.context_tokens if model.rendered is not None else None
    return min((context for context in (own, *said) if context is not None), default=None)


def _check_biases(request: GenerateRequest, size: int) -> None:
    """Refuses ids that the vocabulary lacks: engines pass over them without a word, or fail."""
    for token_id, _ in request.sampling.logit_bias:
        if token_id >= size:
            raise BadRequest(
                f"Invalid value for 'logit_bias.{token_id}': the vocabulary's ids are 0 to {size - 1}.",
                param=f"logit_bias.{token_id}",
            )


async def _prompt(rendered: Rendered, request: GenerateRequest, context_tokens: int | None) -> Prompt:
    prompter = rendered.prompter
    large = len(request.body) > APART_BODY_BYTES or len(request.messages) > APART_MESSAGES
    if large and rendered.apart is not None:
        plan = await asyncio.to_thread(prompter.plan, request, context_tokens)
        return await asyncio.to_thread(prompter.finished, plan, await rendered.apart(plan.draft))
    if large or len(request.body) >= THREAD_BODY_BYTES:
        return await asyncio.to_thread(prompter.prompt, request, context_tokens)
    return prompter.prompt(request, context_tokens)
