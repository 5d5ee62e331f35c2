"""An answer that its engine breaks off is gone on with on another, token by token; where that is not exact, it is marked."""

import pytest
from faults.leaks import NoLeaks
from faults.place import QUICK, fleet
from faults.speech import Kind

pytestmark = pytest.mark.faults
KINDS: tuple[Kind, ...] = ("llamacpp", "vllm")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cut_at_any_token_changes_nothing(no_leaks: NoLeaks, kind: Kind) -> None:
    async with fleet(no_leaks, kind, timeouts=QUICK) as place:
        for after in range(14):
            answer = await place.ask(f"[[tokens=12]][[chaos:reset_mid_stream after={after} only=a]] {after}")
            assert place.whole(answer), (after, answer.error, place.record)
            assert answer.finishes == ["stop"]
            await place.ready()
