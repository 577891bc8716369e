"""The page in a real browser: it reads what is drawn, as torch does, and nothing is cut off."""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from chromium import EXECUTABLE, Browser, Page, chromium
from click.testing import CliRunner
from torch import nn
from unit.export.networks import ready, strangers

import reefknot
from reefknot import export
from reefknot.cli import main
from reefknot.errors import ConfigError
from reefknot.lab.zoo import DATASETS, INPUTS, NETWORKS

RECORDS = Path(__file__).parents[3] / "experiments" / "records"
LENET_5 = RECORDS / "2026-11-15_lenet-5-caffe_sparse_apt_seed0" / "model.reef"
LENET_300 = RECORDS / "2026-11-17_lenet-300-100_sparse_apt-1770_seed0" / "model.reef"
NAMES = {"lenet-5-caffe": LENET_5, "lenet-300-100": LENET_300}

needs_chromium = pytest.mark.skipif(
    EXECUTABLE is None, reason="there is no chromium here, so that no page is opened in it"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, source in NAMES.items():
        out = folder / f"{name}.html"
        words = ["export", "html", str(source), "--model", name, "--out", str(out)]
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        assert f"{out.stat().st_size:,} bytes, {source.stat().st_size:,} of them" in done.output
    return {name: folder / f"{name}.html" for name in NAMES}


def opened(page: Page) -> Page:
    page.wait_until("!!window.reefknot && document.querySelectorAll('li').length > 0")
    return page


def answer(page: Page) -> str:
    return page.run("document.querySelector('#answer').textContent")


def outputs(page: Page, images: np.ndarray) -> np.ndarray:
    """What the page's network gives for images of pixels from 0 to 1."""
    pixels = [image.reshape(-1).tolist() for image in images]
    return np.array(page.run(f"{pixels}.map(reefknot)"))


# -- the page --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_network_of_a_kilobyte_or_two_is_a_page_of_less_than_12_and_a_half_kb(
    pages: dict[str, Path], name: str
) -> None:
    assert pages[name].stat().st_size < 12_500
    text = pages[name].read_text()
    assert text.isascii()
    assert "http" not in text


@needs_chromium
@pytest.mark.parametrize("name", NAMES)
def test_page_is_silent_and_nothing_is_cut_off(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    with browser.page(pages[name]) as page:
        opened(page)
        for width in (320, 390, 720, 1400):
            for dark in (False, True):
                page.show(width=width, dark=dark)
                assert page.run(CUT_OFF % width) == [], width
                assert page.run("document.documentElement.scrollWidth") <= width
                assert page.run("matchMedia('(prefers-color-scheme: dark)').matches") == dark
        size = f"{pages[name].stat().st_size:,} bytes"
        assert size in page.run("document.querySelector('#end').textContent")
        assert page.said() == []
        assert page.asked_for() == [pages[name].as_uri()]


CUT_OFF = """[...document.querySelectorAll('body *')]
    .filter(e => e.getClientRects().length)
    .filter(e => e.getBoundingClientRect().right > %d || e.getBoundingClientRect().left < 0)
    .map(e => e.outerHTML.slice(0, 120))"""


@needs_chromium
def test_the_page_tells_what_it_is_and_where_its_bytes_are(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with browser.page(pages["lenet-5-caffe"]) as page:
        opened(page)
        assert page.run("document.title") == "lenet-5-caffe in 1,575 bytes"
        assert page.run("document.querySelector('#facts').textContent") == (
            "431,080 weights, 1,095 times smaller than in float32, "
            "1.07 % error on the test images of mnist"
        )
        parts = page.run("[...document.querySelectorAll('li')].map(e => e.textContent)")
    sizes = {name: int(size) for name, size in (part.rsplit(" ", 1) for part in parts)}
    assert sum(sizes.values()) == 1_575
    found = {t.name: t.bytes for t in reefknot.inspect(LENET_5).tensors}
    for name, size in sizes.items():
        if name in found:  # the decoder is some bytes ahead, by the same everywhere
            assert abs(size - found[name]) < 2, name


# -- drawing ---------------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("name", NAMES)
def test_the_digits_of_its_buttons_and_keys_are_read(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    with browser.page(pages[name]) as page:
        opened(page)
        for digit in range(10):
            page.run(f"document.querySelectorAll('button')[{digit}].click()")
            assert answer(page) == str(digit)
        page.run("document.querySelectorAll('button')[10].click()")
        assert answer(page) == "?"
        page.show(width=390)
        for _ in range(20):
            page.press("Tab")
            if page.run("document.activeElement.textContent") == "4":
                break
        page.press("Enter")
        page.wait_until("document.querySelector('#answer').textContent === '4'")


def places(page: Page, *points: tuple[float, float]) -> list[tuple[float, float]]:
    """Points of the pad, from 0 to 1, where they are in the window; with one more in between."""
    pad = "document.querySelector('#pad').getBoundingClientRect()"
    left, top, width = page.run(f"(b => [b.left, b.top, b.width])({pad})")
    steps = [
        (a[0] + (b[0] - a[0]) * k / 2, a[1] + (b[1] - a[1]) * k / 2)
        for a, b in pairwise(points)
        for k in range(3)
    ]
    return [(left + x * width, top + y * width) for x, y in steps]


CIRCLE = [
    (0.5 + 0.2 * math.sin(t / 2), 0.5 - 0.3 * math.cos(t / 2))  # from the top, clockwise
    for t in range(0, 14, 2)
]
STROKES = {
    "1": [[(0.52, 0.2), (0.48, 0.8)]],
    "7": [[(0.25, 0.25), (0.7, 0.25), (0.45, 0.8)]],
    "4": [[(0.4, 0.2), (0.25, 0.55), (0.75, 0.55)], [(0.62, 0.3), (0.62, 0.85)]],
    "0": [CIRCLE],
}


@needs_chromium
@pytest.mark.parametrize(("touch", "digits"), [(False, "1740"), (True, "4")])
def test_what_is_drawn_by_mouse_or_finger_is_read(
    browser: Browser, pages: dict[str, Path], touch: bool, digits: str
) -> None:
    with browser.page(pages["lenet-5-caffe"]) as page:
        page.show(width=390 if touch else 1400)
        opened(page)
        for digit in digits:
            page.run("document.querySelectorAll('button')[10].click()")
            for stroke in STROKES[digit]:
                page.draw(places(page, *stroke), touch=touch)
            page.wait_until(f"document.querySelector('#answer').textContent === '{digit}'")
        assert page.said() == []


@needs_chromium
def test_a_small_drawing_in_a_corner_is_the_same_as_a_large_one(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with browser.page(pages["lenet-5-caffe"]) as page:
        page.show(width=1400)
        opened(page)
        for scale, shift in ((1.0, 0.0), (0.4, 0.05), (0.4, 0.55)):
            page.run("document.querySelectorAll('button')[10].click()")
            points = [(x * scale + shift, y * scale + shift) for x, y in STROKES["7"][0]]
            page.draw(places(page, *points))
            page.wait_until("document.querySelector('#answer').textContent === '7'")


# -- the network -----------------------------------------------------------------------------


@needs_chromium
@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_torch(browser: Browser, pages: dict[str, Path], name: str) -> None:
    images = np.random.default_rng(3).random((5, 1, 28, 28), dtype=np.float32)
    images[images < 0.6] = 0
    model, known = NETWORKS[name]().double(), INPUTS[name]
    model.load_state_dict(reefknot.load(NAMES[name]))
    with torch.no_grad():
        wanted = model((torch.from_numpy(images).double() * 255 - known.mean) / known.deviation)
    with browser.page(pages[name]) as page:
        np.testing.assert_allclose(outputs(opened(page), images), wanted, rtol=1e-4, atol=1e-4)


@needs_chromium
@pytest.mark.mnist
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_test_images_get_the_labels_of_torch(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    test, known = DATASETS["mnist"]().test, INPUTS[name]
    assert test is not None
    inputs = test.inputs[:100].double()
    model = NETWORKS[name]().double()
    model.load_state_dict(reefknot.load(NAMES[name]))
    with torch.no_grad():
        wanted = model(inputs).argmax(1).numpy()
    images = ((inputs * known.deviation + known.mean) / 255).numpy()
    with browser.page(pages[name]) as page:
        found = outputs(opened(page), images).argmax(1)
    assert found.tolist() == wanted.tolist()
    assert (found == test.labels[:100].numpy()).mean() > 0.95


class Own(nn.Sequential):
    """All that a page can do, with windows that are not square and steps that do not fit."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, (3, 5), stride=(2, 1), padding=(1, 2)), nn.Tanh(),
            nn.AvgPool2d(3, stride=2, padding=1), nn.Conv2d(4, 6, 3, groups=2, bias=False),
            nn.LeakyReLU(0.1), nn.Conv2d(6, 6, 3, dilation=2, padding=2), nn.GELU(),
            nn.MaxPool2d((2, 3), stride=(2, 2), padding=(1, 1)), nn.SiLU(), nn.Dropout(),
            nn.Flatten(), nn.LazyLinear(9), nn.Sigmoid(), nn.ReLU6(), nn.Linear(9, 3),
            nn.Softmax(1),
        )  # fmt: skip


def own_model() -> nn.Module:
    torch.manual_seed(0)
    model = Own().eval()
    model(torch.zeros(1, 1, 20, 20))
    return model


def tied(model: nn.Module) -> reefknot.TiedState:
    return reefknot.cluster(model.state_dict(), num_clusters=33, min_size=0)


@needs_chromium
def test_ones_own_network_gives_what_torch_gives(browser: Browser, tmp_path: Path) -> None:
    model = own_model()
    out = tmp_path / "own.html"
    state = tied(model)
    reefknot.save(state, tmp_path / "own.reef")
    example = torch.zeros(1, 1, 20, 20)
    export.html(state, model, out, example, pixels=export.Pixels(0.2, 0.5, 1.0), title="a < b")
    model.load_state_dict(reefknot.load(tmp_path / "own.reef"))
    images = np.random.default_rng(1).random((4, 1, 20, 20), dtype=np.float32)
    with torch.no_grad():
        wanted = nn.Sequential(*[*model][:-1])((torch.from_numpy(images) - 0.2) / 0.5)
    with browser.page(out) as page:
        np.testing.assert_allclose(outputs(opened(page), images), wanted, rtol=1e-4, atol=1e-4)
        assert page.run("document.title").startswith("a < b in ")
        assert page.said() == []


STRANGERS = list(strangers())


@needs_chromium
@pytest.mark.parametrize(
    ("model", "shape"), [s[1:] for s in STRANGERS], ids=[s[0] for s in STRANGERS]
)
def test_a_network_with_branches_gives_what_torch_gives(
    browser: Browser, tmp_path: Path, model: nn.Module, shape: tuple[int, ...]
) -> None:
    out, state = tmp_path / "own.html", tied(ready(model, shape))
    mean, deviation = [0.5, 0.25, 0.4][: shape[0]], [0.2, 0.25, 0.3][: shape[0]]
    pixels = export.Pixels(mean, deviation, 1.0)
    export.html(state, model, out, torch.zeros(1, *shape), pixels=pixels)
    reefknot.save(state, tmp_path / "own.reef")
    model.load_state_dict(reefknot.load(tmp_path / "own.reef"))
    images = torch.rand(3, *shape)
    each = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (mean, deviation))
    with torch.no_grad():
        wanted = model((images - next(each)) / next(each))
    with browser.page(out) as page:
        found = torch.from_numpy(outputs(opened(page), images.numpy()))
        assert page.said() == []
    if model(images).exp().sum(1).allclose(torch.ones(3)):  # a page leaves out a last softmax
        found = found.log_softmax(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


# -- images that are chosen --------------------------------------------------------------------


def picture(page: Page, event: str, side: int = 16) -> None:
    """An image, left half red, right half white, wider than high, that is pasted or dropped."""
    page.run(f"""(async () => {{
        const canvas = Object.assign(document.createElement('canvas'),
            {{ width: {2 * side}, height: {side} }});
        const context = canvas.getContext('2d');
        context.fillStyle = '#f00';
        context.fillRect(0, 0, {side}, {side});
        context.fillStyle = '#fff';
        context.fillRect({side}, 0, {side}, {side});
        const blob = await new Promise(done => canvas.toBlob(done));
        const data = new DataTransfer();
        data.items.add(new File([blob], 'a.png', {{ type: 'image/png' }}));
        document.body.dispatchEvent({event});
    }})()""")
    page.wait_until("document.querySelector('#answer').textContent !== '?'")


PASTED = "new ClipboardEvent('paste', { clipboardData: data, bubbles: true })"
DROPPED = "new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })"
ANIMALS = ["cat", "a < b", "a dog with a rather long name"]


class Sums(nn.Module):
    """One output for each third of the input: its sum."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 3, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(3).repeat_interleave(-(-inputs // 3), 1)[:, :inputs])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.flatten(x, 1))


def page_of(model: nn.Module, out: Path, *shape: int, labels: list[str]) -> None:
    example, pixels = torch.zeros(1, *shape), export.Pixels(0.0, 1.0, 1.0)
    export.html(tied(model), model, out, example, pixels=pixels, labels=labels, title="sums")


def shown_bars(page: Page) -> dict[str, str]:
    texts = page.run(
        "[...document.querySelectorAll('#bars b, #bars span')].map(e => e.textContent)"
    )
    return dict(zip(texts[::2], texts[1::2], strict=True))


@needs_chromium
@pytest.mark.parametrize("event", [PASTED, DROPPED], ids=["pasted", "dropped"])
def test_an_image_in_colour_is_read_channel_by_channel(
    browser: Browser, tmp_path: Path, event: str
) -> None:
    """Of 16 by 8 pixels the middle is read: 8 by 8, half of them red (1, 0, 0), half white."""
    page_of(Sums(3 * 8 * 8), tmp_path / "page.html", 3, 8, 8, labels=ANIMALS)
    with browser.page(tmp_path / "page.html") as page:
        opened(page)
        picture(page, event, side=8)
        assert answer(page) == "cat"  # the channel red has 64, green and blue have 32
        assert shown_bars(page) == {"cat": "100.0 %", ANIMALS[1]: "0.0 %", ANIMALS[2]: "0.0 %"}
        page.run("[...document.querySelectorAll('button')].at(-1).focus()")
        assert page.run("document.activeElement.textContent") == "Choose an image"
        for width in (320, 390, 1400):
            page.show(width=width)
            assert page.run(CUT_OFF % width) == [], width
        assert page.said() == []


@needs_chromium
def test_an_image_in_grey_can_be_inverted_and_cleared(browser: Browser, tmp_path: Path) -> None:
    """Its brightness is 0.299 on the left and 1 on the right, in every line: 0.6495 on average."""
    weight = torch.cat([torch.full((1, 64), 1 / 8), torch.zeros(2, 64)])
    weight[1, :8] = 1 - 1 / 64
    model = Sums(64)
    model.layer.weight.data = weight  # the sum of the pixels / 8, of the first line, nothing
    page_of(model, tmp_path / "page.html", 1, 8, 8, labels=ANIMALS)
    with browser.page(tmp_path / "page.html") as page:
        opened(page)
        invert = "[...document.querySelectorAll('button')].at(-2)"
        assert answer(page) == "?"
        assert page.run(f"{invert}.textContent") == "Invert"
        assert page.run(f"{invert}.checkVisibility()") is False
        picture(page, PASTED, side=8)
        plain = [8 * 0.6495, 8 * 0.6495 * (1 - 1 / 64), 0]
        shares = torch.softmax(torch.tensor(plain), 0)
        assert [*shown_bars(page).values()] == [f"{100 * share:.1f} %" for share in shares]
        page.run(f"{invert}.click()")
        inverted = torch.softmax(torch.tensor([8 * 0.3505, 8 * 0.3505 * (1 - 1 / 64), 0]), 0)
        assert [*shown_bars(page).values()] == [f"{100 * share:.1f} %" for share in inverted]
        page.run("document.querySelector('button').click()")
        assert answer(page) == "?"
        assert page.said() == []


@needs_chromium
def test_of_many_classes_the_ten_most_probable_are_shown(browser: Browser, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 25))
    nn.init.zeros_(model[1].weight)
    model[1].bias.data = torch.arange(25.0) / 2
    page_of(model, tmp_path / "page.html", 3, 8, 8, labels=[f"class {k}" for k in range(25)])
    with browser.page(tmp_path / "page.html") as page:
        opened(page)
        picture(page, DROPPED)
        assert [*shown_bars(page)] == [f"class {k}" for k in range(24, 14, -1)]


@needs_chromium
def test_a_file_that_is_no_image_is_told(browser: Browser, tmp_path: Path) -> None:
    page_of(Sums(192), tmp_path / "page.html", 3, 8, 8, labels=ANIMALS)
    with browser.page(tmp_path / "page.html") as page:
        opened(page)
        page.run("""(() => { const data = new DataTransfer();
            data.items.add(new File(['no image'], 'a.txt', { type: 'text/plain' }));
            window.dispatchEvent(new DragEvent('drop', { dataTransfer: data })); })()""")
        page.wait_until("document.querySelector('#hint').textContent.includes('cannot read')")
        assert page.said() == []


def test_colour_images_need_their_mean_and_deviation(tmp_path: Path) -> None:
    model = Sums(192)
    with pytest.raises(ConfigError, match="colour images of the network were normalised is not"):
        export.html(tied(model), model, tmp_path / "page.html", torch.zeros(1, 3, 8, 8))
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--labels", "a,b"), "has 10 classes, and labels are one printable text for each"),
        (("--labels", "nowhere.txt"), "--labels nowhere.txt: expected a text file with a label"),
        (
            ("--mean", "1,2", "--std", "3"),
            "2 means and 1 deviations were given for an input of 1 channel",
        ),
        (("--mean", "x", "--std", "3"), "--mean x: expected a number, or one for each channel"),
    ],
)
def test_wrong_labels_and_means_are_one_sentence(
    tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    base = ["export", "html", str(LENET_5), "--model", "lenet-5-caffe"]
    done = CliRunner().invoke(main, [*base, "--out", str(tmp_path / "page.html"), *words])
    assert done.exit_code == 2
    assert told in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_labels_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("".join(f"digit {k}\n" for k in range(10)))
    pages = []
    for labels in (str(tmp_path / "labels.txt"), ",".join(f"digit {k}" for k in range(10))):
        out = tmp_path / "page.html"
        words = ["export", "html", str(LENET_5), "--model", "lenet-5-caffe", "--out", str(out)]
        assert CliRunner().invoke(main, [*words, "--labels", labels]).exit_code == 0
        pages.append(out.read_bytes())
    assert pages[0] == pages[1]


# -- what cannot be done is one sentence, and nothing is written -------------------------------


@pytest.mark.parametrize(
    ("layers", "shape", "words"),
    [
        ([nn.Conv2d(1, 2, 3), nn.Upsample(2), nn.Flatten(), nn.LazyLinear(3)], (1, 28, 28),
         "'1' is a Upsample"),
        ([nn.Flatten(), nn.LSTM(784, 3)], (1, 28, 28), "'1' is a LSTM"),
        ([nn.Flatten(), nn.Linear(784, 9), nn.Softmax(1), nn.Linear(9, 3)], (1, 28, 28),
         "'2' is a Softmax inside"),
        ([nn.Conv2d(2, 2, 3), nn.Flatten(), nn.LazyLinear(3)], (2, 28, 28), r"shape \(2, 28, 28\)"),
        ([nn.Linear(100, 1)], (100,), r"gives outputs of shape \(1,\)"),
        ([nn.Linear(90, 2)], (90,), r"inputs of shape \(90,\)"),
    ],
)  # fmt: skip
def test_what_a_page_cannot_do_is_named(
    tmp_path: Path, layers: list[nn.Module], shape: tuple[int, ...], words: str
) -> None:
    model = nn.Sequential(*layers).eval()
    if "LSTM" not in words:
        model(torch.zeros(1, *shape))
    with pytest.raises(ConfigError, match=words):
        export.html(tied(model), model, tmp_path / "page.html", torch.zeros(1, *shape))
    assert not (tmp_path / "page.html").exists()


def test_a_file_of_another_network_is_one_sentence(tmp_path: Path) -> None:
    words = ["export", "html", str(LENET_5), "--model", "lenet-300-100"]
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 2
    assert "does not fit the model" in done.output
    assert done.output.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def small_page(folder: Path, record: str | None = None, title: str | None = None) -> str:
    """The page of a network of 64 inputs, whose file has this record beside it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.25)
    size = reefknot.save(tied(model), folder / "model.reef")
    if record is not None:
        (folder / "record.json").write_text(record.replace("BYTES", str(size)))
    example = torch.zeros(1, 1, 8, 8)
    export.html(folder / "model.reef", model, folder / "page.html", example, title=title)
    return (folder / "page.html").read_text()


@pytest.mark.parametrize(
    "entries",
    [
        '"data": "mnist", "test_error": "x"', '"data": "mnist", "test_error": [1]',
        '"data": "mnist", "test_error": 1e999', '"data": "mnist", "test_error": NaN',
        '"data": "mnist", "test_error": true', '"data": "mnist", "test_error": 1' + "0" * 400,
        '"data": [], "test_error": 1.5', '"network": "\\ud800"', '"network": ["x"]',
        '"network": ' + "[" * 200_000,
    ],
)  # fmt: skip
def test_entries_that_no_run_writes_are_left_out_of_the_page(tmp_path: Path, entries: str) -> None:
    plain = small_page(tmp_path)
    assert small_page(tmp_path, f'{{"file_bytes": BYTES, {entries}}}') == plain
    good = '"network": "mine", "data": "mnist", "test_error": 1.5'
    assert small_page(tmp_path, f'{{"file_bytes": BYTES, {good}}}') != plain


def test_the_size_of_a_page_is_told_whatever_its_title_is(tmp_path: Path) -> None:
    record = '{"file_bytes": BYTES, "network": "SIZE=\\"\\""}'
    for text in (small_page(tmp_path, record), small_page(tmp_path, title='SIZE=""')):
        assert '<title>SIZE="" in ' in text
        assert f'let SIZE="{len(text.encode()):,}",' in text


def test_a_title_that_is_not_unicode_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"title 'a\\udcff' is not valid Unicode"):
        small_page(tmp_path, title="a\udcff")


def test_only_tied_or_kept_float32_is_read_by_a_page(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    halves = {name: values.half() for name, values in model.state_dict().items()}
    state = reefknot.cluster(halves, num_clusters=5, min_size=0)
    with pytest.raises(ConfigError, match=r"'1.weight' is of type F16"):
        export.html(state, model, tmp_path / "page.html", torch.zeros(1, 1, 8, 8))


def test_a_file_of_version_2_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "format" / "golden" / "v2-scaled-auto.reef"
    with pytest.raises(ConfigError, match="is of version 2 of the format, with scales, which a"):
        export.html(source, nn.Linear(4, 2), tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
