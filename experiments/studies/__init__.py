"""Studies: runs that are not recipes, and one small data file from each study.

    python -m experiments.studies                     # every study that has no data file yet
    python -m experiments.studies pareto --jobs 2     # this one, on two processes of one thread
    python -m experiments.studies --list              # what is done and left; runs nothing
    python -m experiments.studies refits --shorter 10 # a trial at a tenth of the steps, no record
    python -m experiments.studies pareto --partial    # the data file from the runs finished so far

Takes     a module for each study, below; MNIST in REEFKNOT_DATA.
Gives     experiments/records/figures/STUDY.json, which figures and tables are made from.

A study is a module with

    MINUTES             how long one of its runs takes on one core
    SETTINGS            what its runs have in common: it goes into the data file, where the page
                        compares it with the paper's; with other settings a run is done again
    cases(done)         the runs that it needs: a table from names to arguments of `measure`. `done`
                        has the results of finished runs, from which a search decides what is next
    measure(**case)     one run; its result can be written as JSON
    data(done)          the data of the figure or the table
    MARK, table(data)   for a study with a table in docs/method.md, or in the DOCUMENT that it
                        names: its mark there, and its text

Each finished run is a file under --runs, beside the checkout by default, at once. An interrupted
study continues with the remaining runs; what was under way begins again.

    driver.py        the processes              training.py       one run, measured
    behaviour.py     figures 1, 2, 5            generalisation.py figures 3, 7
    pareto.py        figure 4                   num_clusters.py   figure 6, K
    refits.py        figure 6, t                first_layer.py    figures 9, 10
    variants.py      exact k-means, k-medians   autograd.py       the pull by autograd
    l1_steps.py      two L1 steps               schedules.py      learning rates
    norm_layers.py   norm layers, tied or not   while_training.py what shrinking saves
"""

from types import ModuleType

from experiments.studies import (
    autograd,
    behaviour,
    first_layer,
    generalisation,
    l1_steps,
    norm_layers,
    num_clusters,
    pareto,
    refits,
    schedules,
    variants,
    while_training,
)

_ALL = (behaviour, first_layer, pareto, variants, autograd, num_clusters, refits)
_ALL += (generalisation, l1_steps, schedules, norm_layers, while_training)
STUDIES: dict[str, ModuleType] = {study.__name__.rpartition(".")[2]: study for study in _ALL}
