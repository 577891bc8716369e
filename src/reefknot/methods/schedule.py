"""What sparse APT does at which soft step: when it relaxes, and how strength and price grow.

Takes     the settings that name steps, and what is reached there.
Gives     `Schedule`, the strength and the price at each step; and what is wrong with the settings.
Paper     ours, between sections 3.1 and 3.2; the paper has one strength for all of soft tying.
Unaware   of weights and optimizers.

Soft tying with L1 until `relax_from`, then without it; from `through_from` on the model runs on
tied values (`reefknot.tying.through`). The strength stops growing `relax_steps` after `relax_from`;
the price of a bit follows the file's size.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reefknot.methods.settings import count_mistakes, is_real, number_mistakes
from reefknot.tying.saved import saved_count, saved_number

_LOOKS = 100  # at the file's size, between `through_from` and the end of relaxing
_SPARE = 1.05  # how much larger than `target_bytes` the file is when relaxing begins
_FIRST_PRICE, _LEAST_PRICE = 1e-2, 1e-3  # times the mean square of the weights
_IN_TIME = 3.0  # the size is reached after a third of the way, while weights still move
_GAIN, _MOST_GROWTH = 2.0, 0.2  # of the price's logarithm: for each excess of the file's, at most
_STEPS_OR_NEVER = "a whole number of steps, or 0 for never"


@dataclass(frozen=True)
class Schedule:
    """The settings of `SparseAPT` with the same names; plain APT has none of them."""

    relax_from: int = 0
    relax_tying: float | None = None
    relax_steps: int = 0
    through_from: int = 0
    target_bytes: int = 0

    def relaxed(self, step: int) -> bool:
        """Whether the zeros are fixed and the L1 penalty is off."""
        return bool(self.relax_from) and step >= self.relax_from

    @property
    def bytes_to_relax(self) -> int:
        """The size to which zeros are chosen at `relax_from`; running on tied values makes more."""
        return round(_SPARE * self.target_bytes)

    def tying(self, step: int, strength: float) -> float:
        """The tying strength, which grows by the same factor at each relaxed step if asked to."""
        if self.relax_tying is None or not self.relaxed(step):
            return strength
        done = min(1.0, (step - self.relax_from) / max(self.relax_steps, 1))
        return strength * (self.relax_tying / strength) ** done

    def through(self, step: int) -> float:
        """How much of the way from `through_from` to the end of relaxing is done, 0 to 1."""
        return min(1.0, (step - self.through_from) / self._through_steps)

    def looks_at_size(self, step: int) -> bool:
        """Whether the price of a bit is made to fit the file's size after this step."""
        every = max(1, self._through_steps // _LOOKS)
        return bool(self.target_bytes) and (step - self.through_from) % every == 0

    @property
    def _through_steps(self) -> int:
        return max(1, self.relax_from + self.relax_steps - self.through_from)


class Price:
    """The price of a bit, which grows as the file's size asks for; 0 without `target_bytes`.

    The file shall shrink by the same factor at each step until a third of relaxing on tied values
    is over, and stay at its size from then on. At each look the price grows if the file is too
    large, and falls if it is too small.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.now = 0.0
        self.least = 0.0  # from where it can still grow in time
        self.first_bytes = 0  # the size at `through_from`

    def start(self, file_bytes: int, mean_square: float) -> None:
        """Begin to follow, at a price that no weight of usual size minds."""
        self.first_bytes, self.now = file_bytes, _FIRST_PRICE * mean_square
        self.least = _LEAST_PRICE * mean_square

    def follow(self, step: int, file_bytes: int) -> None:
        """Make the price fit the size that the file would have now."""
        done = min(1.0, _IN_TIME * self.schedule.through(step))
        wanted = self.first_bytes ** (1 - done) * self.schedule.target_bytes**done
        growth = _GAIN * math.log(file_bytes / wanted)
        factor = math.exp(max(-_MOST_GROWTH, min(_MOST_GROWTH, growth)))
        self.now = max(self.least, self.now * factor)

    def state_dict(self) -> dict[str, float]:
        """What `follow` goes on from."""
        return {"price": self.now, "least_price": self.least, "first_bytes": self.first_bytes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called."""
        self.now, self.least = saved_number(state, "price"), saved_number(state, "least_price")
        self.first_bytes = saved_count(state, "first_bytes")


def schedule_mistakes(settings: Mapping[str, Any]) -> Iterator[str]:
    """All that is wrong with the settings of a schedule."""
    yield from number_mistakes(settings, "tying_strength")
    yield from count_mistakes(settings, "relax_from", "through_from", meaning=_STEPS_OR_NEVER)
    yield from count_mistakes(settings, "relax_steps", meaning="a whole number of steps")
    reached = settings.get("relax_tying")
    if reached is not None:
        if not is_real(reached) or not 0 < reached < float("inf"):
            yield f"relax_tying must be a number above 0, found {reached!r}"
        if not settings.get("relax_from", 0):
            yield "relax_tying needs relax_from, the step at which the strength begins to grow"
        if settings.get("tying_strength", 1e-5) == 0:
            yield "relax_tying grows from tying_strength, which must then be above 0"
    through, relax = settings.get("through_from", 0), settings.get("relax_from", 0)
    if is_real(through) and is_real(relax) and through:
        if not relax:
            yield "through_from needs relax_from, the step at which the zeros are fixed"
        elif through < relax:
            yield f"through_from must not be before relax_from, found {through!r} and {relax!r}"
        if settings.get("distance", "l2") != "l2":
            yield 'through_from needs distance = "l2"'
    yield from count_mistakes(settings, "target_bytes", meaning="a whole number of bytes, or 0")
    if settings.get("target_bytes") and not through:
        yield "target_bytes needs through_from, the step at which the file begins to shrink to it"
    if settings.get("target_bytes") and not settings.get("relax_steps"):
        yield "target_bytes needs relax_steps, in which the size is reached"
