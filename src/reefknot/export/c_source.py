"""A network as C99: one source, one header, `net_run(input, output)`.

Takes     a `.reef` file (or a state), a module, an example of its input; floats or bytes as inputs.
Gives     net.c and net.h in a folder: tables between `prologue.c` and `engine.c`, which interprets
          them.
Unaware   of compilers and chips: `hardware.py` runs those.

What differs between stages is a field of a struct in flash; what all stages share is a constant, so
that the compiler drops what a network does not need.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np
from torch import Tensor, nn

from reefknot.errors import ConfigError, ReefknotError
from reefknot.export.program import (
    ACTIVATIONS,
    Activation,
    Numbers,
    Program,
    Scales,
    planes_of,
    scales_of,
)
from reefknot.export.shrunk import Source, program_of
from reefknot.export.stages import Plan, Stage, plan
from reefknot.export.weight_bits import Matrix, WeightBits, weight_bits
from reefknot.files import write_atomically
from reefknot.progress import doing


@dataclass(frozen=True)
class Bytes:
    """Inputs are bytes; the network was trained on (byte - mean) / deviation.

    Both are numbers, or have one for each channel.
    """

    mean: Numbers
    deviation: Numbers


@dataclass(frozen=True)
class Exported:
    """What was written: the files, the bytes of tables in flash and of the arena in RAM."""

    files: tuple[Path, ...]
    table_bytes: int
    arena_bytes: int


@doing("exporting")
def c(
    source: Source,
    model: nn.Module,
    out: Path | str,
    example_input: Tensor | None = None,
    *,
    as_bytes: Bytes | None = None,
) -> Exported:
    """Write a network as net.c and net.h into the folder `out`.

    Args:
        source: a `.reef` file or a state; None for the values that the module has.
        model: the module that the values belong to.
        out: the folder, which is created if it does not exist.
        example_input: a batch of one; not needed if the first layer is dense.
        as_bytes: take bytes instead of floats, with this normalisation folded into the first layer.
    """
    program = program_of(source, model, example_input)
    header, code, exported = _written(program, as_bytes)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReefknotError(f"{folder} could not be made: {error.strerror or error}") from error
    files = (folder / "net.c", folder / "net.h")
    for path, text in zip(files, (code, header), strict=True):
        write_atomically(path, text.encode())
    return Exported(files, *exported)


def _written(program: Program, as_bytes: Bytes | None) -> tuple[str, str, tuple[int, int]]:
    """net.h, net.c, and the bytes of tables and arena."""
    channels = planes_of(program.in_shape)[0]
    scales = None
    if as_bytes is not None:
        scales = scales_of(as_bytes.mean, as_bytes.deviation, channels)
    if scales and max(scales[0]) > 255:
        raise ConfigError(f"bytes have a mean from 0 to 255, found {max(scales[0])}")
    planned = plan(program, copies=scales is not None and max(map(len, scales)) > 1)
    matrices = [
        Matrix(s.conv.name, s.conv.weight.reshape(len(s.conv.weight), -1), s.bias, s.scale)
        for s in planned.stages
    ]
    bits = weight_bits(matrices)
    parts = [
        _text("prologue.c"),
        _switches(planned, bits, as_bytes is not None),
        _stage_table(planned, bits, [matrix.has_tables for matrix in matrices]),
        _weight_tables(bits),
        *_activations(planned),
        *_copying(planned, scales),
        *_byte_constants(planned, matrices[0], scales),
        _text("engine.c"),
    ]
    header = Template(_text("net.h")).substitute(
        inputs=math.prod(program.in_shape),
        outputs=math.prod(program.out_shape),
        arena=4 * max(planned.arena, 1),
        table=bits.flash_bytes,
        shape=" x ".join(map(str, program.in_shape)),
        type="uint8_t" if as_bytes else "float",
        what="bytes" if as_bytes else "floats, normalised as in training",
    )
    return header, "\n".join(parts), (bits.flash_bytes, 4 * planned.arena)


def _text(name: str) -> str:
    return resources.files("reefknot.export").joinpath(name).read_text()


def _switches(planned: Plan, bits: WeightBits, as_bytes: bool) -> str:
    areas = [area for s in planned.stages for area in (s.source, s.second, s.target)]
    large = max(*(area.size for area in areas), planned.arena) > 32_000
    constants = {
        "NET_STAGES": len(planned.stages),
        "NET_VALUES": max(map(len, bits.values)),
        "NET_SLIDES": int(_slides(planned)),
        "NET_PADS": int(any(_clears(stage) for stage in planned.stages)),
        "NET_COPIES": int(planned.copied is not None),
        "NET_BYTES": int(as_bytes and planned.copied is None),
        "NET_BIASES": int(bits.biases != "none"),
        "NET_TABLES": int(bits.biases == "table"),
        "NET_SCALES": int(len(bits.tables) > 1),
        "NET_JOINS": int(any(stage.join for stage in planned.stages)),
        "NET_SOFTMAX": 0 if planned.softmax is None else 1 + planned.softmax.log,
    }
    if _slides(planned):
        most = max(int(np.count_nonzero(stage.conv.weight, axis=(1, 2, 3)).max())
                   for stage in planned.stages)  # fmt: skip
        constants["NET_TAPS"] = max(most, 1)
        sizes = [stage.conv.weight[0].size for stage in planned.stages]
        few = any(size < bits.count(number) for number, size in enumerate(sizes))
        constants["NET_DIRECT"] = int(few)
    return f"{_defines(constants)}\ntypedef {'int32_t' if large else 'int16_t'} place_t;\n"


# -- functions that differ from network to network -------------------------------------------


def _activations(planned: Plan) -> list[str]:
    """The function `activated`."""
    kinds = _kinds_of(planned)[1:]
    text = ""
    for number, (kind, *numbers) in enumerate(kinds, start=1):
        slope, low, high = map(float_literal, numbers)
        formula = ACTIVATIONS[kind].c.format(slope=slope, low=low, high=high)
        text += f"    if (kind == {number})\n        return {formula};\n"
    if text:
        text = f"static float activated(uint8_t kind, float x)\n{{\n{text}    return x;\n}}\n"
    needs_math = planned.softmax or any(word in text for word in ("expf", "tanhf", "erff"))
    include = ["#include <math.h>\n"] * bool(needs_math)
    return [*include, text or "#define activated(kind, x) (x)\n"]


def _copying(planned: Plan, scales: Scales | None) -> list[str]:
    """Constants for an input that is copied, because the first layer pads it."""
    source = planned.copied
    if source is None:
        return []
    text, value = "", "(value)"
    if scales:
        tables = {"means": scales[0], "factors": tuple(1 / one for one in scales[1])}
        if max(map(len, tables.values())) > 1:
            rows = (np.array(one * (source.shape[0] // len(one))) for one in tables.values())
            text = "".join(map(_floats, tables, rows))
            mean, scale = (f"FLASH_FLOAT({name} + plane)" for name in tables)
        else:
            mean, scale = (float_literal(numbers[0]) for numbers in tables.values())
        value = f"(((value) - {mean}) * {scale})"
    planes, height, width = source.shape
    constants = {
        "COPY_TO": source.place, "COPY_START": source.at(), "COPY_VALUE(value)": value,
        "COPY_PLANES": planes, "COPY_HEIGHT": height, "COPY_WIDTH": width,
        "COPY_SIZE": source.size, "COPY_PLANE": source.plane, "COPY_LINE": source.line,
    }  # fmt: skip
    return [text, _defines(constants)]


def _byte_constants(planned: Plan, first: Matrix, scales: Scales | None) -> list[str]:
    """Constants for bytes: sums are in fixed point, with as many fraction bits as fit."""
    if scales is None or planned.copied is not None:
        return []
    most = 1
    for value in np.unique(first.weight[first.weight != 0]):
        most = max(most, int(np.count_nonzero(first.weight == value, axis=1).max()))
    shift = min(16, 31 - (255 * most).bit_length())
    if shift < 8:
        raise ConfigError(
            f"{first.name!r} sums {most:,} bytes for one value, too many for 32 bits; use floats"
        )
    constants = {
        "BYTE_SHIFT": shift,
        "BYTE_MEAN": f"INT32_C({round(scales[0][0] * (1 << shift))})",
        "BYTE_SCALE": float_literal(1 / (scales[1][0] * (1 << shift))),
    }
    return [_defines(constants)]


# -- tables: stages, weights, and constants where all stages agree ---------------------------


def _defines(constants: Mapping[str, object]) -> str:
    """Constants, one on a line."""
    return "".join(f"#define {name} {value}\n" for name, value in constants.items())


def _slides(planned: Plan) -> bool:
    """Whether any kernel is applied at more than one position."""
    return not all(stage.dense for stage in planned.stages)


def _kind_of(activation: Activation | None) -> tuple[str, float, float, float]:
    """What distinguishes one activation from another."""
    if activation is None:
        return "", 0.0, 0.0, 0.0
    return activation.kind, activation.slope, activation.low, activation.high


def _kinds_of(planned: Plan) -> list[tuple[str, float, float, float]]:
    """The activations that occur, after "none"."""
    used = {_kind_of(a) for stage in planned.stages for a in (stage.before, stage.after)}
    return [_kind_of(None), *sorted(used - {_kind_of(None)})]


def _fields(planned: Plan, bits: WeightBits, tabled: Sequence[bool]) -> dict[str, list[int]]:
    """Numbers of each stage, by name."""
    rows: dict[str, list[int]] = {}
    kinds = _kinds_of(planned)
    for number, stage in enumerate(planned.stages):
        down, across = stage.conv.padding
        fields = {
            "ROWS": len(stage.conv.weight),
            "IN": stage.source.place + stage.source.at(-down, -across),
            "OUT": stage.target.place,
            "FIRST_VALUE": bits.table(number),
            "VALUES": bits.count(number),
            "TABLED": int(tabled[number] and bits.biases == "table"),
            "BEFORE": kinds.index(_kind_of(stage.before)),
        }
        if _slides(planned):
            fields |= _sliding(stage) | _joining(stage)
            fields["AFTER"] = kinds.index(_kind_of(stage.after))
        for name, value in fields.items():
            rows.setdefault(name, []).append(value)
    return rows


def _clears(stage: Stage) -> bool:
    """Whether zeros around the outputs must be written."""
    return any(stage.target.padding) and not stage.in_place


def _joining(stage: Stage) -> dict[str, int]:
    """Where the second operand is: a dimension of 1 stands for all."""
    if stage.join is None:
        return dict.fromkeys(("JOIN", "OTHER", "OTHER_PLANE", "OTHER_LINE", "OTHER_STEP"), 0)
    area = stage.second
    planes, height, width = (int(n > 1) for n in area.shape)
    return {
        "JOIN": ("add", "mul").index(stage.join.kind) + 1,
        "OTHER": area.place + area.at(),
        "OTHER_PLANE": planes * area.plane,
        "OTHER_LINE": height * area.line,
        "OTHER_STEP": width,
    }


def _sliding(stage: Stage) -> dict[str, int]:
    conv, source, target = stage.conv, stage.source, stage.target
    kernel, (down, across) = conv.weight.shape[2:], conv.dilation
    pool, (height, width) = stage.pool, conv.out_shape[1:]
    window, stride, padding = (
        (pool.kernel, pool.stride, pool.padding) if pool else ((1, 1), (1, 1), (0, 0))
    )
    return {
        "GROUP_ROWS": len(conv.weight) // conv.groups,
        "GROUP_STEP": conv.weight.shape[1] * source.plane,
        "KERNEL_WIDTH": kernel[1], "KERNEL_HEIGHT": kernel[0], "DILATION_X": across,
        "LINE_SKIP": down * source.line - kernel[1] * across,
        "PLANE_SKIP": source.plane - kernel[0] * down * source.line,
        "STRIDE_X": conv.stride[1], "STRIDE_Y": conv.stride[0] * source.line,
        "WIDTH": width, "HEIGHT": height,
        "POOL_MEAN": int(pool is not None and pool.kind == "mean"),
        "POOL_WIDTH": window[1], "POOL_HEIGHT": window[0],
        "POOL_STRIDE_X": stride[1], "POOL_STRIDE_Y": stride[0],
        "POOL_LEFT": padding[1], "POOL_TOP": padding[0],
        "OUT_COLUMNS": target.shape[2], "OUT_HEIGHT": target.shape[1], "OUT_WIDTH": target.line,
        "OUT_PLANE": target.plane, "OUT_START": target.at(),
        "OUT_SIZE": target.size * _clears(stage),
    }  # fmt: skip


def _stage_table(planned: Plan, bits: WeightBits, tabled: Sequence[bool]) -> str:
    """The struct of a stage, and all of them; what they share as constants."""
    fields = _fields(planned, bits, tabled)
    fixed = {k: v[0] for k, v in fields.items() if len(set(v)) == 1 and k != "ROWS"}
    varying = {k: v for k, v in fields.items() if k not in fixed}
    members = "".join(f"    {_integer(v)} {k.lower()};\n" for k, v in varying.items())
    rows = "".join(
        f"    {{ {', '.join(str(v[i]) for v in varying.values())} }},\n"
        for i in range(len(planned.stages))
    )
    names = {k: f"s.{k.lower()}" for k in varying}
    return (
        "/* What all stages share, and what differs between them. */\n"
        f"{_defines({**fixed, **names})}\n"
        f"struct stage {{\n{members}}};\n\n"
        f"static const struct stage stages[NET_STAGES] FLASH = {{\n{rows}}};\n"
    )


def _integer(values: Sequence[int]) -> str:
    sign = "" if min(values) < 0 else "u"
    for width in (8, 16, 32):
        low, high = (0, 1 << width) if sign else (-(1 << (width - 1)), 1 << (width - 1))
        if low <= min(values) and max(values) < high:
            return f"{sign}int{width}_t"
    raise ConfigError("the network is too large for C tables of 32 bits")


def _weight_tables(bits: WeightBits) -> str:
    """Codes, values, biases, scales and the bit stream."""
    text = _bytes("step_code", bits.step_code.counts) + _bytes("step_bits", bits.step_code.symbols)
    text += _bytes("value_code", bits.value_code.counts)
    text += _floats("values", np.concatenate(bits.values))
    text += "".join(map(_floats, ("biases", "scales"), bits.tables))
    return text + _bytes("weights", bits.data)


def _bytes(name: str, values: Sequence[int]) -> str:
    return _table("uint8_t", name, [str(value) for value in values], 20)


def _floats(name: str, values: np.ndarray) -> str:
    return _table("float", name, [float_literal(value) for value in values], 6)


def float_literal(value: float) -> str:
    """A literal that is exactly this float32.

    >>> float_literal(0.1), float_literal(-3), float_literal(1e-30)
    ('0.1f', '-3.0f', '1e-30f')
    """
    return f"{float(str(np.float32(value)))!r}f"


def _table(kind: str, name: str, items: Sequence[str], width: int) -> str:
    lines = (", ".join(items[i : i + width]) for i in range(0, len(items), width))
    body = ",\n    ".join(lines)
    return f"static const {kind} {name}[{len(items)}] FLASH = {{\n    {body}\n}};\n"
