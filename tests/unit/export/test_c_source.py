"""Networks as C: the numbers of torch, under sanitizers, on real compilers and simulated chips."""

import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from unit.export.compiled import STRICT, needs_gcc, outputs_of
from unit.export.networks import Residual, ready, strangers

import reefknot
from reefknot import export
from reefknot.cli import main
from reefknot.errors import ConfigError, ReefknotError
from reefknot.export.hardware import CHIPS, measure
from reefknot.lab.zoo import DATASETS, INPUTS, NETWORKS

RECORDS = Path(__file__).parents[3] / "experiments" / "records"
FILES = {
    "lenet-300-100": RECORDS / "2026-11-17_lenet-300-100_sparse_apt-1770_seed0" / "model.reef",
    "lenet-5-caffe": RECORDS / "2026-11-15_lenet-5-caffe_sparse_apt_seed0" / "model.reef",
}
MNIST = INPUTS["lenet-300-100"]


def tied(model, density=0.3, num_values=6, seed=0):
    """The same module with a few shared values, most weights zero, all in evaluation."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_values, generator=generator) / 2
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
        elif isinstance(module, nn.Linear | nn.Conv2d):
            for parameter in module.parameters():
                which = torch.randint(num_values, parameter.shape, generator=generator)
                alive = torch.rand(parameter.shape, generator=generator) < density
                parameter.data = values[which] * alive
    return model.eval()


def small_networks():
    yield "dense", nn.Sequential(nn.Linear(9, 8), nn.LeakyReLU(0.2), nn.Linear(8, 3)), (9,)
    yield "one layer", nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.LogSoftmax(1)), (3, 4)
    yield (
        "no weights",
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Sigmoid(), nn.Tanh()),
        (2, 4, 6),
    )
    yield "pooled twice", nn.Sequential(
        nn.AvgPool2d(2), nn.Conv2d(2, 5, (1, 3), (2, 1)), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2),
        nn.SiLU(), nn.GELU(), nn.Flatten(), nn.Linear(5, 3), nn.Softmax(dim=1),
    ), (2, 17, 15)  # fmt: skip
    yield "padded", nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU6(), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.ReLU(), nn.Conv2d(6, 4, 1),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2), nn.Hardtanh(-0.5, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    ), (3, 11, 9)  # fmt: skip
    yield "strided", nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=(2, 3), dilation=(1, 2)), nn.ReLU(), nn.AvgPool2d(2, 1, 1)
    ), (1, 13, 21)  # fmt: skip


SMALL = list(small_networks())


@needs_gcc
@pytest.mark.parametrize(("model", "shape"), [s[1:] for s in SMALL], ids=[s[0] for s in SMALL])
def test_a_small_network_gives_what_torch_gives(model, shape, tmp_path):
    torch.manual_seed(0)
    model = tied(model)
    inputs = torch.randn(6, *shape)
    export.c(None, model, tmp_path, inputs[:1])
    with torch.no_grad():
        expected = model(inputs).reshape(6, -1).numpy()
    np.testing.assert_allclose(outputs_of(tmp_path, inputs.numpy()), expected, rtol=1e-5, atol=2e-6)


@needs_gcc
@pytest.mark.parametrize("name", ["dense", "padded", "strided"])
def test_bytes_give_what_their_normalised_floats_give(name, tmp_path):
    model, shape = next(s[1:] for s in SMALL if s[0] == name)
    torch.manual_seed(0)
    model = tied(model)
    pixels = torch.randint(256, (6, *shape))
    export.c(None, model, tmp_path, pixels[:1].float(), as_bytes=export.Bytes(30.25, 81.5))
    with torch.no_grad():
        expected = model((pixels - 30.25) / 81.5).reshape(6, -1).numpy()
    outputs = outputs_of(tmp_path, pixels.numpy().astype(np.uint8))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


STRANGERS = list(strangers())
CASES = pytest.mark.parametrize(
    ("model", "shape"), [s[1:] for s in STRANGERS], ids=[s[0] for s in STRANGERS]
)


@needs_gcc
@CASES
def test_a_network_with_branches_gives_what_torch_gives(model, shape, tmp_path):
    ready(tied(model, 0.6), shape)
    inputs = torch.randn(6, *shape)
    export.c(None, model, tmp_path, inputs[:1])
    with torch.no_grad():
        expected = model(inputs).numpy()
    assert expected.std(0).min() > 1e-3  # outputs depend on the input
    np.testing.assert_allclose(outputs_of(tmp_path, inputs.numpy()), expected, rtol=1e-4, atol=1e-5)


@needs_gcc
@CASES
def test_bytes_may_have_a_mean_for_each_channel(model, shape, tmp_path):
    ready(tied(model, 0.6), shape)
    mean, deviation = [125.5, 120.25, 30.0][: shape[0]], [60.0, 61.5, 70.0][: shape[0]]
    pixels = torch.randint(256, (6, *shape))
    export.c(None, model, tmp_path, pixels[:1].float(), as_bytes=export.Bytes(mean, deviation))
    channels = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (mean, deviation))
    with torch.no_grad():
        expected = model((pixels - next(channels)) / next(channels)).numpy()
    outputs = outputs_of(tmp_path, pixels.numpy().astype(np.uint8))
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_values_share_memory_and_a_sum_takes_the_place_of_what_it_adds_to(tmp_path):
    model = ready(tied(Residual(widths=(4, 4)), 0.6), (1, 28, 28))
    written = export.c(None, model, tmp_path, torch.zeros(1, 1, 28, 28))
    padded, half = 4 * 4 * 30 * 30, 4 * 4 * 16 * 16
    assert 2 * padded <= written.arena_bytes <= 2 * padded + half  # of about 16 values


def test_a_mean_for_another_number_of_channels_is_one_sentence(tmp_path):
    model, shape = tied(Residual()), (1, 28, 28)
    with pytest.raises(ConfigError, match=r"3 means .* for an input of 1 channel"):
        export.c(None, ready(model, shape), tmp_path / "net", torch.zeros(1, *shape),
                 as_bytes=export.Bytes([1, 2, 3], 5))  # fmt: skip
    assert not (tmp_path / "net").exists()


@needs_gcc
def test_layers_may_have_values_of_their_own(tmp_path):
    model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20))
    tied(model[0], 0.8, 200, seed=1)
    tied(model[2], 0.8, 250, seed=2)
    inputs = torch.randn(4, 40)
    export.c(None, model, tmp_path)
    outputs = outputs_of(tmp_path, inputs.numpy())
    np.testing.assert_allclose(outputs, model(inputs).detach(), rtol=1e-4, atol=1e-5)


@needs_gcc
def test_a_network_of_zeros_gives_its_biases(tmp_path):
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    export.c(None, model, tmp_path)
    outputs = outputs_of(tmp_path, np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(outputs[0], model.bias.detach())


# -- the networks of the records -------------------------------------------------------------


@cache
def digits():
    """Forty real digits of 8 x 8 as images of 28 x 28 bytes."""
    images = DATASETS["digits"]().test.inputs[:40]
    large = nn.functional.interpolate(images, size=(28, 28), mode="bilinear")
    large = (large - large.amin()) / (large.amax() - large.amin()) * 255
    return large.round().numpy().astype(np.uint8)


def mnist_images(number):
    inputs = DATASETS["mnist"]().test.inputs[:number]
    return (inputs * MNIST.deviation + MNIST.mean).round().numpy().astype(np.uint8)


def normalised(pixels):
    return (torch.from_numpy(pixels).float() - MNIST.mean) / MNIST.deviation


def by_torch(name, inputs):
    model = NETWORKS[name]()
    model.load_state_dict(reefknot.load(FILES[name]))
    with torch.no_grad():
        return model.eval()(inputs).numpy()


def write(name, folder, as_bytes):
    example = torch.zeros(1, *MNIST.shape)
    normalisation = export.Bytes(MNIST.mean, MNIST.deviation) if as_bytes else None
    return export.c(FILES[name], NETWORKS[name](), folder, example, as_bytes=normalisation)


def check_record(name, as_bytes, pixels, folder):
    written = write(name, folder, as_bytes)
    inputs = normalised(pixels)
    expected = by_torch(name, inputs)
    outputs = outputs_of(folder, pixels if as_bytes else inputs.numpy())
    np.testing.assert_allclose(outputs, expected, atol=1e-4)
    assert (outputs.argmax(1) == expected.argmax(1)).all()
    return written


@needs_gcc
@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_record_reads_digits_as_torch_does(name, as_bytes, tmp_path):
    written = check_record(name, as_bytes, digits()[: 40 if "300" in name else 12], tmp_path)
    assert written.table_bytes < 1.2 * FILES[name].stat().st_size  # near what the file takes


@needs_gcc
@pytest.mark.mnist
@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_record_reads_a_thousand_images_as_torch_does(name, as_bytes, tmp_path):
    check_record(name, as_bytes, mnist_images(1_000), tmp_path)


@pytest.mark.mnist
def test_the_normalisation_of_the_zoo_is_that_of_its_data():
    data = DATASETS["mnist"]()
    pixels = data.train.inputs.double() * MNIST.deviation + MNIST.mean
    assert abs(pixels - pixels.round()).max() < 1e-4
    assert (pixels.min(), pixels.max().round()) == (0, 255) or abs(pixels.min()) < 1e-4


@needs_gcc
def test_the_code_needs_nothing_but_memcpy(tmp_path):
    write("lenet-5-caffe", tmp_path, as_bytes=False)
    subprocess.run(["gcc", *STRICT, "-c", "net.c"], cwd=tmp_path, check=True)
    told = subprocess.run(["nm", "-u", "net.o"], cwd=tmp_path, capture_output=True, text=True)
    assert set(told.stdout.split()) - {"U", "__stack_chk_fail"} <= {"memcpy", "memset"}


def test_the_same_network_gives_the_same_text(tmp_path):
    texts = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        texts.append([path.read_bytes() for path in write("lenet-5-caffe", folder, True).files])
    assert texts[0] == texts[1]


# -- chips -----------------------------------------------------------------------------------


def chip_or_skip(name):
    if tool := CHIPS[name].missing():
        pytest.skip(f"{tool} is not installed: nothing runs on a simulated {CHIPS[name].name}")
    return CHIPS[name]


def check_chip(network, chip, pixels, folder):
    write(network, folder, as_bytes=True)
    figures = measure(folder, chip, pixels)
    expected = by_torch(network, normalised(pixels))
    np.testing.assert_allclose(figures.outputs, expected, atol=1e-4)
    assert (figures.outputs.argmax(1) == expected.argmax(1)).all()
    print(figures)
    return figures


def check_atmega(pixels, folder):
    figures = check_chip("lenet-300-100", chip_or_skip("atmega328p"), pixels, folder)
    assert figures.flash_bytes <= 6 * 1024
    assert 784 + 40 + 528 < figures.ram_bytes <= 2 * 1024  # input, output, arena, and the rest
    assert 2 * 2_234 < figures.time < 2_000_000


def check_cortex(pixels, folder):
    figures = check_chip("lenet-5-caffe", chip_or_skip("cortex-m3"), pixels, folder)
    assert figures.flash_bytes <= 8 * 1024
    assert 4_544 < figures.ram_bytes <= 8 * 1024
    assert 0 < figures.time < 20_000_000


def test_lenet_300_100_runs_on_a_simulated_atmega328p(tmp_path):
    check_atmega(digits()[:20], tmp_path)


def test_lenet_5_runs_on_a_simulated_cortex_m3(tmp_path):
    check_cortex(digits()[:5], tmp_path)


@pytest.mark.mnist
def test_chips_read_twenty_test_images_as_torch_does(tmp_path):
    check_atmega(mnist_images(20), tmp_path / "atmega")
    check_cortex(mnist_images(20), tmp_path / "cortex")


def test_a_network_that_does_not_fit_is_told_by_how_much(tmp_path):
    chip = chip_or_skip("atmega328p")
    write("lenet-300-100", tmp_path, as_bytes=False)  # 784 floats are more than the RAM
    with pytest.raises(
        ReefknotError, match=r"does not fit .* flash and more than 3,\d\d\d of 2,048"
    ):
        measure(tmp_path, chip)


# -- what is refused, and the command --------------------------------------------------------


def many_weights():
    model = nn.Sequential(nn.Linear(20, 20))
    model[0].weight.data = torch.arange(1.0, 401).reshape(20, 20)
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (many_weights(), "'0' has 400 different weights, C takes at most 255"),
        (tied(nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.ReLU())), "'1' is a softmax before"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softplus()), "'1' is a Softplus"),
        (nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Upsample(2)), "'1' is a Upsample"),
        (nn.Sequential(nn.Flatten()), "no layers"),
    ],
)
def test_what_c_cannot_express_is_one_sentence_and_nothing_is_written(model, words, tmp_path):
    inputs = torch.zeros(1, 20 if "400" in words else 4)
    with pytest.raises(ConfigError) as error:
        export.c(None, model, tmp_path / "net", inputs)
    assert words in str(error.value)
    assert not (tmp_path / "net").exists()


def reefknot_export(*words):
    return CliRunner().invoke(main, ["export", "c", *map(str, words)])


def test_the_command_writes_both_files_and_tells_sizes(tmp_path):
    done = reefknot_export(
        FILES["lenet-300-100"], "--model", "lenet-300-100", "--out", tmp_path / "net", "--report"
    )
    assert done.exit_code == 0, done.output
    assert f"wrote {tmp_path}/net/net.c and {tmp_path}/net/net.h" in done.output
    header = (tmp_path / "net" / "net.h").read_text()
    assert "#define NET_ARENA_BYTES 528 " in header
    assert "void net_run(const float *input, float *output);" in header
    for chip in CHIPS.values():
        assert chip.name in done.output


def test_the_command_takes_a_network_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_for_c.py").write_text(
        "from torch import nn\n"
        "def model():\n"
        "    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))\n"
    )
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    reefknot.save(reefknot.cluster(model.state_dict()), tmp_path / "model.reef")
    base = ("model.reef", "--model", "own_for_c:model", "--out", "net")
    done = reefknot_export(*base)
    assert done.exit_code == 2
    assert "the input shape of Sequential is not known" in done.output
    assert not Path("net").exists()
    shaped = (*base, "--input", "1x4x4")
    assert reefknot_export(*shaped).exit_code == 0
    done = reefknot_export(*shaped, "--input", "u8")
    assert done.exit_code == 2
    assert "give --mean and --std" in done.output
    done = reefknot_export(*shaped, "--input", "u8", "--mean", "100", "--std", "50")
    assert done.exit_code == 0
    assert "typedef uint8_t net_input;" in Path("net/net.h").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--model", "lenet"), "unknown network 'lenet'"),
        (("--model", "lenet-5-caffe"), "does not fit the model"),
        (("--model", "lenet-300-100", "--input", "28x0"), "expected a shape such as 1x28x28"),
        (
            ("--model", "lenet-300-100", "--input", "1x9"),
            "does not take the example input of shape",
        ),
        (("--model", "lenet-300-100", "--mean", "3"), "belong to --input u8"),
        (
            ("--model", "lenet-300-100", "--input", "u8", "--mean", "300"),
            "mean from 0 to 255",
        ),
    ],
)
def test_a_wrong_command_is_one_sentence(words, told, tmp_path):
    done = reefknot_export(FILES["lenet-300-100"], "--out", tmp_path / "net", *words)
    assert done.exit_code == 2
    assert told in done.output
    assert len(done.output.splitlines()) == 1
    assert not (tmp_path / "net").exists()
