"""What a recipe wants searched, and what is on the front."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from reefknot.errors import ConfigError
from reefknot.lab.report import front_of
from reefknot.lab.runs.config import make_config
from reefknot.lab.searching.space import space_of, trial_config

RECIPE = """
model = "digits-mlp"
data = "digits"
method = "sparse_apt"
settings.target_bytes = 802
training.steps = 100
training.threads = 2
"""


def config(table=""):
    return make_config(tomllib.loads(RECIPE + table))


# -- the table ------------------------------------------------------------------------------


def test_two_numbers_are_a_range_and_other_lists_are_choices():
    space = space_of(
        config(
            """
            [search]
            "settings.target_bytes" = [512, 8192]
            "optimizer.lr" = [0.3, 3.0]
            "optimizer.options.weight_decay" = [0, 1e-3]
            "optimizer.name" = ["adam", "sgd", "adam"]
            "training.batch_size" = [32, 64, 128]
            "training.shrink" = [true, false]
            """
        )
    )
    assert space == {
        "settings.target_bytes": IntDistribution(512, 8192, log=True),
        "optimizer.lr": FloatDistribution(0.3, 3.0, log=True),
        "optimizer.options.weight_decay": FloatDistribution(0, 1e-3),
        "optimizer.name": CategoricalDistribution(("adam", "sgd")),
        "training.batch_size": CategoricalDistribution((32, 64, 128)),
        "training.shrink": CategoricalDistribution((True, False)),
    }


def test_keys_may_be_quoted_or_tables_in_tables():
    nested = config("[search]\nsettings.target_bytes = [512, 8192]\n")
    quoted = config('[search]\n"settings.target_bytes" = [512, 8192]\n')
    assert space_of(nested) == space_of(quoted)


def test_without_a_table_sizes_from_a_fourth_to_four_times_are_searched():
    assert space_of(config()) == {"settings.target_bytes": IntDistribution(200, 3208, log=True)}


def test_without_a_table_and_without_a_size_there_is_nothing_to_search():
    recipe = tomllib.loads(RECIPE) | {"settings": {"target_density": 0.1}}
    with pytest.raises(ConfigError, match=r"neither a \[search\] table nor settings.target_bytes"):
        space_of(make_config(recipe))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('"optimizer.lrr" = [0.1, 1.0]', r"\[search\] unknown key 'optimizer.lrr'; did you mean"),
        ('"settings.target_byte" = [1, 9]', r"\[search\] sparse_apt has no setting 'target_byte'"),
        ('"optimizer.lr" = [1.0, 0.1]', "must go from the lower number to the higher, found"),
        ('"optimizer.lr" = [0.5, 0.5]', "must go from the lower number to the higher"),
        ('"optimizer.lr" = 0.5', "must be two numbers, a range, or a list of at least two choices"),
        ('"optimizer.lr" = [0.5]', "at least two choices, found"),
        ('"optimizer.lr" = [[0.1, 1.0], [1.0, 2.0]]', "choices are numbers, texts, true or false"),
        ('"optimizer.lr" = [-1.0, 1.0]', r"\[search\] optimizer.lr must be a number of at least 0"),
        ('"optimizer.name" = ["adam", "adan"]', r"\[search\] unknown optimizer 'adan'; did you me"),
        ('"data" = ["digits", "mnist"]', "the same in all trials, and cannot be searched"),
        ('"evaluate_test" = [true, false]', "cannot be searched"),
        ('"seed.deep" = [1, 2]', r"\[search\] seed.deep: 'seed' is not a table"),
    ],
)
def test_a_mistake_in_the_table_is_one_sentence(entry, words):
    recipe = make_config(tomllib.loads("seed = 1\n" + RECIPE + f"[search]\n{entry}\n"))
    with pytest.raises(ConfigError, match=words):
        space_of(recipe)


def test_all_mistakes_of_the_table_are_told_together():
    with pytest.raises(ConfigError, match="2 mistakes"):
        space_of(config('[search]\n"optimizer.lr" = [2.0, 1.0]\n"data" = ["a", "b"]\n'))


def test_a_trial_has_its_values_one_thread_and_no_test_data():
    recipe = config('[search]\n"optimizer.lr" = [0.3, 3.0]\n')
    trial = trial_config(recipe, {"optimizer.lr": 0.5, "settings.target_bytes": 900})
    assert (trial.optimizer.lr, trial.settings["target_bytes"]) == (0.5, 900)
    assert (trial.evaluate_test, trial.training.threads, trial.search) == (False, 1, {})
    assert trial.training.steps == 100


# -- the front ------------------------------------------------------------------------------

POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=12)


@given(POINTS)
def test_the_front_is_what_no_other_point_beats(points):
    found = [points[place] for place in front_of(points)]

    def beaten(point):
        return any(o != point and o[0] <= point[0] and o[1] <= point[1] for o in points)

    assert found == sorted({point for point in points if not beaten(point)})
