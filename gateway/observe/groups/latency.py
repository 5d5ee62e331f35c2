"""How long clients wait: for the first token, for each that follows, and in the queue before."""

from gateway.events import NO_ENGINE, NO_MODEL, Finished, Generated
from gateway.observe.bounds import ITL_S, PER_TOKEN_S, QUEUE_S, TTFT_S
from gateway.observe.group import Group, Known, Pair
from gateway.observe.series import PAIR, Histogram


class Latency(Group):
    """What a client feels, without the time that it was not reading."""

    def __init__(self, _: Known) -> None:
        self._ttft = Histogram(
            "interlock_time_to_first_token_seconds",
            "From the body's last byte to the first delta sent: of a thought, the answer or a call.",
            PAIR,
            TTFT_S,
        )
        self._output = Histogram(
            "interlock_time_to_first_output_seconds",
            "From the body's last byte to the first delta sent that is no thought.",
            PAIR,
            TTFT_S,
        )
        self._itl = Histogram(
            "interlock_inter_token_latency_seconds", "Between the chunks of one attempt, for each token.", PAIR, ITL_S
        )
        self._per_token = Histogram(
            "interlock_time_per_output_token_seconds",
            "Of each answer, the time from its first token to its last by the tokens after the first; where another engine had"
            " begun it, of the tokens of the one that ended it.",
            PAIR,
            PER_TOKEN_S,
        )
        self._queue = Histogram(
            "interlock_queue_wait_seconds", "Time of one request waiting for an engine, none included.", PAIR, QUEUE_S
        )
        self._stall = Histogram(
            "interlock_client_stall_seconds", "Time of one request blocked on a client that did not read.", PAIR, TTFT_S
        )
        families = (self._ttft, self._output, self._itl, self._per_token, self._queue, self._stall)
        super().__init__("Latency", families, {Generated: self._generated, Finished: self._finished})

    def _generated(self, pair: Pair, event: Generated) -> None:
        trace_id = event.recorded
        if event.ttft_s is not None:
            self._ttft.add(pair, event.ttft_s, trace_id)
        if event.first_output_s is not None:
            self._output.add(pair, event.first_output_s, trace_id)
        self._itl.add_all(pair, event.inter_token_s, trace_id)
        if event.per_token_s is not None:
            self._per_token.add(pair, event.per_token_s, trace_id)

    def _finished(self, pair: Pair, event: Finished) -> None:
        if pair[0] != NO_MODEL:
            self._queue.add(pair, event.queue_s, event.recorded)
        if pair[1] != NO_ENGINE:
            self._stall.add(pair, event.client_stall_s, event.recorded)


GROUP = Latency
