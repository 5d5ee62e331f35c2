"""How long an engine takes for a prompt: learned from first tokens.

Seconds = p x new + q x new x (context + new / 2) + step x chunks, `new` being the tokens that are not cached. The three are
fitted by least squares that forgets, held a little to where it started; none can be negative. It starts from a large model on a
fast machine, or from that times the median of how many times slower the first prompts were, where they were many times: one that
hung, as a first one may, counts as one. Engines of one model share the fit; each has a factor of its own, believed as far as it
was measured.
"""

from math import ceil, sqrt

_PRIOR = (1e-4, 1.5e-9, 0.02)  # seconds a new token, a new token x token of context, a chunk
_CHUNK_TOKENS = 8192
_DECAY = 0.995
_SWEEPS = 3
_ROWS = ((0, 1, 2), (1, 0, 2), (2, 0, 1))  # each, and the two others
_BELIEF = 0.01  # weight of the prior: soon outweighed
_FIRST, _FAR = 6, 3.0  # prompts whose median tells whether an engine is so many times slower or quicker than the prior
_LEAST_S = 1e-6  # a first token in less tells nothing
_PRIOR_WORK_S = 10.0  # seconds of work before its speed is half believed
_SHAPE = 4.0  # no cause is believed to cost so many times more or less than the others do, against the prior
_SURPRISE = 3.0  # what took so many times longer than predicted counts as so many: an engine that hung
_FACTOR_PRIOR_S = 20.0  # seconds of work before an engine's own factor is half believed
_ALIKE = 1.3  # engines that differ by less are the same: what is seen of each is too rough, and would draw work to one of them
_ENOUGH_S = 60.0  # of an engine that is never idle: what it had begun by then, or left, is little of that

Work = tuple[float, float, float]


def work(new: int, context: int) -> Work:
    """What there is to do for so many tokens that are not cached, after so many that are: in prior seconds, by cause."""
    return _PRIOR[0] * new, _PRIOR[1] * new * (context + new / 2), _PRIOR[2] * ceil(new / _CHUNK_TOKENS)


class PrefillModel:
    """Predicts seconds of prefill for the engines of one model, and learns from each first token."""

    def __init__(self) -> None:
        self._first: list[tuple[str, Work, float]] | None = []
        self._open: dict[str, tuple[Work, float]] = {}  # what an engine has done since it was idle, and how long that took
        self._seen: dict[str, tuple[float, Work]] = {}  # the seconds seen of each engine, and the work they were for
        self._known: dict[str, float] = {}  # its factor
        self._begin(1.0)

    def seconds(self, engine: str, done: Work) -> float:
        """How long this takes on an engine that does nothing else."""
        return self._known.get(engine, 1.0) * self._shared(done)

    def factor(self, engine: str) -> float:
        """How much slower than the others it is."""
        return self._known.get(engine, 1.0)

    @property
    def token_s(self) -> float:
        """Seconds for one more new token, its context left out."""
        return _PRIOR[0] * self._fit[0]

    @property
    def parameters(self) -> tuple[float, float, float]:
        """p, q and step, in seconds."""
        return _PRIOR[0] * self._fit[0], _PRIOR[1] * self._fit[1], _PRIOR[2] * self._fit[2]

    def observe(self, engine: str, done: Work, took_s: float, *, idle: bool) -> None:
        """A first token: the work for it, and how long the engine had since the one before. An engine works on several prompts at
        once, so that single times tell little: what is learned from is all it did until it was `idle`, or some seconds of it."""
        was, spent_s = self._open.pop(engine, ((0.0, 0.0, 0.0), 0.0))
        done = was[0] + done[0], was[1] + done[1], was[2] + done[2]
        spent_s += took_s
        if idle or spent_s > _ENOUGH_S:
            self._learn(engine, done, spent_s)
        else:
            self._open[engine] = done, spent_s

    def pass_over(self, engine: str) -> None:
        """The engine has done something else meanwhile, such as waiting for memory: its times since it was idle tell nothing."""
        self._open.pop(engine, None)

    def forget(self, engine: str) -> None:
        """The engine was restarted, perhaps on other hardware: its own factor is unknown again."""
        self._open.pop(engine, None)
        self._seen.pop(engine, None)
        self._known.pop(engine, None)

    def _shared(self, done: Work) -> float:
        fit = self._fit
        return fit[0] * done[0] + fit[1] * done[1] + fit[2] * done[2]

    def _learn(self, engine: str, done: Work, took_s: float) -> None:
        if took_s < _LEAST_S:
            return
        self._add(engine, done, took_s)
        if self._first is None:
            return
        self._first.append((engine, done, took_s))
        scale = _median([1.0, *(seconds / sum(each) for _, each, seconds in self._first)])
        start = 1.0 if 1 / _FAR < scale < _FAR else scale
        if start != 1.0 or self._start != 1.0:
            self._begin(start)
            for each in self._first:
                self._add(*each)
        if len(self._first) == _FIRST:
            self._first = None

    def _begin(self, scale: float) -> None:
        """With engines that are so many times slower than the prior, of which nothing was seen."""
        self._start = scale
        self._fit = [scale] * 3
        self._took_s, self._expected_s = _PRIOR_WORK_S * scale, _PRIOR_WORK_S
        self._normal = [[0.0] * 3 for _ in range(3)]
        self._target = [0.0] * 3
        self._seen.clear()
        self._known.clear()

    def _add(self, engine: str, done: Work, took_s: float) -> None:
        predicted_s = self._shared(done)
        took_s = min(took_s, _SURPRISE * predicted_s * self.factor(engine) + 0.1)
        seen_s, past = self._seen.get(engine, (0.0, (0.0, 0.0, 0.0)))
        past = past[0] * _DECAY + done[0], past[1] * _DECAY + done[1], past[2] * _DECAY + done[2]
        seen_s = seen_s * _DECAY + took_s
        self._seen[engine] = seen_s, past
        factor = (seen_s + _FACTOR_PRIOR_S) / (self._shared(past) + _FACTOR_PRIOR_S)
        factor = self._known[engine] = 1.0 if 1 / _ALIKE < factor < _ALIKE else factor
        took_s /= factor
        self._took_s = self._took_s * _DECAY + took_s
        self._expected_s = self._expected_s * _DECAY + sum(done)
        weight = 1.0 / (predicted_s + 0.1)
        for row, line in enumerate(self._normal):
            weighed = weight * done[row]
            line[0] = line[0] * _DECAY + weighed * done[0]
            line[1] = line[1] * _DECAY + weighed * done[1]
            line[2] = line[2] * _DECAY + weighed * done[2]
            self._target[row] = self._target[row] * _DECAY + weighed * took_s
        self._solve()

    def _solve(self) -> None:
        """Some sweeps of Gauss-Seidel from where it stood. Each value stays near the ratio of all that was seen to the prior, so
        that times that are not of prefill cannot make one cause stand for all."""
        fit = self._fit
        scale = self._took_s / self._expected_s
        least, most, believed = scale / _SHAPE, scale * _SHAPE, _BELIEF * scale
        rows = tuple(zip(_ROWS, self._normal, self._target, strict=True))
        for _ in range(_SWEEPS):
            for (row, one, other), line, target in rows:
                others = line[one] * fit[one] + line[other] * fit[other]
                value = (target + believed - others) / (line[row] + _BELIEF)
                fit[row] = most if value > most else max(value, least)


def _median(values: list[float]) -> float:
    """Of ratios: between the middle two of an even number lies their geometric mean."""
    ordered = sorted(values)
    return sqrt(ordered[(len(ordered) - 1) // 2] * ordered[len(ordered) // 2])
