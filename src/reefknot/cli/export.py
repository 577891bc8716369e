"""The commands of `reefknot export`. Imports are lazy: --help stays quick."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reefknot.errors import ConfigError, ReefknotError, blamed_on

if TYPE_CHECKING:
    from torch import Tensor, nn

    from reefknot.reference import Input

MODEL = click.option(
    "--model", "name", required=True, metavar="NAME",
    help="A network by its name in runs, or your own as package.module:function.",
)  # fmt: skip


@click.group()
def export() -> None:
    """Export a network to C, HTML, ONNX or safetensors."""


def network(name: str, shape: tuple[int, ...] | None) -> "tuple[nn.Module, Tensor | None, Input]":
    """The module of that name, an example input if the shape is known, and its `Input`."""
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
    shape = shape or known.shape
    return model, torch.zeros(1, *shape) if shape else None, known


def shape_of(text: str) -> tuple[int, ...]:
    """A shape from text such as 1x28x28.

    >>> shape_of("1x28x28")
    (1, 28, 28)
    """
    sizes = text.split("x")
    if not all(size.isdecimal() and 0 < int(size) < 1 << 20 for size in sizes):
        raise ConfigError(f"--input {text}: expected a shape such as 1x28x28, without the batch")
    return tuple(map(int, sizes))


@export.command()
@click.argument("source", type=click.Path(path_type=Path))
@MODEL
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for net.c and net.h."
)
@click.option(
    "--input", "inputs", multiple=True, metavar="u8|SHAPE",
    help="u8: bytes instead of floats. A shape such as 1x28x28: the input of your own network.",
)  # fmt: skip
@click.option("--mean", type=float, help="Mean of the bytes your own network was trained on.")
@click.option("--std", type=float, help="Standard deviation of these bytes.")
@click.option(
    "--report", is_flag=True, help="Measure it on the chips whose compilers are installed."
)
def c(
    source: Path, name: str, out: Path, inputs: tuple[str, ...], mean: float | None,
    std: float | None, report: bool,
) -> None:  # fmt: skip
    """Write SOURCE (a .reef file) as C99: net.c and net.h, with net_run(input, output)."""
    from reefknot.export import Bytes
    from reefknot.export import c as write_c

    shapes = [shape_of(text) for text in inputs if text != "u8"]
    if len(shapes) > 1:
        raise ConfigError("--input: two shapes were given, expected one")
    model, example, known = network(name, shapes[0] if shapes else None)
    as_bytes = None
    if "u8" in inputs:
        mean = known.mean if mean is None else mean
        std = known.deviation if std is None else std
        if mean is None or std is None:
            raise ConfigError(
                f"--input u8: how bytes were normalised for {name!r} is not known: give --mean and "
                "--std, in units of bytes"
            )
        as_bytes = Bytes(mean, std)
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
