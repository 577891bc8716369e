"""Files that once broke something, each kept by name with what must happen to it."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from format.test_differential import by_the_reference
from reefknot.cli import main
from reefknot.errors import FormatError
from reefknot.format import decode

FOLDER = Path(__file__).parent / "hostile"
REFUSED = {
    "alias-bomb": "its 64 tensors, aliases included, take up 6,710,886,400 bytes",
    "bool-codebook-2": "a codebook is BOOL and holds the byte 2",
    "bool-scalar-codebook-238": "a codebook is BOOL and holds the byte 238",
    "empty-codebook-fast": "a table of frequencies does not fit its symbols",
    "grid-not-square": r"a tensor of shape \(7,\) cannot lie on grid 2",
    "i8-codebook-negative-part": "a codebook of I8 has a negative part, which only floats have",
    "negative-zero-codebook": r"a codebook holds -0\.0",
    "scale-not-finite": "has a scale that is NaN or infinite",
}
ACCEPTED = {  # what they decode to
    "no-elements": 0,
    "sevens-1gib-tied": 1 << 30,
    "sevens-64mib-tied": 64 << 20,
    "zeros-1gib-kept-fast": 1 << 30,
}
ONE_TENSOR = 100 << 20  # of the alias bomb


def data_of(name):
    return (FOLDER / f"{name}.reef").read_bytes()


def test_every_file_is_named_here():
    assert {path.stem for path in FOLDER.glob("*.reef")} == REFUSED.keys() | ACCEPTED.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_its_own_error(name):
    with pytest.raises(FormatError, match=REFUSED[name]):
        decode(data_of(name), max_bytes=ONE_TENSOR)


@pytest.mark.parametrize("name", REFUSED)
def test_the_reference_decoder_refuses_it_too(name):
    assert by_the_reference(data_of(name), ONE_TENSOR) is None


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["verify", "inspect", "unpack"])
def test_every_command_says_it_in_one_sentence(tmp_path, command, name):
    target = [str(tmp_path / "x.safetensors")] if command == "unpack" else []
    arguments = [command, str(FOLDER / f"{name}.reef"), *target, "--max-bytes", str(ONE_TENSOR)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if n.startswith("zeros-1gib") else [])
        for n in ACCEPTED
    ],
)
def test_it_is_read_within_its_limit_and_not_below(name):
    limit = ACCEPTED[name]
    assert decode(data_of(name), max_bytes=limit).original_bytes == limit
    if limit:
        with pytest.raises(FormatError, match=f"the limit is {limit - 1:,}"):
            decode(data_of(name), max_bytes=limit - 1)
        assert by_the_reference(data_of(name), limit - 1) is None


def test_a_file_without_elements_is_inspected():
    result = CliRunner().invoke(main, ["inspect", str(FOLDER / "no-elements.reef")])
    assert result.exit_code == 0, result.output
    assert "0 weights" in result.output
