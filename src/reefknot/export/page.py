"""One HTML file: images drawn or chosen, the network that reads them, and its `.reef` file.

Takes     a `.reef` file (or a state) and its module, which reads images of one or three channels.
Gives     `html`, which writes the page: decoder, layers, file and style, nothing else to load.
Unaware   of decoding and of running layers: in the browser, web/reef.js and web/page.js do that.

The values are in the page once, as the bytes of the file. Script, style and text are compressed by
deflate to half of their size; browsers can decompress them.
"""

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from torch import Tensor, nn

from reefknot.errors import ConfigError, did_you_mean
from reefknot.export import program as ops
from reefknot.export.layers import program as program_of
from reefknot.export.program import (
    ACTIVATIONS,
    Layer,
    Numbers,
    Pair,
    Planes,
    Program,
    planes_of,
    scales_of,
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

    Mean and deviation are numbers, or have one for each channel. Those here are of MNIST, which
    most networks for it were trained with.
    """

    mean: Numbers = 255 * 0.1307
    deviation: Numbers = 255 * 0.3081
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
    pixels: Pixels | None = None,
    title: str | None = None,
    labels: Sequence[str] = (),
) -> Page:
    """Write a page in which an image is drawn or chosen, and read.

    Args:
        source: the `.reef` file, or a state. The error in a run's record beside the file is shown.
        model: the module that it belongs to; its own values do not matter.
        out: the page.
        example_input: a batch of one; not needed if the first layer is dense.
        pixels: how images were normalised; those of one channel are like MNIST's by default.
        labels: names of the classes; without them, classes have numbers.
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
    program = program_of(*with_values(source, model, example_input))
    start = _start(program, state, pixels, labels)
    record = {} if isinstance(source, TiedState) else _record(Path(source), len(data))
    if title and any("\ud800" <= sign <= "\udfff" for sign in title):
        raise ConfigError(f"the title {title!a} is not valid Unicode; choose another")
    name = title or record.get("network") or type(model).__name__
    rate = rate_file(state, len(data))
    facts = f"{state.num_weights:,} weights, {rate:,.{int(rate < 10)}f} times smaller than "
    facts += "in float32"
    if {"test_error", "data"} <= record.keys():
        tested_on = record["data"].removesuffix("-warped")  # training images are warped
        facts += f", {record['test_error']:.2f} % error on the test images of {tested_on}"
    page = _page(data, start, f"{name} in {len(data):,} bytes", facts)
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


def _start(program: Program, state: TiedState, pixels: Pixels | None, labels: Sequence[str]) -> str:
    """The constants of a page: its network, what it shows of it, its images and its classes."""
    planes, height, width = _image(program)
    if pixels is None and planes > 1:
        raise ConfigError(
            "how the colour images of the network were normalised is not known: give mean and "
            "standard deviation of their pixels, from 0 to 255 (--mean and --std, or pixels=)"
        )
    pixels = pixels or Pixels()
    scales = scales_of(pixels.mean, pixels.deviation, planes)
    if len(program.out_shape) != 1 or not 1 < program.out_shape[0] <= 10_000:
        raise ConfigError(
            f"the network gives outputs of shape {program.out_shape}; a page shows 2 to 10,000 "
            "classes"
        )
    if labels and (len(labels) != program.out_shape[0] or not all(map(_is_text, labels))):
        raise ConfigError(
            f"the network has {program.out_shape[0]} classes, and labels are one printable text "
            f"for each of them; found {len(labels)}"
        )
    network, views = _network(program, state)
    shown = [list(labels), views, [planes, height, width, *scales, pixels.full]]
    names = ("LABELS", "VIEWS", "PIXELS")
    return network + "".join(f",{n}={_json(v)}" for n, v in zip(names, shown, strict=True))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _image(program: Program) -> Planes:
    """Channels, height and width of the images that the network reads."""
    shape = program.in_shape
    size, side = math.prod(shape), math.isqrt(math.prod(shape))
    if len(shape) < 3 and side * side == size and math.prod(shape[:-2]) == 1:
        shape = (1, side, side)  # an image in one row
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < 8:
        raise ConfigError(
            f"the network takes inputs of shape {program.in_shape}; a page reads images of one or "
            "three channels and 8 pixels or more, such as (1, 28, 28), (784,) or (3, 32, 32)"
        )
    return shape


# Functions that only some networks need. x is the value before, r are all, w gives tensors.
_HELPERS = {
    "NORM": "(n,e,p)=>(x,r,w)=>{let[s,b,m,v]=['weight','bias','running_mean','running_var'].map(k=>"
    "w(n+'.'+k));return x.map((a,i)=>(i=i/p|0,(a-m[i])/Math.sqrt(v[i]+e)*(s?s[i]:1)+(b?b[i]:0)))}",
    "PICK": "(c,[h,w],[a,b],[s,t],[m,n])=>x=>new Float32Array(c.length*m*n).map((v,i)=>{let k="
    "c[i/m/n|0],y=a+s*((i/n|0)%m),z=b+t*(i%n);return k<0||y<0||z<0||y>=h||z>=w?0:x[(k*h+y)*w+z]})",
}


def _network(program: Program, state: TiedState) -> tuple[str, list[Any]]:
    """The operations in JavaScript: functions, and arrays that `slide` takes; and what to show.

    They are a chain: each works on what the one before gave; where that is not what it reads, one
    that recalls an earlier result is put between.
    """
    values = {name: (dtype.tag, array) for name, dtype, array in state.arrays()}
    layers = program.layers
    if layers and isinstance(layers[-1], ops.Softmax):
        layers = layers[:-1]  # the page applies a softmax anyway
    written: list[str] = []
    results = {0: 0}  # which result each value is
    ends: dict[int, list[Any]] = {}  # views, by the value that they end with
    views: list[Any] = []
    for number, layer in enumerate(layers, 1):
        first = results[number] = results[layer.inputs[0]]
        if isinstance(layer, ops.Reshape):
            continue
        if first != len(written):
            written.append(f"(x,r)=>r[{first}]")
        written.append(_written(layer, values, results))
        results[number] = len(written)
        if isinstance(layer, ops.Linear | ops.Conv2d) and number < len(layers):
            ends[number] = [layer.name, len(written), *planes_of(layer.out_shape)]
            views.append(ends[number])
        elif isinstance(layer, ops.Norm | ops.Activation) and layer.inputs[0] in ends:
            view = ends[number] = ends.pop(layer.inputs[0])
            view[1] = len(written)
    if results[len(layers)] != len(written):
        written.append(f"(x,r)=>r[{results[len(layers)]}]")
    text = ",".join(written)
    helpers = "".join(f"{name}={body}," for name, body in _HELPERS.items() if name in text)
    return f"const {helpers}NETWORK=[{text}]", [view for view in views if view[1] < len(written)]


def _written(
    layer: Layer, values: dict[str, tuple[str, np.ndarray]], results: dict[int, int]
) -> str:
    if isinstance(layer, ops.Activation):
        text = ACTIVATIONS[layer.kind].javascript
        return f"x=>x.map({text.format(slope=layer.slope, low=layer.low, high=layer.high)})"
    if isinstance(layer, ops.Pool):
        factor = -1 if layer.kind == "max" else 1 / (layer.kernel[0] * layer.kernel[1])
        return _slide("", factor, layer, layer.kernel, layer.stride, layer.in_shape[0],
                      layer.padding)  # fmt: skip
    if isinstance(layer, ops.Linear | ops.Conv2d):
        _check_values(layer.name, {"weight": layer.weight, "bias": layer.bias}, values)
        if isinstance(layer, ops.Linear):
            return _slide(layer.name, 0, layer)
        windows = (layer.weight.shape[2:], layer.stride, layer.groups, layer.padding)
        return _slide(layer.name, 0, layer, *windows, layer.dilation)
    size = math.prod(planes_of(layer.in_shape)[1:])
    if isinstance(layer, ops.Norm):
        own = ("weight", "bias", "running_mean", "running_var")
        _check_values(layer.name, dict.fromkeys(own), values)
        return f"NORM({_json(layer.name)},{layer.epsilon},{size})"
    if isinstance(layer, ops.Join):
        other, sign = f"r[{results[layer.inputs[1]]}]", "+" if layer.kind == "add" else "*"
        is_whole = math.prod(layer.second[1:]) == size
        at = ("i" if is_whole else f"i/{size}|0") if layer.second[0] > 1 else f"i%{size}"
        return f"(x,r)=>x.map((v,i)=>v{sign}{other}[{at if math.prod(layer.second) > 1 else 0}])"
    if isinstance(layer, ops.Cat):
        parts = ",".join(f"...r[{results[number]}]" for number in layer.inputs)
        return f"(x,r)=>Float32Array.of({parts})"
    if isinstance(layer, ops.Pick):
        sides = (planes_of(layer.in_shape)[1:], layer.start, layer.step)
        return f"PICK({_json((layer.channels, *sides, planes_of(layer.out_shape)[1:]))[1:-1]})"
    raise ConfigError(f"{layer.name!r} is a Softmax inside the network, which a page cannot do")


def _slide(name: str, factor: float, layer: Layer, *windows: Pair | int) -> str:
    """The arguments of `slide`: kernel, stride, groups, padding, dilation; defaults left out."""
    usual = ((1, 1), (1, 1), 1, (0, 0), (1, 1))
    given = [*windows]
    while given and given[-1] == usual[len(given) - 1]:
        given.pop()
    return _json((name, factor, planes_of(layer.in_shape), planes_of(layer.out_shape), *given))


def _check_values(
    layer: str, parts: dict[str, Any], values: dict[str, tuple[str, np.ndarray]]
) -> None:
    """The page finds a layer's values by its name: they must be there, and be used as they are."""
    for part, wanted in parts.items():
        name = f"{layer}.{part}"
        tag, found = values.get(name, ("F32", None))
        optional = part in ("weight", "bias") if wanted is None else part == "bias"
        if found is None and optional and (wanted is None or not wanted.any()):
            continue
        if found is None:
            hint = did_you_mean(name, values)
            raise ConfigError(
                f"the layer {layer!r} has no tensor {name!r} in the file, which a page looks "
                f"for; use a torch module for it{hint and f' ({hint})'}"
            )
        if tag != "F32" or (wanted is not None and not np.array_equal(found, wanted)):
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


def _page(data: bytes, start: str, title: str, facts: str) -> bytes:
    layout, _, script = _web("page.min.html").partition("\n")[2].partition("<script>")
    texts = _json([title, facts])
    end = "bytes: the file, a decoder and the network. It works offline and sends nothing. "
    texts += f".concat(`This page is ${{SIZE}} {end}Made by reefknot.`)"
    start += f",TEXTS={texts}"
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
