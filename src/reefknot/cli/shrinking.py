"""What `shrink` removes from a network, as tables and as JSON. Imports are lazy."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reefknot.cli.export import network, shape_of
from reefknot.cli.printing import plain, print_table, table_of

if TYPE_CHECKING:
    from reefknot.shrinking.network import Shrunk


def shrunk(file: Path, name: str, shape: str | None) -> "Shrunk":
    """The network of a file without its dead units."""
    from reefknot.export.shrunk import with_values
    from reefknot.shrinking.network import shrink as shrink_network

    model, example, _ = network(name, None if shape is None else shape_of(shape))
    return shrink_network(*with_values(file, model, example))


def show(found: "Shrunk") -> None:
    """Print what is removed from each layer, and which dead units cannot be removed."""
    from rich.text import Text

    table = table_of("layer", "inputs", "units", "parameters", "MACs", "constants folded")
    for row in found.table:
        pairs = (row.inputs, row.units, row.parameters, row.macs)
        table.add_row(Text(plain(row.name)), *map(_pair, pairs), str(row.folded))
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
    """The same for JSON: pairs are before and after."""
    layers = [vars(row) | {"stuck": dict(row.stuck)} for row in found.table]
    return {
        "parameters": found.parameters, "macs": found.macs, "layers": layers,
        "unfollowed": {one.name: one.reason for one in found.unfollowed},
    }  # fmt: skip


def _pair(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]:,} -> {sizes[1]:,}" if sizes[0] != sizes[1] else f"{sizes[0]:,}"
