"""The tables of a network in C: stages, weights, and constants where all stages agree.

Takes     stages with their places in the arena, and the weights as a bit stream.
Gives     text.
Unaware   of the engine's code, and of inputs as bytes.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from reefknot.errors import ConfigError
from reefknot.export.program import Activation
from reefknot.export.stages import Plan, Stage
from reefknot.export.weight_bits import WeightBits


def defines(constants: Mapping[str, object]) -> str:
    """Constants, one on a line."""
    return "".join(f"#define {name} {value}\n" for name, value in constants.items())


def slides(planned: Plan) -> bool:
    """Whether any kernel is applied at more than one position."""
    return not all(stage.dense for stage in planned.stages)


def kind_of(activation: Activation | None) -> tuple[str, float, float, float]:
    """What distinguishes one activation from another."""
    if activation is None:
        return "", 0.0, 0.0, 0.0
    return activation.kind, activation.slope, activation.low, activation.high


def kinds_of(planned: Plan) -> list[tuple[str, float, float, float]]:
    """The activations that occur, after "none"."""
    used = {kind_of(a) for stage in planned.stages for a in (stage.before, stage.after)}
    return [kind_of(None), *sorted(used - {kind_of(None)})]


def _fields(planned: Plan, bits: WeightBits) -> dict[str, list[int]]:
    """Numbers of each stage, by name."""
    rows: dict[str, list[int]] = {}
    kinds = kinds_of(planned)
    for number, stage in enumerate(planned.stages):
        fields = {
            "ROWS": len(stage.conv.weight),
            "IN": planned.places[number],
            "OUT": planned.places[number + 1],
            "FIRST_VALUE": bits.table(number),
            "VALUES": bits.count(number),
            "BEFORE": kinds.index(kind_of(stage.before)),
        }
        if slides(planned):
            fields |= _sliding(stage) | {"AFTER": kinds.index(kind_of(stage.after))}
        for name, value in fields.items():
            rows.setdefault(name, []).append(value)
    return rows


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
        "KERNEL_WIDTH": kernel[1],
        "KERNEL_HEIGHT": kernel[0],
        "DILATION_X": across,
        "LINE_SKIP": down * source.line - kernel[1] * across,
        "PLANE_SKIP": source.plane - kernel[0] * down * source.line,
        "STRIDE_X": conv.stride[1],
        "STRIDE_Y": conv.stride[0] * source.line,
        "WIDTH": width,
        "HEIGHT": height,
        "POOL_MEAN": int(pool is not None and pool.kind == "mean"),
        "POOL_WIDTH": window[1],
        "POOL_HEIGHT": window[0],
        "POOL_STRIDE_X": stride[1],
        "POOL_STRIDE_Y": stride[0],
        "POOL_LEFT": padding[1],
        "POOL_TOP": padding[0],
        "OUT_COLUMNS": target.width,
        "OUT_HEIGHT": target.height,
        "OUT_WIDTH": target.line,
        "OUT_PLANE": target.plane,
        "OUT_START": target.start,
        "OUT_SIZE": target.size,
    }


def stage_table(planned: Plan, bits: WeightBits) -> str:
    """The struct of a stage, and all of them; what they share as constants."""
    fields = _fields(planned, bits)
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
        f"{defines({**fixed, **names})}\n"
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


def weight_tables(planned: Plan, bits: WeightBits, scaled: bool) -> str:
    """Codes, values, biases and the bit stream."""
    text = _bytes("step_code", bits.step_code.counts) + _bytes("step_bits", bits.step_code.symbols)
    text += _bytes("value_code", bits.value_code.counts)
    text += _floats("values", np.concatenate(bits.values))
    if bits.biases == "table":
        text += _floats("biases", np.concatenate([s.conv.bias for s in planned.stages]))
    if scaled:
        one = [
            np.ones(len(s.conv.weight), np.float32) if s.conv.scale is None else s.conv.scale
            for s in planned.stages
        ]
        text += _floats("scales", np.concatenate(one))
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
