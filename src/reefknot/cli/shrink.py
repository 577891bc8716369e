"""The commands `shrink`, `export safetensors` and `export onnx`, which shrink a network first.

Imports are lazy: --help stays quick.
"""

import json
from pathlib import Path
from typing import Any

import click

from reefknot.cli.export import MODEL, export, network, shape_of
from reefknot.cli.printing import plain
from reefknot.cli.shrinking import as_dict, show

_FILE = click.Path(path_type=Path)
SHAPE = click.option(
    "--input", "shape", metavar="SHAPE",
    help="What your own network takes, without the batch, such as 1x28x28.",
)  # fmt: skip
_FORCE = click.option("--force", "-f", is_flag=True, help="Replace the file if it exists.")


@click.command()
@click.argument("source", type=_FILE)
@click.argument("target", type=_FILE)
@MODEL
@SHAPE
@_FORCE
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def shrink(
    source: Path, target: Path, name: str, shape: str | None, force: bool, as_json: bool
) -> None:
    """Write the network of SOURCE (.reef) without its dead units as TARGET (.safetensors).

    Tensors keep their names and have smaller shapes; NAME_inputs.indices lists the inputs a dense
    layer reads, where it does not read all of them.
    """
    written = _safetensors(source, name, target, shape, force)
    if as_json:
        click.echo(json.dumps({"file_bytes": written.bytes} | as_dict(written.shrunk)))
        return
    show(written.shrunk)
    click.echo(_sizes(source, written))


@export.command(name="safetensors")
@click.argument("source", type=_FILE)
@MODEL
@click.option("--out", required=True, type=_FILE, help="The file to write.")
@SHAPE
@_FORCE
def write_safetensors(source: Path, name: str, out: Path, shape: str | None, force: bool) -> None:
    """Write SOURCE (a .reef file) as safetensors, without its dead units."""
    click.echo(_sizes(source, _safetensors(source, name, out, shape, force)))


@export.command(name="onnx")
@click.argument("source", type=_FILE)
@MODEL
@click.option("--out", required=True, type=_FILE, help="The file to write.")
@SHAPE
@_FORCE
def write_onnx(source: Path, name: str, out: Path, shape: str | None, force: bool) -> None:
    """Write SOURCE (a .reef file) as ONNX, shrunk, with indices of four or eight bits."""
    from reefknot.export import onnx
    from reefknot.packing.pack import refuse_to_replace

    refuse_to_replace(out, force, [source])
    model, example, _ = network(name, None if shape is None else shape_of(shape))
    written = onnx(source, model, out, example)
    click.echo(_sizes(source, written))
    if written.checked:
        click.echo("ONNX Runtime gives the outputs of torch")
    else:
        click.echo("not compared with torch: onnxruntime is not installed")


def _safetensors(source: Path, name: str, out: Path, shape: str | None, force: bool) -> Any:
    from reefknot.export import safetensors
    from reefknot.packing.pack import refuse_to_replace

    refuse_to_replace(out, force, [source])
    model, example, _ = network(name, None if shape is None else shape_of(shape))
    return safetensors(source, model, out, example)


def _sizes(source: Path, written: Any) -> str:
    before = f"{plain(source)} has {source.stat().st_size:,} bytes"
    return f"{before}; wrote {plain(written.path)}, {written.bytes:,} bytes"
