"""Control tokens in prompts: the BOS once, markers around turns that are tokens, and none that a client's text makes."""

import re
from collections.abc import Iterable

from gateway.checks.base import Case, Status, Subject
from gateway.checks.conversations import Conversation
from gateway.errors import BadRequest, shown
from gateway.request import GenerateRequest, Message, Prompt

_ASKED, _SAID, _NEXT = "askedturnmark", "saidturnmark", "nextturnmark"
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z][A-Z_]{1,30}\]")
_SHOWN = 60  # characters of a prompt in a diagnosis


def _case(name: str, status: Status = "passed", diagnosis: str = "", fix: str = "") -> Case:
    return Case("template", name, status, diagnosis, fix)


def bos(subject: Subject, prompts: Iterable[Prompt]) -> Case:
    """Each prompt begins with the BOS once where the files want one, and never with two. The gateway adds none itself."""
    files, tokenizer = subject.files, subject.prompter.tokenizer
    text = files.bos or files.specials.get("bos_token")
    bos_id = tokenizer.special_ids.get(text, tokenizer.id_of(text)) if text else None
    for made in prompts if bos_id is not None else ():
        begun = [each for each in made.ids[:8] if each == bos_id or tokenizer.text_of(each).strip()]
        count = next((at for at, each in enumerate(begun) if each != bos_id), len(begun))
        if count > 1:
            return _case(
                "bos",
                "failed",
                f"The prompt begins with {text} {count} times: {made.text[:_SHOWN]!r}.",
                "Let the chat template write it once: the gateway adds none.",
            )
        if count == 0 and files.bos is not None:
            return _case(
                "bos",
                "failed",
                f"The model's files want {text} before each prompt, but this one begins with {made.text[:_SHOWN]!r}.",
                "Write {{ bos_token }} at the head of the chat template, or say add_bos_token: false if it was trained so.",
            )
    return _case("bos")


def markers(subject: Subject) -> Case:
    """What looks like a control token around turns is one. Of markers that are text a model cannot tell what a client wrote."""
    tokenizer = subject.prompter.tokenizer
    messages = (Message("user", _ASKED), Message("assistant", _SAID), Message("user", _NEXT))
    try:
        text = subject.prompter.prompt(GenerateRequest("", messages)).text
    except BadRequest as error:
        said = f"A plain conversation is refused: {error.message.rstrip('.')}."
        return _case("markers", "failed", said, "Use the model's own chat template.")
    between, _, opening = text.partition(_ASKED)[2].partition(_NEXT)
    after = between.partition(_SAID)[2]
    counts = {marker: len(tokenizer.encode_after(marker)) for marker in dict.fromkeys(_MARKER.findall(between + opening))}
    split = [f"{marker} is {count} tokens" for marker, count in counts.items() if count != 1]
    ended = next((token for token in tokenizer.special_ids if token in after), None)
    if not split:
        return _case("markers")
    if ended is None:
        return _case(
            "markers",
            "failed",
            f"The template parts turns with {after!r}, none of which is a token of this vocabulary: {', '.join(split)}.",
            "Use the chat template that was made for this model: this one is of another.",
        )
    return _case(
        "markers",
        "skipped",
        f"{', '.join(split)}, text to this vocabulary; turns end with the token {shown(ended)} all the same. Whether the "
        "model was trained so only its maker knows.",
    )


def spelled(subject: Subject, conversation: Conversation, prompt: Prompt) -> Case:
    """A prompt was made; of a conversation that spells control tokens, none of them is a token there."""
    texts = [str(message.content) for message in conversation.request.messages]
    for text in subject.prompter.renderer.controls if conversation.spells_controls else ():
        wanted = prompt.text.count(text) - sum(each.count(text) for each in texts)
        found = prompt.ids.count(subject.prompter.tokenizer.special_ids[text])
        if found > wanted:
            said = (
                f"A client's text that spells {text} becomes the token itself: {found} of them stand in the prompt, not {wanted}."
            )
            return _case(conversation.name, "failed", said, "Report it: the gateway must give such text as text.")
    return _case(conversation.name)
