"""The methods as the package offers them: with the coder, which measures the size of a file.

Takes     the methods, which do not know the format, and the format, which does not know methods.
Gives     METHODS, and each class under its own name.
Unaware   of what a method does.
"""

from dataclasses import field

from reefknot.format import encode
from reefknot.methods import METHODS as WITHOUT_CODER
from reefknot.methods import Method
from reefknot.state import TiedState


def file_bytes(state: TiedState) -> int:
    """The size of a `.reef` file of this state."""
    return len(encode(state))


def _with_coder(method: type[Method]) -> type[Method]:
    """The same class, whose `size_of` asks the coder by default."""
    body = {
        "__module__": __name__,
        "__doc__": method.__doc__,
        "__annotations__": {"size_of": "SizeOf | None"},
        "size_of": field(default=file_bytes, kw_only=True),
    }
    return type(method.__name__, (method,), body)


METHODS: dict[str, type[Method]] = {
    name: _with_coder(method) for name, method in WITHOUT_CODER.items()
}
globals().update({method.__name__: method for method in METHODS.values()})
