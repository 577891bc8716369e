"""Draw every figure that has data, and update docs/paper.md; see `experiments.figures`."""

from experiments.figures import DRAWN, page
from experiments.figures.style import DARK, LIGHT, styled, svg
from reefknot.files import write_atomically


def main() -> None:
    """Draw, write, and say what is open."""
    page.PICTURES.mkdir(exist_ok=True)
    for figure in DRAWN:
        data = page.read(figure)
        if data is None:
            print(f"{page.name_of(figure)}: open, needs {figure.STUDY or 'its records'}")
            continue
        for theme in (LIGHT, DARK):
            with styled(theme):
                text = svg(figure.draw(data, theme))
            path = page.PICTURES / f"{page.name_of(figure)}-{theme.name}.svg"
            write_atomically(path, text.encode())
        print(f"{page.name_of(figure)}: {len(text) // 1000} kB")
    page.DOCUMENT.write_text(page.written(page.DOCUMENT.read_text()))


if __name__ == "__main__":
    main()
