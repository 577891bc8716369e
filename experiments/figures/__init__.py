"""The figures of the paper, drawn from committed data alone.

    python -m experiments.figures          # every figure again, and its place in docs/paper.md

Takes     experiments/records/figures/STUDY.json (made by `experiments.studies`), and for figure 8
          two records of LeNet-5.
Gives     docs/figures/NAME-light.svg and NAME-dark.svg, and the text between the marks of
          docs/paper.md: what was found, the verdict on each claim by its rule, and what is open or
          reduced.

A figure is a module with NUMBER, STUDY (None if it is made from records), ALT (its alternative
text), `read()` if its data is not that of one study, `draw(data, theme)`, and `found(data)`: what
the data show, in sentences.

    page.py            docs/paper.md                      besides.py          claims, no figure
    verdicts.py        what becomes of each claim         reduced.py          what we have less of
    style.py           colours, canvas, SVG
    histogram.py       1, weights before and after        losses.py           2, losses and errors
    generalisation.py  3, three networks                  pareto.py           4, sparsity and error
    clusters.py        5, centers over time               errors.py           6, over K and over t
    local_filter.py    7, one filter at 576 positions     conv_filters.py     8, LeNet-5's first
    pixels.py          9, live input pixels               first_layer.py      10, 300 small images
    byte_curve.py      error against bytes, for the README; not in the paper
    while_training.py  what a step costs, for docs/performance.md; not in the paper
"""

from types import ModuleType

from experiments.figures import (
    byte_curve,
    clusters,
    conv_filters,
    errors,
    first_layer,
    generalisation,
    histogram,
    local_filter,
    losses,
    pareto,
    pixels,
    while_training,
)

FIGURES: tuple[ModuleType, ...] = (
    *(histogram, losses, generalisation, pareto, clusters, errors),
    *(local_filter, conv_filters, pixels, first_layer),
)
DRAWN = (*FIGURES, byte_curve, while_training)
