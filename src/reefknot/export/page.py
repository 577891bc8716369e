"""One HTML file: a drawing pad, the network that reads it, and the `.reef` file it comes from.

Takes     a `.reef` file (or a state) and the module that it belongs to, for images of one channel.
Gives     `html`, which writes the page: decoder, layers, file and style, nothing else to load.
Unaware   of decoding and of running layers: in the browser, web/reef.js and web/page.js do that.

The values are in the page once, as the bytes of the file. Script, style and text are compressed by
deflate to half of their size; browsers can decompress them.
"""

import json
import math
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from torch import Tensor, nn

from reefknot.errors import ConfigError, did_you_mean
from reefknot.export.chain import program as chain_of
from reefknot.export.program import (
    ACTIVATIONS,
    Activation,
    Conv2d,
    Flatten,
    Layer,
    Linear,
    Pair,
    Pool,
    Program,
    Shape,
    Softmax,
)
from reefknot.export.shrunk import Source, with_values
from reefknot.files import read_bytes, write_atomically
from reefknot.format import decode, encode
from reefknot.progress import doing
from reefknot.rates import rate_file
from reefknot.state import TiedState

_MAX_BYTES = 1 << 28  # the limit of the decoder in the page


@dataclass(frozen=True)
class Pixels:
    """How images became inputs: (pixel - mean) / deviation, of pixels from 0 to `full`.

    The numbers are those of MNIST, which most networks for it were trained with.
    """

    mean: float = 255 * 0.1307
    deviation: float = 255 * 0.3081
    full: float = 255.0


@dataclass(frozen=True)
class Page:
    """What was written, in bytes."""

    file: Path
    page_bytes: int
    file_bytes: int


@doing("exporting")
def html(
    source: Source,
    model: nn.Module,
    out: Path | str,
    example_input: Tensor | None = None,
    *,
    pixels: Pixels = Pixels(),  # noqa: B008  # frozen
    title: str | None = None,
) -> Page:
    """Write a page in which a digit is drawn and read.

    Args:
        source: the `.reef` file, or a state. The error in a run's record beside the file is shown.
        model: the module that it belongs to; its own values do not matter.
        out: the page.
        example_input: a batch of one; not needed if the first layer is dense.
        pixels: how images were normalised.
        title: the name of the network; by default that in the record, or of its class.
    """
    if source is None:
        raise ConfigError("a page carries a .reef file: give the file, or a state")
    data = encode(source) if isinstance(source, TiedState) else read_bytes(Path(source))
    where = "the state" if isinstance(source, TiedState) else str(source)
    state = decode(data, source=where, max_bytes=_MAX_BYTES)
    if data[3] & 0x80:
        raise ConfigError(
            f"{where} is an indexed file of {state.num_weights:,} elements, which a page cannot "
            "read; pack at most 2,097,152 elements, and not with --effort fast"
        )
    if data[3] != 0x01:
        raise ConfigError(
            f"{where} is of version {data[3]} of the format, with scales, which a page cannot "
            "read; pack with --clusters, or with a budget and inputs"
        )
    program = chain_of(*with_values(source, model, example_input))
    width = _width(program)
    network = _network(program, state)
    record = {} if isinstance(source, TiedState) else _record(Path(source), len(data))
    if title and any("\ud800" <= sign <= "\udfff" for sign in title):
        raise ConfigError(f"the title {title!a} is not valid Unicode; choose another")
    name = title or record.get("network") or type(model).__name__
    facts = f"{state.num_weights:,} weights, {rate_file(state, len(data)):,.0f} times smaller than "
    facts += "in float32"
    if {"test_error", "data"} <= record.keys():
        tested_on = record["data"].removesuffix("-warped")  # training images are warped
        facts += f", {record['test_error']:.2f} % error on the test images of {tested_on}"
    page = _page(data, network, width, pixels, f"{name} in {len(data):,} bytes", facts)
    write_atomically(out, page)
    return Page(Path(out), len(page), len(data))


def _record(source: Path, file_bytes: int) -> dict[str, Any]:
    """What the record of the run that wrote the file tells, if it is beside it.

    Entries that no run writes are left out.
    """
    path = source.with_name("record.json")
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(record, dict) or record.get("file_bytes") != file_bytes:
        return {}
    return {key: record[key] for key, fits in _RECORDED.items() if fits(record.get(key))}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_percent(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100


_RECORDED = {"network": _is_text, "data": _is_text, "test_error": _is_percent}


# -- layers ----------------------------------------------------------------------------------


def _width(program: Program) -> int:
    """The width of the square image that the network reads."""
    size = math.prod(program.in_shape)
    width = math.isqrt(size)
    planes = program.in_shape[:-2] if len(program.in_shape) > 1 else ()
    if width * width != size or math.prod(planes) != 1 or width < 8:
        raise ConfigError(
            f"the network takes inputs of shape {program.in_shape}; a page draws square images of "
            "one channel, such as (1, 28, 28) or (784,)"
        )
    if len(program.out_shape) != 1 or not 1 < program.out_shape[0] <= 100:
        raise ConfigError(
            f"the network gives outputs of shape {program.out_shape}; a page shows 2 to 100 classes"
        )
    return width


def _network(program: Program, state: TiedState) -> str:
    """The layers in JavaScript: functions of an element, and arrays that `slide` takes."""
    values = {name: (dtype.tag, array) for name, dtype, array in state.arrays()}
    layers = list(program.layers)
    if layers and isinstance(layers[-1], Softmax):
        layers.pop()  # the page applies a softmax anyway
    written = [text for layer in layers if (text := _written(layer, values))]
    return f"[{','.join(written)}]"


def _written(layer: Layer, values: dict[str, tuple[str, np.ndarray]]) -> str:
    if isinstance(layer, Flatten):
        return ""
    if isinstance(layer, Activation):
        text = ACTIVATIONS[layer.kind].javascript
        return text.format(slope=layer.slope, low=layer.low, high=layer.high)
    if isinstance(layer, Softmax):
        raise ConfigError(f"{layer.name!r} is a Softmax inside the network, which a page cannot do")
    if isinstance(layer, Pool):
        factor = -1 if layer.kind == "max" else 1 / (layer.kernel[0] * layer.kernel[1])
        windows = (layer.kernel, layer.stride, layer.in_shape[0], layer.padding)
        return _array("", factor, layer, *windows)
    assert isinstance(layer, Linear | Conv2d)
    _check_values(layer, values)
    if isinstance(layer, Linear):
        return _array(layer.name, 0, layer)
    kernel = layer.weight.shape[2:]
    windows = (kernel, layer.stride, layer.groups, layer.padding)
    return _array(layer.name, 0, layer, *windows, layer.dilation)


def _array(name: str, factor: float, layer: Layer, *windows: Pair | int) -> str:
    """The arguments of `slide`: kernel, stride, groups, padding, dilation; defaults left out."""

    def planes(shape: Shape) -> Shape:
        return shape if len(shape) == 3 else (math.prod(shape), 1, 1)

    usual = ((1, 1), (1, 1), 1, (0, 0), (1, 1))
    given = [*windows]
    while given and given[-1] == usual[len(given) - 1]:
        given.pop()
    content = (name, factor, planes(layer.in_shape), planes(layer.out_shape), *given)
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _check_values(layer: Linear | Conv2d, values: dict[str, tuple[str, np.ndarray]]) -> None:
    """The page finds a layer's values by its name: they must be there, and be used as they are."""
    if layer.scale is not None:
        raise ConfigError(
            f"a BatchNorm follows {layer.name!r}, which a page cannot do; "
            "reefknot.fold_batchnorm(model) makes it part of the layer: export what it gives"
        )
    for part in ("weight", "bias"):
        name, wanted = f"{layer.name}.{part}", getattr(layer, part)
        tag, found = values.get(name, ("F32", None))
        if found is None and part == "bias" and not wanted.any():
            continue
        if found is None:
            hint = did_you_mean(name, values)
            raise ConfigError(
                f"the layer {layer.name!r} has no tensor {name!r} in the file, which a page looks "
                f"for; use a torch module for it{hint and f' ({hint})'}"
            )
        if tag != "F32" or not np.array_equal(found, wanted):
            raise ConfigError(f"{name!r} is of type {tag}; a page reads float32 (F32)")


# -- the file --------------------------------------------------------------------------------

_SIGNS = [chr(code) for code in range(33, 127) if chr(code) not in '"<\\\\']


def _text(data: bytes) -> str:
    r"""Bytes as a list of printable text, with 13 bits in two of 91 signs, and their number.

    >>> _text(b"\0\0")
    '["!!!!",2]'
    """
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    thirteens = np.pad(bits, (0, -len(bits) % 13)).reshape(-1, 13)
    numbers = (thirteens @ (1 << np.arange(13))).tolist()
    signs = "".join(_SIGNS[number % 91] + _SIGNS[number // 91] for number in numbers)
    return f'["{signs}",{len(data)}]'


def _web(name: str) -> str:
    return resources.files("reefknot.export").joinpath("web", name).read_text("utf-8")


def _page(data: bytes, network: str, width: int, pixels: Pixels, title: str, facts: str) -> bytes:
    layout, _, script = _web("page.min.html").partition("\n")[2].partition("<script>")
    scales = json.dumps([width, pixels.mean, pixels.deviation, pixels.full])
    texts = json.dumps([title, facts]).replace("<", "\\u003c")
    end = "bytes: the file, a decoder, the network and a pad. It works offline and sends nothing. "
    texts += f".concat(`This page is ${{SIZE}} {end}Made by reefknot.`)"
    start = f"const NETWORK={network},PIXELS={scales},TEXTS={texts}"
    packer = zlib.compressobj(9, wbits=-15, memLevel=9)
    packed = packer.compress(f"{layout}<script>{{{start};{script}}}".encode()) + packer.flush()
    # The script of the shell turns text back into bytes, inflates them, and puts what they hold
    # into the page: layout, script.
    name = title.replace("&", "&amp;").replace("<", "&lt;")
    shell = Template(_web("shell.html"))
    rest = shell.substitute(title=name, file=_text(data), page=_text(packed))
    size = len(rest.encode()) + len("00,000")  # the page states its own size
    while len(rest.encode()) + len(f"{size:,}") != size:
        size = len(rest.encode()) + len(f"{size:,}")
    before, _, after = rest.rpartition('SIZE=""')  # a title may have this, too
    return f'{before}SIZE="{size:,}"{after}'.encode()
