"""What sparse APT does at which soft step: when it relaxes, and how strength and price grow.

Takes     the settings that name steps, and what is reached there.
Gives     `Schedule`, the strength and the price at each step; and what is wrong with the settings.
Paper     ours, between sections 3.1 and 3.2; the paper has one strength for all of soft tying.
Unaware   of weights and optimizers.

Soft tying with L1 until `relax_from`, then without it; from `through_from` on the model runs on
tied values (`reefknot.tying.through`). Strength and price stop growing `relax_steps` after
`relax_from`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reefknot.methods.settings import count_mistakes, is_real, number_mistakes

_STEPS_OR_NEVER = "a whole number of steps, or 0 for never"


@dataclass(frozen=True)
class Schedule:
    """The settings of `SparseAPT` with the same names; plain APT has none of them."""

    relax_from: int = 0
    relax_tying: float | None = None
    relax_steps: int = 0
    through_from: int = 0
    bit_price: float = 0.0

    def relaxed(self, step: int) -> bool:
        """Whether the zeros are fixed and the L1 penalty is off."""
        return bool(self.relax_from) and step >= self.relax_from

    def tying(self, step: int, strength: float) -> float:
        """The tying strength, which grows by the same factor at each relaxed step if asked to."""
        if self.relax_tying is None or not self.relaxed(step):
            return strength
        done = min(1.0, (step - self.relax_from) / max(self.relax_steps, 1))
        return strength * (self.relax_tying / strength) ** done

    def price(self, step: int) -> float:
        """The price of a bit, which has grown evenly to `bit_price` when relaxing is over."""
        steps = self.relax_from + self.relax_steps - self.through_from
        return self.bit_price * min(1.0, (step - self.through_from) / max(steps, 1))


def schedule_mistakes(settings: Mapping[str, Any]) -> Iterator[str]:
    """All that is wrong with the settings of a schedule."""
    yield from number_mistakes(settings, "tying_strength", "bit_price")
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
    if settings.get("bit_price") and not through:
        yield "bit_price needs through_from, the step at which it begins to grow"
