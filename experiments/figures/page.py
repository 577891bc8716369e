"""docs/paper.md: pictures and what they show, put between its marks.

Takes     the figures, and the data that is there.
Gives     the page with every picture that can be drawn, its sentences, and a list of what is open.
Unaware   of how a figure is drawn.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.figures import FIGURES, besides
from experiments.studies import STUDIES
from experiments.studies.driver import record_of

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "paper.md"
PICTURES = ROOT / "docs" / "figures"


def name_of(figure: ModuleType) -> str:
    """The name of its files."""
    return figure.__name__.rpartition(".")[2]


def read(figure: ModuleType) -> Any:
    """The figure's data; None where there is none yet."""
    if hasattr(figure, "read"):
        return figure.read()
    path = record_of(STUDIES[figure.STUDY])
    return json.loads(path.read_text()) if path.exists() else None


def block(figure: ModuleType) -> str:
    """A picture for light and dark pages, and what the data show."""
    data, name = read(figure), name_of(figure)
    if data is None:
        return f"*Figure {figure.NUMBER} is open: the study `{figure.STUDY}` has not been run.*"
    return (
        "<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)" srcset="figures/{name}-dark.svg">\n'
        f'  <img src="figures/{name}-light.svg" alt="{figure.ALT}">\n'
        "</picture>\n\n"
        f"**Figure {figure.NUMBER}, found.** {figure.found(data)}"
    )


def open_ones() -> str:
    """The figures without data, and the commands that make their data."""
    wanted: dict[str, list[str]] = {}
    for figure in FIGURES:
        for study in getattr(figure, "STUDIES", (figure.STUDY,)):
            if study is not None and not record_of(STUDIES[study]).exists():
                wanted.setdefault(study, []).append(f"figure {figure.NUMBER}")
    for study in besides.SENTENCES:
        if not record_of(STUDIES[study]).exists():
            wanted.setdefault(study, []).append("a sentence")
    lines = [
        f"- {' and '.join(what)}: `python -m experiments.studies {study}` "
        f"(about {STUDIES[study].MINUTES:g} minutes a run)"
        for study, what in wanted.items()
    ]
    return "\n".join(lines) or "Nothing."


def written(text: str) -> str:
    """The page with every mark filled from the current data."""
    marks = {f"figure {figure.NUMBER}": block(figure) for figure in FIGURES}
    marks |= {name: besides.sentence(name) for name in besides.SENTENCES}
    marks["open"] = open_ones()
    for mark, content in marks.items():
        before, found, rest = text.partition(f"<!-- {mark} -->\n")
        if found:
            after = rest.partition(f"<!-- /{mark} -->")[2]
            text = f"{before}{found}{content}\n<!-- /{mark} -->{after}"
    return text
