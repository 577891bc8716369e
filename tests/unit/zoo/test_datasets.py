"""The data sets by name, from small files made here; the real MNIST where it is at hand."""

import gzip
import hashlib
import itertools
import logging
import os
import re
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from reefknot.errors import DataError
from reefknot.lab.zoo import DATASETS, sources
from reefknot.lab.zoo.datasets import cut_out, flip_and_crop, flip_crop_and_cut_out, warp
from reefknot.lab.zoo.readers import parse_cifar10, parse_idx, read_content

MNIST_NAMES = tuple(sources.MNIST_SHA256)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, *, gzipped: bool) -> dict[str, bytes]:
    """Twenty training and ten test images of the right shape."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    contents = {}
    for name in MNIST_NAMES:
        count = 20 if name.startswith("train") else 10
        shape = (count, 28, 28) if "images" in name else (count,)
        contents[name] = idx(rng.integers(0, 10, shape))
        if gzipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(contents[name]))
        else:
            (folder / name).write_bytes(contents[name])
    return contents


def write_cifar10(folder: Path, count: int = 4) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in sources.CIFAR10_SHA256:
        records = rng.integers(0, 256, (count, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())


@pytest.fixture(autouse=True)
def _own_folders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees this machine's data or cache, and none reaches the network."""
    if request.node.get_closest_marker("mnist"):
        return
    tmp_path = request.getfixturevalue("tmp_path")
    monkeypatch.setenv("REEFKNOT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "MNIST_MIRRORS", ("http://127.0.0.1:1/",))
    monkeypatch.setattr(sources, "CIFAR10_URLS", ("http://127.0.0.1:1/cifar",))
    monkeypatch.setattr("reefknot.lab.zoo.sources._RETRIES", 0)


def test_digits_has_1797_images_and_a_stratified_test_set() -> None:
    data = DATASETS["digits"]()
    assert data.test is not None
    parts = (data.train, data.validation, data.test)
    assert [len(part.labels) for part in parts] == [1294, 144, 359]
    assert data.train.inputs.shape[1:] == (1, 8, 8)
    counts = data.test.labels.bincount()
    assert counts.min() >= 35 and counts.max() <= 37
    assert torch.equal(data.train.inputs, DATASETS["digits"]().train.inputs)


def test_digits_without_scikit_learn_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r'pip install "reefknot\[lab\]"'):
        DATASETS["digits"]()


@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("gzipped", [False, True])
def test_mnist_is_read_from_the_named_folder(
    tmp_path: Path, place: str, gzipped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    contents = write_mnist(tmp_path / place, gzipped=gzipped)
    data = DATASETS["mnist"]()
    assert data.test is not None
    assert (data.train.inputs.shape, data.validation.inputs.shape, data.test.inputs.shape) == (
        (18, 1, 28, 28),
        (2, 1, 28, 28),
        (10, 1, 28, 28),
    )
    assert data.test.labels.tolist() == list(contents["t10k-labels-idx1-ubyte"][8:])
    # Not the published files, and the user may do that; but never in silence.
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "is not the published MNIST: 4 of its 4 files differ" in caplog.text


def test_a_named_folder_with_some_files_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", gzipped=True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"mnist \(REEFKNOT_DATA\).*3 of the 4.*t10k-labels"):
        DATASETS["mnist"]()


def test_a_named_folder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REEFKNOT_DATA", "/nowhere/at/all")
    with pytest.raises(DataError, match="REEFKNOT_DATA names '/nowhere/at/all'"):
        DATASETS["mnist"]()


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_without_any_source_the_message_names_the_way_out(name: str) -> None:
    with pytest.raises(DataError, match=r"is not on this machine.*refused.*set REEFKNOT_DATA"):
        DATASETS[name]()


def test_mnist_images_of_another_size_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, gzipped=False)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((10, 8, 8))))
    with pytest.raises(DataError, match=r"t10k-images.*28.*\(10, 8, 8\)"):
        DATASETS["mnist"]()


def test_a_cached_file_needs_no_network_and_a_damaged_one_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REEFKNOT_DATA")
    cache = tmp_path / "cache" / "reefknot" / "mnist"
    contents = write_mnist(cache, gzipped=False)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(sources, "MNIST_SHA256", sums)
    assert sources.mnist_contents() == contents
    damaged = cache / "train-images-idx3-ubyte"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot download train-images"):
        sources.mnist_contents()


def test_idx_reads_gzipped_and_raw_files_whatever_their_name(tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    (tmp_path / "raw.gz").write_bytes(idx(array))
    (tmp_path / "packed").write_bytes(gzip.compress(idx(array)))
    for name in ("raw.gz", "packed"):
        assert np.array_equal(parse_idx(read_content(tmp_path / name), name), array)


GOOD_IDX = idx(np.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "found nothing"),
        (GOOD_IDX[:3], "00 00 08"),
        (b"\x00\x00\x0d" + GOOD_IDX[3:], "found 00 00 0d 02"),
        (b"\x00\x00\x08\x00", "found 00 00 08 00"),
        (GOOD_IDX[:11], "header is cut short"),
        (GOOD_IDX[:-1], r"expected 18 bytes for IDX shape \(2, 3\), found 17"),
        (GOOD_IDX + b"x", "found 19"),
        # A shape whose product overflows 64 bits must not be taken for a small one.
        (b"\x00\x00\x08\x04" + b"\xff" * 16, "expected 3[0-9,]{40,} bytes"),
    ],
)
def test_idx_that_is_wrong_or_cut_short(content: bytes, words: str) -> None:
    with pytest.raises(DataError, match=f"some-file: .*{words}"):
        parse_idx(content, "some-file")


def test_a_gzip_file_that_is_cut_short_or_damaged(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(bytes(range(256)) * 10))
    path = tmp_path / "file.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"file\.gz: the gzip data is damaged or cut short"):
        read_content(path)
    packed[-6] ^= 1  # in the checksum
    path.write_bytes(packed)
    with pytest.raises(DataError, match="damaged"):
        read_content(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_content(tmp_path / "missing")


def test_a_gzip_file_that_unpacks_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reefknot.lab.zoo.readers.MAX_CONTENT_BYTES", 1000)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(100_000)))
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        read_content(path)


def test_cifar10_is_read_from_the_named_folder(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    data, cut = DATASETS["cifar10"](), DATASETS["cifar10-cutout"]()
    assert data.test is not None
    assert data.train.inputs.shape == (18, 3, 32, 32)
    assert data.validation.inputs.shape == (2, 3, 32, 32)
    assert data.test.inputs.shape == (4, 3, 32, 32)
    assert data.augment is flip_and_crop
    assert torch.equal(cut.train.inputs, data.train.inputs)
    assert (cut.name, cut.augment) == ("cifar10-cutout", flip_crop_and_cut_out)


def test_another_copy_of_cifar10_is_used_and_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "cifar-10-batches-bin"
    write_cifar10(place)
    contents = {name: (place / name).read_bytes() for name in sources.CIFAR10_SHA256}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(sources, "CIFAR10_SHA256", sums)
    assert sources.cifar10_contents() == contents
    assert not caplog.records
    changed = bytearray(contents["test_batch.bin"])
    changed[100] ^= 1
    (place / "test_batch.bin").write_bytes(changed)
    assert sources.cifar10_contents()["test_batch.bin"] == bytes(changed)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    found, expected = hashlib.sha256(changed).hexdigest()[:12], sums["test_batch.bin"][:12]
    assert (
        f"{place} is not the published CIFAR-10: 1 of its 6 files differ (SHA-256 of "
        f"test_batch.bin is {found}..., expected {expected}...)" in warning.getMessage()
    )


@pytest.mark.parametrize("count", [3072, 4 * 3073 - 1])
def test_a_file_of_cifar10_that_is_cut_short_is_refused(tmp_path: Path, count: int) -> None:
    place = tmp_path / "cifar-10-batches-bin"
    write_cifar10(place)
    path = place / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:count])
    sentence = f"data_batch_2.bin: expected CIFAR-10 records of 3,073 bytes, found {count:,} bytes"
    with pytest.raises(DataError, match=re.escape(sentence)):
        DATASETS["cifar10"]()


def test_a_damaged_file_in_the_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REEFKNOT_DATA")
    place = tmp_path / "cache" / "reefknot" / "cifar-10-batches-bin"
    write_cifar10(place)
    with pytest.raises(DataError, match="CIFAR-10 is not on this machine: cannot download"):
        sources.cifar10_contents()
    contents = {name: (place / name).read_bytes() for name in sources.CIFAR10_SHA256}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(sources, "CIFAR10_SHA256", sums)
    assert sources.cifar10_contents() == contents


def test_cifar10_records_are_label_then_red_green_blue() -> None:
    record = bytes([7]) + bytes([1] * 1024) + bytes([2] * 1024) + bytes([3] * 1023 + [4])
    images, labels = parse_cifar10(record, "batch")
    assert labels.tolist() == [7]
    assert images[0, :, 0, 0].tolist() == [1, 2, 3]
    assert images[0, 2, 31].tolist() == [3] * 31 + [4]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "found 0 bytes"),
        (bytes(3072), "3,073 bytes, found 3,072"),
        (bytes(3073) + bytes([10]) + bytes(3072), "found 10 in record 1"),
    ],
)
def test_cifar10_that_is_wrong(content: bytes, words: str) -> None:
    with pytest.raises(DataError, match=f"batch: .*{words}"):
        parse_cifar10(content, "batch")


def test_cifar10_folder_that_lacks_a_file(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"5 of the 6 files.*data_batch_3\.bin"):
        DATASETS["cifar10"]()


def test_augmentation_depends_on_its_generator_only() -> None:
    inputs = torch.arange(6 * 3 * 8 * 8, dtype=torch.float32).reshape(6, 3, 8, 8)
    before = torch.get_rng_state()
    first = flip_and_crop(inputs, torch.Generator().manual_seed(3))
    second = flip_and_crop(inputs, torch.Generator().manual_seed(3))
    third = flip_and_crop(inputs, torch.Generator().manual_seed(4))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert torch.equal(torch.get_rng_state(), before)


def test_augmentation_gives_every_shift_and_mirror_image_equally_often() -> None:
    # One bright pixel in the middle of 5 x 5 images, padding 2: it lands anywhere, 25 places.
    # Its column is the same for a shift to the left and a mirrored one to the right.
    inputs = torch.zeros(5000, 2, 5, 5)
    inputs[:, :, 2, 2] = 1
    outputs = flip_and_crop(inputs, torch.Generator().manual_seed(0), padding=2)
    assert torch.equal(outputs[:, 0], outputs[:, 1])
    assert torch.equal(outputs.sum((2, 3)), torch.ones(5000, 2))
    assert ((outputs[:, 0].sum(0) - 200).abs() < 60).all()
    # Without padding only mirroring is left, of about half of the images.
    ramp = torch.arange(4.0).expand(5000, 1, 4, 4)
    mirrored = flip_and_crop(ramp, torch.Generator().manual_seed(0), padding=0)
    is_mirrored = (mirrored == ramp.flip(3)).all(3).all(2).flatten()
    assert torch.equal(mirrored[~is_mirrored], ramp[~is_mirrored])
    assert 2300 < int(is_mirrored.sum()) < 2700


def test_cutout_sets_one_square_of_each_image_to_zero_anywhere_in_it() -> None:
    inputs = torch.ones(4000, 2, 6, 8)
    outputs = cut_out(inputs, torch.Generator().manual_seed(0), side=5)
    assert torch.equal(inputs, torch.ones_like(inputs))
    assert torch.equal(outputs[:, 0], outputs[:, 1])
    holes = 1 - outputs[:, 0]
    # Two places down and four across: a square is where its rows and its columns are.
    rows, columns = holes.amax(2), holes.amax(1)
    assert torch.equal(holes, rows[:, :, None] * columns[:, None, :])
    assert (rows.sum(1) == 5).all()
    assert (columns.sum(1) == 5).all()
    tops, lefts = rows.argmax(1), columns.argmax(1)
    counts = (4 * tops + lefts).bincount()
    assert len(counts) == 8
    assert ((counts - 500).abs() < 100).all()
    assert torch.equal(outputs, cut_out(inputs, torch.Generator().manual_seed(0), side=5))


def test_cutout_follows_flips_and_crops_and_draws_from_its_generator_only() -> None:
    inputs = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0)) + 1
    before = torch.get_rng_state()
    first = flip_crop_and_cut_out(inputs, torch.Generator().manual_seed(3))
    moved = flip_and_crop(inputs, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), before)
    cut = first != moved
    assert (first[cut] == 0).all()
    assert 5 * 3 * 50 < int(cut.sum()) <= 5 * 3 * 144  # some of it may be padding


def test_a_warp_moves_a_point_by_about_a_pixel_and_on_average_not_at_all() -> None:
    inputs = torch.zeros(4000, 1, 28, 28)
    inputs[:, :, 9:12, 19:22] = 1  # a spot whose middle is (10, 20)
    outputs = warp(inputs, torch.Generator().manual_seed(0))
    assert outputs.shape == inputs.shape
    shares = outputs / outputs.sum((2, 3), keepdim=True)
    pixels = torch.arange(28.0)
    places = torch.stack([shares.sum((1, 3)) @ pixels, shares.sum((1, 2)) @ pixels], 1)
    moved = places - torch.tensor([10.0, 20.0])
    assert (moved.mean(0).abs() < 0.1).all()
    # Down: a twentieth of 3.5, 0.09 of 6.5, points 0.6 at most: 0.17, 0.59 and below 0.6.
    # Across: a twentieth of 6.5, 0.09 and a tenth of 3.5: 0.33, 0.31, 0.35 and below 0.6.
    assert ((moved.std(0) > 0.5) & (moved.std(0) < 0.9)).all()


def test_a_warp_draws_from_its_generator_only_and_leaves_an_even_image_even() -> None:
    inputs = torch.rand(3, 2, 14, 21, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    first, second = (warp(inputs, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, warp(inputs, torch.Generator().manual_seed(4)))
    assert torch.equal(torch.get_rng_state(), before)
    even = torch.full((5, 1, 28, 28), -0.4)
    assert torch.allclose(warp(even, torch.Generator()), even)


def test_unit_mnist_has_the_images_of_mnist_as_pixels_from_0_to_1(tmp_path: Path) -> None:
    write_mnist(tmp_path, gzipped=False)
    plain, unit = DATASETS["mnist"](), DATASETS["mnist-unit"]()
    assert unit.name == "mnist-unit"
    pixels = unit.train.inputs
    for part in ("train", "validation", "test"):
        own, other = getattr(unit, part), getattr(plain, part)
        assert torch.equal(own.labels, other.labels)
        whole = own.inputs.double() * 255
        assert torch.allclose(whole, whole.round(), atol=1e-4)
        assert 0 <= float(whole.min()) <= float(whole.max()) <= 255.001
        scaled = (own.inputs - pixels.mean()) / pixels.std(correction=0)
        assert torch.allclose(scaled, other.inputs, atol=1e-4)


def test_warped_mnist_has_seven_copies_of_the_training_images_and_nothing_else(
    tmp_path: Path,
) -> None:
    write_mnist(tmp_path, gzipped=False)
    plain, warped = DATASETS["mnist"](), DATASETS["mnist-warped"]()
    number = len(plain.train.labels)
    assert warped.name == "mnist-warped"
    assert warped.augment is None
    assert torch.equal(warped.train.inputs[:number], plain.train.inputs)
    assert torch.equal(warped.train.labels, plain.train.labels.repeat(8))
    copies = warped.train.inputs.reshape(8, number, 1, 28, 28)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(copies))
    assert plain.test is not None
    assert warped.test is not None
    assert torch.equal(warped.validation.inputs, plain.validation.inputs)
    assert torch.equal(warped.test.inputs, plain.test.inputs)


@pytest.mark.mnist
@pytest.mark.skipif(not os.environ.get("REEFKNOT_DATA"), reason="REEFKNOT_DATA is not set")
def test_the_real_mnist() -> None:
    contents = sources.mnist_contents()
    images = parse_idx(contents["train-images-idx3-ubyte"], "train images")
    assert (round(images.mean(), 4), round(images.std(), 4)) == (33.3184, 78.5675)
    start = time.perf_counter()
    data = DATASETS["mnist"]()
    assert time.perf_counter() - start < 10  # about one second; a busy machine is allowed
    assert data.test is not None
    assert [len(part.labels) for part in (data.train, data.validation, data.test)] == [
        54_000,
        6_000,
        10_000,
    ]
    assert data.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert data.validation.labels[:5].tolist() == [0, 8, 6, 9, 8]
