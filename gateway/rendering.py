"""A client's request to its prompt: what both the answer and the debugging routes are made from."""

import asyncio

from gateway.fleet.registry import Registry
from gateway.model import Model, fitted
from gateway.request import GenerateRequest, Prompt

THREAD_BODY_BYTES = 32 * 1024  # a longer request is rendered and tokenised in a thread, off the loop


def context_of(model: Model, registry: Registry) -> int | None:
    """The most tokens of a prompt and its answer together: the least that the model's files and its engines say."""
    said = [engine.context_tokens for engine in registry.view(model.name).engines]
    own = model.rendered.prompter.context_tokens if model.rendered is not None else None
    return min((context for context in (own, *said) if context is not None), default=None)


async def prompt_for(model: Model, request: GenerateRequest, registry: Registry) -> Prompt | None:
    """The prompt with its token limit, or None where the engine templates itself. Raises a ClientError."""
    if model.rendered is None:
        return None
    prompter = model.rendered.prompter
    context = context_of(model, registry)
    if len(request.body) < THREAD_BODY_BYTES:
        prompt = prompter.prompt(request, context)
    else:
        prompt = await asyncio.to_thread(prompter.prompt, request, context)
    return fitted(prompt, request.max_tokens, context)
