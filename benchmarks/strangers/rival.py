"""The obvious rival: gradual magnitude pruning, then quantization-aware training, then zstd or xz.

Takes     a model, its optimizer, the steps, the most bytes of the file, the start, the bits and scores of weights.
Gives     a file: `finish()` gives its bytes, `decode` fills a model from them.

Made to be hard to beat: zeros follow the cubic schedule of Zhu and Gupta (2017), with one threshold for the network, on
magnitudes, or on those that LAMP (Lee et al., 2021) has made comparable, so that no layer dies; each row or channel has
its scale, with the least squared error; the model runs on quantized weights, the optimizer moves latent ones
(straight-through); BatchNorm is folded into scales and a shift per channel, zero for dead ones; biases and LayerNorm
are quantized and pruned, too. How many weights survive is found by encoding. Names and shapes are not in the file (in
`.reef` they count); positions are a mask or gaps, and each stream takes the best of zstd -19, xz -9e, and xz without
contexts.
"""

import itertools
import lzma
import struct
from functools import partial

import numpy as np
import torch
import zstandard
from torch import nn

PRUNING = {"scratch": (0.10, 0.55), "trained": (0.0, 0.45)}  # first and last step, as shares
RENEWALS = 100  # how often zeros are chosen
SLACK = 1.1, 1.05  # of the limit, before quantization and in its middle, which makes more zeros
QUANTIZED, SCALES = 0.60, 25  # the share of the steps before it; steps between choices of scales
SHRINKS = torch.linspace(0.3, 1.0, 15)  # of the largest magnitude of a row, tried as its scale


def xz(**more):
    best = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 20}
    options = {"format": lzma.FORMAT_RAW, "filters": [best | more]}
    return partial(lzma.compress, **options), partial(lzma.decompress, **options)


ZSTD = partial(zstandard.compress, level=19), zstandard.decompress
WAYS = [(bytes, bytes), ZSTD, xz(), xz(lc=0, pb=0)]


def compressed(streams, quickly):
    """One after the other; quickly without zstd and the plain xz, which seldom win."""
    parts = []
    for raw in streams:
        tried = [(way, WAYS[way][0](raw)) for way in ((0, 3) if quickly else range(4))]
        way, data = min(tried, key=lambda pair: len(pair[1]))
        parts.append(struct.pack("<I", way << 24 | len(data)) + data)
    return b"".join(parts)


def decompressed(data):
    while data:
        (head,) = struct.unpack("<I", data[:4])
        end = 4 + (head & 0xFFFFFF)
        yield WAYS[head >> 24][1](data[4:end])
        data = data[end:]


def gaps(alive):
    """Distances between the places as bytes; 255 means 255 and more to come."""
    fillers, rest = np.divmod(np.diff(np.flatnonzero(alive), prepend=-1) - 1, 255)
    out = np.full(len(rest) + fillers.sum(), 255, np.uint8)
    out[np.cumsum(fillers + 1) - 1] = rest
    return out.tobytes()


def encode(integers, floats, quickly=False):
    """The smaller file of these integers (int8) and floats (float16): with a bit mask, or with gaps."""
    alive = integers != 0
    scales = floats.view(np.uint8).reshape(-1, 2).T.tobytes()  # high bytes and low bytes apart
    places = [np.packbits(alive).tobytes(), gaps(alive)]
    files = (compressed([scales, integers[alive].tobytes(), where], quickly) for where in places)
    return min((bytes([way]) + file for way, file in enumerate(files)), key=len)


def decode(model, data):
    """Fills the model from a file."""
    parts = parts_of(model)
    scales, values, where = (np.frombuffer(stream, np.uint8) for stream in decompressed(data[1:]))
    integers = np.zeros(sum(part.tensor.numel() for part in parts), np.int8)
    if data[0] == 0:
        places = np.flatnonzero(np.unpackbits(where, count=len(integers)))
    else:
        places = np.cumsum(where.astype(np.int64) + (where < 255))[where < 255] - 1
    integers[places] = values.view(np.int8)
    floats = torch.tensor(scales.reshape(2, -1).T.copy().view(np.float16).ravel()).float()
    lengths = [len(part.rows()) for part in parts for _ in range(2 if part.norm else 1)]
    floats = iter(floats.split(lengths))
    rows = torch.tensor(integers).split([part.tensor.numel() for part in parts])
    for part, row in zip(parts, rows):
        part.set(row.view_as(part.rows()) * next(floats)[:, None])
        if part.norm:  # folded into the scales, it does nothing but shift
            part.norm.weight.data.fill_(1), part.norm.running_mean.zero_()
            part.norm.running_var.fill_(1 - part.norm.eps), part.norm.bias.data.copy_(next(floats))


def rounded(values, bits):
    """To float16 with so many bits behind the point instead of ten, which compresses better."""
    step = 1 << 10 - bits
    raw = values.half().view(torch.int16).int()
    return ((raw + step // 2) // step * step).short().view(torch.float16).float()


class Part:
    """A parameter and the BatchNorm behind it: a scale for each row, one for what has no rows.

    The gains of LayerNorm are stored as their differences from 1, the `start`.
    """

    def __init__(self, tensor, norm, start, bits):
        self.tensor, self.norm, self.start = tensor, norm, start
        self.most = (1 << (bits if tensor.dim() > 1 else 8) - 1) - 1
        self.mask = torch.ones_like(self.rows())

    def rows(self):
        rows = len(self.tensor) if self.tensor.dim() > 1 else 1
        return self.tensor.data.reshape(rows, -1) - self.start

    def set(self, rows):
        self.tensor.data.copy_((rows + self.start).view_as(self.tensor))

    def scores(self, scoring):
        """Squares; with LAMP relative to the sum of all squares of the tensor that are not smaller."""
        squares = (self.rows() * self.mask).square().flatten()
        if scoring == "magnitude":
            return squares
        ordered, places = squares.sort(descending=True)
        relative = ordered / ordered.cumsum(0).clamp_min(1e-30)
        return torch.empty_like(squares).scatter_(0, places, relative)

    def integers(self, scales):
        steps = self.rows() * self.mask / scales.clamp_min(1e-12)
        return steps.round().clamp(-self.most, self.most)

    def choose_scales(self):
        kept = self.rows() * self.mask
        tried = rounded(
            kept.abs().amax(1, keepdim=True) / self.most * SHRINKS, 6 if self.norm else 1
        )
        each = tried[:, :, None].unbind(1)
        wrong = torch.stack([(self.integers(s) * s - kept).square().sum(1) for s in each], 1)
        self.scales = tried.gather(1, wrong.argmin(1, keepdim=True))

    def floats(self):
        """Scales times the gain of BatchNorm, and its shifts; zero for rows that are dead."""
        alive, scales = self.integers(self.scales).any(1), self.scales[:, 0]
        if not self.norm:
            return [alive * scales]
        gain = self.norm.weight.data / (self.norm.running_var + self.norm.eps).sqrt()
        shifts = self.norm.bias.data - self.norm.running_mean * gain
        return [alive * rounded(scales * gain, 4), alive * rounded(shifts, 4)]


def parts_of(model, bits=8):
    """Every parameter once, those of BatchNorm with the layer before it."""
    parts, batchnorm, layers = {}, (nn.BatchNorm1d, nn.BatchNorm2d), list(model.modules())
    for layer, follower in itertools.pairwise([*layers, None]):
        for name, tensor in layer.named_parameters(recurse=False):
            is_weight = name == "weight"
            norm = follower if is_weight and isinstance(follower, batchnorm) else None
            start = 1.0 if is_weight and isinstance(layer, nn.LayerNorm) else 0.0
            if not isinstance(layer, batchnorm):
                parts.setdefault(id(tensor), Part(tensor, norm, start, bits))
    return list(parts.values())


class PrunedThenQuantized:
    """Follows an optimizer by its hooks, so that the loop is the user's own."""

    def __init__(self, model, optimizer, steps, limit, start, bits, scoring):
        self.steps, self.limit, self.parts = steps, limit, parts_of(model, bits)
        self.scoring = scoring
        self.num_weights = sum(part.tensor.numel() for part in self.parts)
        self.begin, self.end = (round(share * steps) for share in PRUNING[start])
        self.quantized_from = round(QUANTIZED * steps)
        self.step, self.share, self.latent = 0, None, []
        optimizer.register_step_pre_hook(lambda *_: self.restore())
        optimizer.register_step_post_hook(lambda *_: self.after_step())

    def restore(self):
        """Latent weights in place of the quantized ones."""
        for part, latent in zip(self.parts, self.latent):
            part.tensor.data.copy_(latent)

    def after_step(self):
        self.step += 1
        every = max(1, self.steps // RENEWALS)
        if self.begin < self.step < self.end and self.step % every == 0:
            if self.share is None or self.step % (15 * every) == 0:
                self.share = self.fitting(rounds=7)
            rest = 1 - (self.step - self.begin) / (self.end - self.begin)
            self.prune(self.share + (1 - self.share) * rest**3)
        elif self.step == self.end:
            self.prune(self.fitting(SLACK[0]))
        elif self.step == (self.quantized_from + self.steps) // 2:
            self.prune(self.fitting(SLACK[1]))
        for part in self.parts:
            part.set(part.rows() * part.mask)
            if part.norm:
                part.norm.bias.data *= part.mask.any(1)
        if self.step >= self.quantized_from:
            self.quantize()

    def quantize(self):
        """The model runs on quantized weights until the next step."""
        self.latent = [part.tensor.data.clone() for part in self.parts]
        for part in self.parts:
            if (self.step - self.quantized_from) % SCALES == 0:
                part.choose_scales()
            part.set(part.integers(part.scales) * part.scales)

    def prune(self, share):
        """All but this share of the weights become zero."""
        scores = [part.scores(self.scoring) for part in self.parts]
        cut = self.num_weights - max(1, round(share * self.num_weights)) + 1
        least = torch.cat(scores).kthvalue(cut).values.clamp_min(1e-30)
        for part, score in zip(self.parts, scores):
            part.mask = (score >= least).float().view_as(part.mask)

    def fitting(self, slack=1.0, rounds=12):
        """The largest share whose file is within the limit, by bisection; 0 if none is."""
        masks, low, high = [part.mask for part in self.parts], 0.0, 1.0
        for _ in range(rounds):
            share = (low * high) ** 0.5 if low else high / 3
            self.prune(share)
            for part in self.parts:
                part.choose_scales()
            low, high = (
                (share, high) if len(self.file(True)) <= slack * self.limit else (low, share)
            )
            for part, mask in zip(self.parts, masks):
                part.mask = mask
        return low

    def file(self, quickly=False):
        integers = torch.cat([part.integers(part.scales).flatten() for part in self.parts])
        floats = torch.cat([values for part in self.parts for values in part.floats()])
        return encode(integers.to(torch.int8).numpy(), floats.half().numpy(), quickly)

    def finish(self):
        """The file; a few more weights become zero if it would exceed the limit."""
        self.restore()
        if len(self.file()) > self.limit:
            self.prune(self.fitting(rounds=20))
            for part in self.parts:
                part.choose_scales()
        return self.file()
