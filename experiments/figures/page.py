"""docs/paper.md: pictures and what they show, put between its marks.

Takes     the figures, and the data that is there.
Gives     the page with every picture that can be drawn, its sentences, what becomes of each claim,
          and a list of what is open or reduced.
Unaware   of how a figure is drawn.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.figures import FIGURES, besides, reduced, verdicts
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


def verdict(mark: int | str) -> str:
    """What becomes of the claim of a figure, by its number, or of a study without one."""
    if isinstance(mark, int):
        data = read(next(figure for figure in FIGURES if mark == figure.NUMBER))
        rule = verdicts.BY_FIGURE[mark]
    else:
        path = record_of(STUDIES[mark])
        data = json.loads(path.read_text()) if path.exists() else None
        rule = verdicts.BY_STUDY[mark]
    return "**Verdict: is open.**" if data is None else verdicts.told(rule(data))


def ours(study: str) -> str:
    """What a study ran, and what it has less of than the paper."""
    path = record_of(STUDIES[study])
    if not path.exists():
        return f"*Open: the study `{study}` has not been run.*"
    return reduced.told(study, json.loads(path.read_text()))


def open_ones() -> str:
    """Figures without data and the commands that make it; then what is reduced, and by how much."""
    wanted: dict[str, list[str]] = {}
    for figure in FIGURES:
        for study in getattr(figure, "STUDIES", (figure.STUDY,)):
            if study is not None:
                wanted.setdefault(study, []).append(f"figure {figure.NUMBER}")
    for study in besides.SENTENCES:
        wanted.setdefault(study, ["a sentence"])
    lines = []
    for study, what in wanted.items():
        path, less = record_of(STUDIES[study]), ["not run"]
        if path.exists():
            data = json.loads(path.read_text())
            less = reduced.reductions(study, data) if study in reduced.PAPER else []
        if less:
            lines.append(
                f"- {' and '.join(what)}: {'; '.join(less)}. `python -m experiments.studies "
                f"{study}` (about {STUDIES[study].MINUTES:g} minutes a run)"
            )
    return "\n".join(lines) or "Nothing."


def written(text: str) -> str:
    """The page with every mark filled from the current data."""
    marks = {f"figure {figure.NUMBER}": block(figure) for figure in FIGURES}
    marks |= {name: besides.sentence(name) for name in besides.SENTENCES}
    marks |= {f"verdict figure {number}": verdict(number) for number in verdicts.BY_FIGURE}
    marks |= {f"verdict {study}": verdict(study) for study in verdicts.BY_STUDY}
    marks |= {f"ours {study}": ours(study) for study in reduced.PAPER}
    marks["open"] = open_ones()
    for mark, content in marks.items():
        before, found, rest = text.partition(f"<!-- {mark} -->\n")
        if found:
            after = rest.partition(f"<!-- /{mark} -->")[2]
            text = f"{before}{found}{content}\n<!-- /{mark} -->{after}"
    return text
