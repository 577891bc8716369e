"""The commands on files: pack, unpack, inspect, verify. Imports are lazy: --help stays quick."""

import json
import re
from pathlib import Path
from typing import Any

import click

from reefknot.cli.export import as_dict, show, shrunk
from reefknot.cli.printing import DEBUG, in_a_row, plain, print_table, table_of

_EXISTING = click.Path(path_type=Path)


def _limit(_: click.Context, __: click.Parameter, max_bytes: int | None) -> int:
    from reefknot.format import MAX_BYTES

    return MAX_BYTES if max_bytes is None else max_bytes


_MAX_BYTES = click.option(
    "--max-bytes", type=click.IntRange(min=0), callback=_limit,
    help="Refuse a file whose tensors take up more than this.",
)  # fmt: skip


@click.command()
@click.argument("source", type=_EXISTING)
@click.argument("target", type=_EXISTING)
@click.option("--size", metavar="BYTES", help="Size of the whole file, such as 900KB or 12MB.")
@click.option("--bits", type=float, help="Size in bits per weight, everything counted.")
@click.option(
    "--error",
    type=float,
    help="No row of weights changes by more, relatively; of outputs with inputs.",
)
@click.option("--model", "model_name", metavar="MODULE:FUNCTION", help="Makes the model of SOURCE.")
@click.option(
    "--inputs", metavar="MODULE:FUNCTION", help="Gives batches of unlabelled inputs for --model."
)
@click.option(
    "--example", metavar="MODULE:FUNCTION", help="Gives one batch; random ones like it are used."
)
@click.option("--for-inference", is_flag=True, help="BatchNorm as scale and shift, in few bits.")
@click.option(
    "--clusters", type=int, help="Shared values for each tensor (or the network), zero included."
)
@click.option("--density", type=float, help="Fraction of elements that may stay non-zero.")
@click.option(
    "--scope", type=click.Choice(["tensor", "network"]), default="tensor", show_default=True
)
@click.option(
    "--keep", multiple=True, metavar="GLOB", help="Names to keep exactly, such as '*.bias'."
)
@click.option(
    "--min-size", type=click.IntRange(min=0),
    help="Keep tensors with fewer elements exactly, and those of one dimension; 0 for none. "
    "[default: 256 with a budget, 1,024 with clusters]",
)  # fmt: skip
@click.option(
    "--effort", type=click.Choice(["auto", "tight", "fast"]), default="auto", show_default=True
)
@click.option("--key", help="The state dict in a torch file that holds more, such as net.")
@click.option("--force", "-f", is_flag=True, help="Replace TARGET if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def pack(
    source: Path, target: Path, size: str | None, bits: float | None, error: float | None,
    model_name: str | None, inputs: str | None, example: str | None, for_inference: bool,
    clusters: int | None, density: float | None, scope: Any,
    keep: tuple[str, ...], min_size: int | None, effort: Any, key: str | None, force: bool,
    as_json: bool, debug: bool,
) -> None:  # fmt: skip
    """Write a checkpoint (.safetensors, its index, .pt, .pth, .bin, a folder) as a .reef file.

    Without options nothing is changed: every value reads back bit for bit. --size, --bits and
    --error are one budget for the whole network, spent where it does the least harm. --clusters
    and --density treat all tensors alike. Either way one-dimensional and small tensors (biases,
    norm layers) are kept exactly. The metadata of a safetensors file is not kept.

    With --model and --inputs each layer is packed for the inputs it receives, so that the outputs
    change less at the same file size.
    """
    from reefknot.errors import ConfigError
    from reefknot.packing import budget as budgets
    from reefknot.packing import clustering
    from reefknot.packing.pack import pack as pack_file

    click.get_current_context().meta[DEBUG] = debug
    asked = (None if size is None else _num_bytes(size), bits, error)
    budget = None if asked == (None, None, None) else budgets.Budget(*asked)
    if min_size is None:
        min_size = clustering.MIN_SIZE if budget is None else budgets.MIN_SIZE
    settings = clustering.Settings(clusters, density, scope, keep, min_size)
    if model_name is None:
        if inputs or example or for_inference:
            raise ConfigError("--inputs, --example and --for-inference need a --model")
        packed = pack_file(
            source, target, settings, budget=budget, effort=effort, force=force, key=key
        )
    else:
        if budget is None or not settings.lossless or not (inputs or example):
            raise ConfigError(
                "--model needs --inputs or --example, one of --size, --bits and --error, and "
                "neither --clusters nor --density"
            )
        packed = _pack_model(
            source, target, model_name, force=force, inputs=inputs, example=example,
            size=budget.size, bits=bits, error=error, for_inference=for_inference,
            keep=keep, min_size=min_size, effort=effort, state_key=key,
        )  # fmt: skip
    in_short = settings.lossless and budget is None
    _show_packed(packed, source, target, as_json=as_json, in_short=in_short)


def _show_packed(packed: Any, source: Path, target: Path, *, as_json: bool, in_short: bool) -> None:
    """Print what was packed, and warnings to standard error."""
    if as_json:
        rows = [vars(change) for change in packed.changes]
        click.echo(json.dumps({
            "original_bytes": packed.original_bytes, "file_bytes": packed.file_bytes,
            "rate_file": packed.rate_file, "relative_error": packed.relative_error,
            "worst_row": packed.worst_row,
            "warnings": packed.warnings, "metadata_left_out": packed.metadata_left_out,
            "outputs": packed.outputs and vars(packed.outputs), "tensors": rows,
        }))  # fmt: skip
    elif in_short:
        tied = sum(change.done.startswith("tied") for change in packed.changes)
        count = f"{len(packed.changes):,} tensors, {tied:,} of them with few values"
        scaled = sum(change.done.startswith("integers") for change in packed.changes)
        count += f", {scaled:,} as integers and scales (version 2)" if scaled else ""
        click.echo(f"{count}: nothing changed\n{_sizes(packed)}, wrote {plain(target)}")
    else:
        print_table(_changes(packed))
        click.echo(f"{_sizes(packed)}, wrote {plain(target)}")
        if packed.lossless:
            click.echo("nothing changed: every value reads back as it was")
        if packed.outputs is not None:
            click.echo(str(packed.outputs))
    if packed.metadata_left_out:
        keys = ", ".join(plain(key) for key in packed.metadata_left_out[:5])
        keys += ", ..." * (len(packed.metadata_left_out) > 5)
        click.echo(f"reefknot: the metadata of {plain(source)} is not kept: {keys}", err=True)
    for sentence in packed.warnings:
        click.echo(f"reefknot: warning: {plain(sentence)}", err=True)


def _pack_model(
    source: Path, target: Path, model_name: str, *, force: bool, inputs: str | None,
    example: str | None, state_key: str | None, **options: Any,
) -> Any:  # fmt: skip
    """Pack the model that a user's function makes, with the weights of a checkpoint."""
    from torch import nn

    from reefknot.errors import ConfigError
    from reefknot.packing.models import load_checkpoint
    from reefknot.packing.models import pack as pack_model
    from reefknot.packing.pack import refuse_to_replace
    from reefknot.reference import named_networks, resolve
    from reefknot.tensorfile import files_of

    refuse_to_replace(target, force, files_of(source))
    model: Any = resolve(model_name, named_networks()[0], "network")
    if not isinstance(model, nn.Module):
        model = _called(model, model_name)
    load_checkpoint(model, source, state_key)
    given: dict[str, Any] = {}
    for key, name in (("inputs", inputs), ("example_input", example)):
        if name is not None:
            given[key] = _called(resolve(name, {}, "function of inputs"), name)
    if len(given) > 1:
        raise ConfigError("give --inputs or --example, not both")
    return pack_model(model, target, **given, **options)


def _called(function: Any, name: str) -> Any:
    """What a user's function gives."""
    from reefknot.errors import UserCodeError

    try:
        return function()
    except Exception as error:
        raise UserCodeError(f"{name} failed: {type(error).__name__}: {error}") from error


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def _num_bytes(text: str) -> int:
    """A size such as 900KB or 1.5 MB in bytes; K is a thousand, Ki is 1,024."""
    found = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?)\s*((?:[KMG]I?)?)B?", text.strip().upper())
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not a size such as 900KB, 12MB or 880KiB", param_hint="--size"
        )
    return int(float(found[1].replace(",", "").replace("_", "")) * _UNITS[found[2]])


def _sizes(packed: Any) -> str:
    rate = f"({packed.rate_file:.1f}x)"
    return f"{packed.original_bytes:,} -> {packed.file_bytes:,} bytes {rate}"


def _changes(packed: Any) -> Any:
    """A table of what was done to each tensor; the last row is the whole network."""
    from rich.text import Text

    budget = any(change.bits is not None for change in packed.changes)
    titles = ["bits per weight"] * budget + ["relative L2 error", "its worst row", "largest error"]
    table = table_of("tensor", "what was done", *titles, text=2)
    for change in packed.changes:
        found = change.relative_error, change.worst_row, change.largest_error
        errors = [f"{error:.3g}" for error in found]
        bits = ["" if change.bits is None else f"{change.bits:.2f}"] * budget
        table.add_row(Text(in_a_row(change.name)), change.done, *bits, *errors)
    table.add_section()
    largest = max((change.largest_error for change in packed.changes), default=0.0)
    table.add_row(
        "the whole network", _sizes(packed), *[f"{packed.bits:.2f}"] * budget,
        f"{packed.relative_error:.3g}", f"{packed.worst_row:.3g}", f"{largest:.3g}",
    )  # fmt: skip
    return table


@click.command()
@click.argument("source", type=_EXISTING)
@click.argument("target", type=_EXISTING)
@click.option("--force", "-f", is_flag=True, help="Replace TARGET if it exists.")
@_MAX_BYTES
def unpack(source: Path, target: Path, force: bool, max_bytes: int) -> None:
    """Write a .reef file as a .safetensors file, in a folder as model.safetensors."""
    from reefknot.packing.pack import unpack as unpack_file

    size = unpack_file(source, target, force=force, max_bytes=max_bytes)
    click.echo(f"{source.stat().st_size:,} -> {size:,} bytes, wrote {plain(target)}")


@click.command()
@click.argument("file", type=_EXISTING)
@_MAX_BYTES
@click.option(
    "--model", "name", metavar="NAME", help="Its network: also show what `shrink` would remove."
)
@click.option("--input", "shape", metavar="SHAPE", help="What your own network takes: 1x28x28.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def inspect(file: Path, max_bytes: int, name: str | None, shape: str | None, as_json: bool) -> None:
    """Show where every byte of FILE went, beside the sizes of other formats."""
    from reefknot.inspection import COMPARE_BYTES
    from reefknot.inspection import inspect as inspect_file

    found = inspect_file(file, max_bytes=max_bytes)
    smaller = None if name is None else shrunk(file, name, shape)
    if as_json:
        more = {} if smaller is None else {"shrink": as_dict(smaller)}
        click.echo(json.dumps(found.to_json() | more))
        return
    from rich.text import Text

    scaled = any(row.num_scales for row in found.tensors)
    titles = ("scales", "in runs of", "their bytes") if scaled else ()
    table = table_of("tensor", "shape", "density", "bytes", "positions", "values", *titles, text=2)
    for row in found.tensors:
        shape = "x".join(map(str, row.shape)) or "-"
        numbers = [f"{number:,.1f}" for number in (row.bytes, row.position_bytes, row.value_bytes)]
        if row.num_scales:
            numbers += [f"{row.num_scales:,}", f"{row.run:,}", f"{row.scale_bytes:,.1f}"]
        table.add_row(Text(in_a_row(row.name)), shape, f"{row.density:.4f}", *numbers)
    print_table(table)
    sizes = table_of("stored as", "bytes", "rate")
    rows: list[tuple[str, float | None]] = [
        ("this file", found.file_bytes), ("  header", found.header_bytes),
        ("  codebooks", found.codebook_bytes), ("  tied tensors", found.tied_bytes),
        ("  kept tensors", found.kept_bytes), ("original", found.original_bytes),
        ("gzip -9", found.gzip_bytes), ("xz -6e", found.xz_bytes),
        ("zero-order entropy", found.entropy_bytes),
        ("fixed width, equation 2", found.fixed_bytes),
        ("CSR and Huffman, as the paper counts", found.paper_bytes),
    ]  # fmt: skip
    for label, size in rows:
        if size is None:
            sizes.add_row(label, "not tried", "")
            continue
        rate = "" if label.startswith("  ") or not size else f"{found.original_bytes / size:.1f}x"
        sizes.add_row(label, f"{size:,.0f}" if size >= 1000 else f"{size:,.1f}", rate)
    print_table(sizes)
    if found.gzip_bytes is None:
        click.echo(f"gzip and xz are not tried above {COMPARE_BYTES:,} bytes")
    click.echo(
        f"{found.num_weights:,} weights, density {found.density:.4f}, "
        f"{found.num_clusters} shared values"
    )
    if smaller is not None:
        show(smaller)


@click.command()
@click.argument("file", type=_EXISTING)
@click.option("--against", type=_EXISTING, help="A checkpoint whose every value must be in FILE.")
@_MAX_BYTES
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(file: Path, against: Path | None, max_bytes: int, as_json: bool) -> None:
    """Check that FILE is intact and can be decoded, and that it equals a checkpoint."""
    from reefknot.inspection import verify as verify_file

    found = verify_file(file, against, max_bytes=max_bytes)
    if as_json:
        click.echo(json.dumps(found.to_json()))
        return
    what = f"{found.num_tensors} tensors, {found.num_weights:,} weights decoded"
    click.echo(f"{plain(file)}: intact, {what}")
    if against is not None:
        zeros = found.negative_zeros
        note = f" ({zeros:,} times -0.0 there and +0.0 here, which count as equal)" if zeros else ""
        click.echo(f"every value equals {plain(against)}{note}")
