"""Matrices: pictures of where the weights are that are not zero.

Takes     a `TiedState`.
Gives     what is left of every tensor, a picture of each matrix, and the inputs of the first layer.
Paper     appendix: row and column sparsity, the first layer.
Unaware   of training, and of the page.
"""

from typing import NamedTuple

import numpy as np

from reefknot.lab.report import structure
from reefknot.lab.report.document import Figure
from reefknot.lab.report.markup import tag, text
from reefknot.lab.report.wording import TIMES, count, share
from reefknot.state import KeptTensor, TiedState, TiedTensor

MAX_MASKS = 12


class Survey(NamedTuple):
    """What a walk over all tensors of a state finds; each mask is made once, then dropped."""

    tensors: list[structure.Occupancy]
    heat: Figure | None
    masks: list[Figure]
    hidden: int  # matrices beyond those that are drawn
    full: int  # matrices without a zero, which are not drawn


def survey(state: TiedState) -> Survey:
    """Occupancy of every tensor, pictures of the matrices, and the inputs of the first layer."""
    found: list[structure.Occupancy] = []
    masks: list[Figure] = []
    heat: Figure | None = None
    matrices = full = 0
    for tensor in state.tensors:
        mask = structure.nonzero_mask(state, tensor)
        tensor_found = structure.occupancy(state, tensor, mask)
        found.append(tensor_found)
        if not tensor_found.is_matrix:
            continue
        if tensor_found.density == 1:  # a picture of one color shows nothing
            full += 1
            continue
        matrices += 1
        if matrices + full == 1:
            heat = _heat(tensor, mask)
        if len(masks) < MAX_MASKS:
            masks.append(_mask(tensor_found, mask))
    return Survey(found, heat, masks, matrices - len(masks), full)


def _mask(found: structure.Occupancy, mask: np.ndarray) -> Figure:
    pixels = structure.mask_pixels(mask, found)
    size = f" {TIMES} ".join(map(str, found.shape))
    rows, columns = found.num_dead
    dead = (
        f"{count(rows)} of {count(found.dead_rows.size)} rows and "
        f"{count(columns)} of {count(found.dead_columns.size)} columns are dead"
    )
    label = f"Non-zeros of {found.name}, {size}: {share(found.density)} of its elements; {dead}."
    width = found.elements // found.shape[0]
    tall, wide = structure.block_size((found.shape[0], width))
    notes = [size]
    if len(found.shape) > 2:
        notes.append("a filter in each row")
    if tall * wide > 1:
        notes.append(f"a pixel is {tall} {TIMES} {wide} weights")
    if pixels.shape[0] > 1.5 * pixels.shape[1]:
        pixels = np.ascontiguousarray(pixels.T)  # a tower would leave a hole beside it
        notes.append("drawn on its side: rows run from left to right")
    # Small matrices are enlarged, by a whole factor so that every pixel stays a square.
    zoom = max(1, min(8, 500 // pixels.shape[1], 200 // pixels.shape[0]))
    flat = -(-30 // (pixels.shape[0] * zoom))  # a few rows are drawn taller, or they are a hairline
    if flat > 1:
        pixels = np.repeat(pixels, flat, axis=0)
    body = structure.picture(pixels, zoom=zoom, label=label)
    shape = "wide" if pixels.shape[1] * zoom > 500 else ""
    return Figure(found.name, f"{', '.join(notes)}; {dead}", body, shape=shape)


def _heat(tensor: TiedTensor | KeptTensor, mask: np.ndarray) -> Figure | None:
    counts = structure.input_counts(mask)
    if counts is None:
        return None
    side, most = counts.shape[0], int(counts.max())
    dead = int(np.count_nonzero(counts == 0))
    label = (
        f"Non-zero connections that leave each of {counts.size} inputs, drawn as {side} by {side}: "
        f"at most {most}; {dead} inputs have none."
    )
    note = (
        f"{tensor.name}: the {counts.size} inputs as {side} {TIMES} {side}, "
        f"{count(dead)} without any connection"
    )
    zoom = max(1, 308 // side)
    drawn = structure.picture(structure.count_pixels(counts), zoom=zoom, label=label)
    ramp = np.arange(1, structure.LEVELS + 1, dtype=np.uint8)[None, :]
    scale = structure.picture(ramp, zoom=8, label="shades from few connections to many")
    legend = tag("span", "1 ", scale, text(f" {count(most)}"), class_="ramp")
    none = tag("span", tag("i", class_="swatch"), text("none"), class_="ramp")
    body = drawn + tag("p", legend, none, class_="legend")
    return Figure("Connections per input", note, body)
