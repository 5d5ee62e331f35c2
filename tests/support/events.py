"""One finished request, and what its engine made, as observers see them."""

from gateway.events import Finished, Generated
from gateway.made import Made
from gateway.request import Usage

DONE = Finished(
    request_id="r",
    dialect="openai_chat",
    model="m",
    engine="a",
    format="hermes",
    outcome="ok",
    reason=None,
    status=200,
    streamed=True,
    attempts=1,
    duration_s=1.2,
    ttft_s=0.05,
    client_stall_s=0.03,
    usage=Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=60),
    with_tools=True,
    tool_calls=2,
    failures=(("invalid_json", 1), ("stray_marker", 4)),
)
MADE = Generated(
    request_id="r",
    attempt=1,
    engine="a",
    model="m",
    format="hermes",
    made=Made(DONE.usage, calls=2, failures={"invalid_json": 1, "stray_marker": 4}),
    prompt_tokens=100,
    cached_tokens=60,
    inter_token_s=((0.0015, 3), (0.02, 16)),
    ttft_s=0.05,
)
