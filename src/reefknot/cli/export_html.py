"""The command `reefknot export html`. Imports are lazy: --help stays quick."""

from pathlib import Path

import click

from reefknot.cli.export import MODEL, network, shape_of
from reefknot.cli.printing import plain
from reefknot.errors import ConfigError


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@MODEL
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The page to write.")
@click.option("--input", "shape", metavar="SHAPE", help="Such as 1x28x28, for your own network.")
@click.option("--mean", type=float, help="Mean of your images' pixels, from 0 to 255.")
@click.option("--std", type=float, help="Standard deviation of these pixels.")
@click.option("--title", help="What the page calls the network.")
def html(
    source: Path, name: str, out: Path, shape: str | None, mean: float | None, std: float | None,
    title: str | None,
) -> None:  # fmt: skip
    """Write SOURCE (a .reef file) as a page in which digits are drawn and read."""
    from reefknot.export import Pixels
    from reefknot.export import html as write_html

    model, example, known = network(name, shape_of(shape) if shape else None)
    if (mean is None) != (std is None):
        raise ConfigError("--mean and --std go together: give both, or neither for those of MNIST")
    pixels = Pixels()
    if mean is not None and std is not None:
        pixels = Pixels(mean, std)
    elif known.mean is not None and known.deviation is not None:
        pixels = Pixels(known.mean, known.deviation, known.full)
    page = write_html(source, model, out, example, pixels=pixels, title=title)
    sizes = f"{page.page_bytes:,} bytes, {page.file_bytes:,} of them the file"
    click.echo(f"wrote {plain(page.file)}: {sizes}")
