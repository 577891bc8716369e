"""The commands of `reefknot export`, and `shrink`: networks without their dead units, as files.

Imports are lazy: --help stays quick.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reefknot.cli.printing import in_a_row, plain, print_table, table_of
from reefknot.errors import ConfigError, ReefknotError, blamed_on

if TYPE_CHECKING:
    from torch import Tensor, nn

    from reefknot.reference import Input
    from reefknot.shrinking.network import Shrunk

_FILE = click.Path(path_type=Path)
_SOURCE = click.argument("source", type=_FILE)
_MODEL = click.option(
    "--model", "name", required=True, metavar="NAME",
    help="A network by its name in runs, or your own as package.module:function.",
)  # fmt: skip
_SHAPE = click.option(
    "--input", "shape", metavar="SHAPE",
    help="What your own network takes, without the batch, such as 1x28x28.",
)  # fmt: skip
_FORCE = click.option("--force", "-f", is_flag=True, help="Replace the file if it exists.")
_MEAN = click.option("--mean", help="Mean of your images' pixels, from 0 to 255; or one a channel.")
_STD = click.option("--std", help="Standard deviation of these pixels; or one a channel.")


def _out(what: str) -> Callable[[Any], Any]:
    return click.option("--out", required=True, type=_FILE, help=what)


@click.group()
def export() -> None:
    """Export a network to C, HTML, ONNX or safetensors."""


def network(name: str, shape: str | None) -> "tuple[nn.Module, Tensor | None, Input]":
    """The module of that name, an example input if the shape is known, and its `Input`."""
    sizes = None if shape is None else _sizes(shape)
    import torch
    from torch import nn

    from reefknot.reference import Input, named_networks, resolve

    networks, inputs = named_networks()
    make = resolve(name, networks, "network")
    with blamed_on(f"the network {name!r}"):
        model: Any = make()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{name} gave a {type(model).__name__}; a torch module was expected")
    known = inputs.get(name, Input(()))
    sizes = sizes or known.shape
    return model, torch.zeros(1, *sizes) if sizes else None, known


def _sizes(shape: str) -> tuple[int, ...]:
    """Sizes from text such as 1x28x28.

    >>> _sizes("1x28x28")
    (1, 28, 28)
    """
    sizes = shape.split("x")
    if not all(size.isdecimal() and 0 < int(size) < 1 << 20 for size in sizes):
        raise ConfigError(f"--input {shape}: expected a shape such as 1x28x28, without the batch")
    return tuple(map(int, sizes))


def _numbers(option: str, text: str | None) -> list[float] | None:
    """Numbers between commas.

    >>> _numbers("--mean", "125.3,123,113.9")
    [125.3, 123.0, 113.9]
    """
    try:
        return None if text is None else [float(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option} {text}: expected a number, or one for each channel, such as 125.3,123,113.9"
        ) from None


def _labels(text: str | None) -> list[str]:
    """Labels from a file that has one on each line, or between commas.

    >>> _labels("cat, dog")
    ['cat', 'dog']
    """
    if text is None:
        return []
    if "," in text:
        return [label.strip() for label in text.split(",")]
    try:
        return Path(text).read_text("utf-8").rstrip("\n").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--labels {text}: expected a text file with a label on each line, or labels between "
            f"commas: {error}"
        ) from None


# -- C and HTML ------------------------------------------------------------------------------


@export.command()
@_SOURCE
@_MODEL
@_out("Folder for net.c and net.h.")
@click.option(
    "--input", "inputs", multiple=True, metavar="u8|SHAPE",
    help="u8: bytes instead of floats. A shape such as 1x28x28: the input of your own network.",
)  # fmt: skip
@_MEAN
@_STD
@click.option(
    "--report", is_flag=True, help="Measure it on the chips whose compilers are installed."
)
def c(
    source: Path, name: str, out: Path, inputs: tuple[str, ...], mean: str | None,
    std: str | None, report: bool,
) -> None:  # fmt: skip
    """Write SOURCE (a .reef file) as C99: net.c and net.h, with net_run(input, output)."""
    from reefknot.export import Bytes
    from reefknot.export import c as write_c

    shapes = [text for text in inputs if text != "u8"]
    if len(shapes) > 1:
        raise ConfigError("--input: two shapes were given, expected one")
    model, example, known = network(name, shapes[0] if shapes else None)
    as_bytes = None
    if "u8" in inputs:
        means = _numbers("--mean", mean) or known.mean
        deviations = _numbers("--std", std) or known.deviation
        if means is None or deviations is None:
            raise ConfigError(
                f"--input u8: how bytes were normalised for {name!r} is not known: give --mean and "
                "--std, in units of bytes"
            )
        as_bytes = Bytes(means, deviations)
    elif mean is not None or std is not None:
        raise ConfigError("--mean and --std belong to --input u8; floats are normalised by you")
    written = write_c(source, model, out, example, as_bytes=as_bytes)
    click.echo(f"wrote {written.files[0]} and {written.files[1]}")
    click.echo(f"tables {written.table_bytes:,} bytes, arena {written.arena_bytes:,} bytes")
    if report:
        from reefknot.export.hardware import CHIPS, measure

        for chip in CHIPS.values():
            try:
                click.echo(str(measure(out, chip)))
            except ReefknotError as error:
                click.echo(f"{chip.name}: {error}")


@export.command()
@_SOURCE
@_MODEL
@_out("The page to write.")
@click.option("--input", "shape", metavar="SHAPE", help="Such as 1x28x28, for your own network.")
@_MEAN
@_STD
@click.option("--title", help="What the page calls the network.")
@click.option("--labels", help="Names of the classes: a,b,c or a file with one on each line.")
def html(
    source: Path, name: str, out: Path, shape: str | None, mean: str | None, std: str | None,
    title: str | None, labels: str | None,
) -> None:  # fmt: skip
    """Write SOURCE (a .reef file) as a page in which images are drawn or chosen, and read."""
    from reefknot.export import Pixels
    from reefknot.export import html as write_html

    model, example, known = network(name, shape or None)
    if (mean is None) != (std is None):
        raise ConfigError("--mean and --std go together: give both, or neither for those of MNIST")
    pixels = None
    means, deviations = _numbers("--mean", mean), _numbers("--std", std)
    if means and deviations:
        pixels = Pixels(means, deviations)
    elif known.mean is not None and known.deviation is not None:
        pixels = Pixels(known.mean, known.deviation, known.full)
    page = write_html(
        source, model, out, example, pixels=pixels, title=title, labels=_labels(labels)
    )
    sizes = f"{page.page_bytes:,} bytes, {page.file_bytes:,} of them the file"
    click.echo(f"wrote {plain(page.file)}: {sizes}")


# -- without dead units: safetensors and ONNX ------------------------------------------------


@export.command()
@_SOURCE
@_MODEL
@_out("The file to write.")
@_SHAPE
@_FORCE
def onnx(source: Path, **options: Any) -> None:
    """Write SOURCE (a .reef file) as ONNX, shrunk, with indices of four or eight bits."""
    written = _written("onnx", source, **options)
    click.echo(_summary(source, written))
    if written.checked:
        click.echo("ONNX Runtime gives the outputs of torch")
    else:
        click.echo("not compared with torch: onnxruntime is not installed")


@export.command()
@_SOURCE
@_MODEL
@_out("The file to write.")
@_SHAPE
@_FORCE
def safetensors(source: Path, **options: Any) -> None:
    """Write SOURCE (a .reef file) as safetensors, without its dead units."""
    click.echo(_summary(source, _written("safetensors", source, **options)))


@click.command()
@_SOURCE
@click.argument("out", type=_FILE, metavar="TARGET")
@_MODEL
@_SHAPE
@_FORCE
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def shrink(source: Path, as_json: bool, **options: Any) -> None:
    """Write the network of SOURCE (.reef) without its dead units as TARGET (.safetensors).

    Tensors keep their names and have smaller shapes; NAME_inputs.indices lists the inputs a dense
    layer reads, where it does not read all of them.
    """
    written = _written("safetensors", source, **options)
    if as_json:
        click.echo(json.dumps({"file_bytes": written.bytes} | as_dict(written.shrunk)))
        return
    show(written.shrunk)
    click.echo(_summary(source, written))


def _written(
    kind: str, source: Path, *, name: str, out: Path, shape: str | None, force: bool
) -> Any:
    from reefknot import export
    from reefknot.packing.pack import refuse_to_replace

    refuse_to_replace(out, force, [source])
    model, example, _ = network(name, shape)
    return getattr(export, kind)(source, model, out, example)


def _summary(source: Path, written: Any) -> str:
    before = f"{plain(source)} has {source.stat().st_size:,} bytes"
    return f"{before}; wrote {plain(written.path)}, {written.bytes:,} bytes"


def shrunk(file: Path, name: str, shape: str | None) -> "Shrunk":
    """The network of a file without its dead units."""
    from reefknot.export.shrunk import with_values
    from reefknot.shrinking.network import shrink as shrink_network

    model, example, _ = network(name, shape)
    return shrink_network(*with_values(file, model, example))


def show(found: "Shrunk") -> None:
    """Print what is removed from each layer, and which dead units cannot be removed."""
    from rich.text import Text

    table = table_of("layer", "inputs", "units", "parameters", "MACs", "constants folded")
    for row in found.table:
        pairs = (row.inputs, row.units, row.parameters, row.macs)
        table.add_row(Text(in_a_row(row.name)), *map(_pair, pairs), str(row.folded))
    table.add_section()
    table.add_row("the whole network", "", "", _pair(found.parameters), _pair(found.macs), "")
    print_table(table)
    for row in found.table:
        for reason, count in row.stuck:
            units = "1 idle unit stays" if count == 1 else f"{count} idle units stay"
            click.echo(f"{plain(row.name)}: {units}: {plain(reason)}")
    for one in found.unfollowed:
        click.echo(f"{plain(one.name)}: left as it is: {plain(one.reason)}")


def as_dict(found: "Shrunk") -> dict[str, Any]:
    """What is removed, for JSON: pairs are before and after."""
    layers = [vars(row) | {"stuck": dict(row.stuck)} for row in found.table]
    return {
        "parameters": found.parameters, "macs": found.macs, "layers": layers,
        "unfollowed": {one.name: one.reason for one in found.unfollowed},
    }  # fmt: skip


def _pair(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]:,} -> {sizes[1]:,}" if sizes[0] != sizes[1] else f"{sizes[0]:,}"
