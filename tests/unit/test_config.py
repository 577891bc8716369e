"""Configurations: every mistake found at once, and TOML that reads back to itself."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reefknot.errors import ConfigError, ReefknotError
from reefknot.lab.runs.config import Config, make_config, nearest, read_config, to_toml
from reefknot.lab.runs.parts import build
from reefknot.lab.runs.training import Plan

LEAST: dict[str, Any] = {"model": "digits-mlp", "data": "digits", "method": "sparse_apt"}


def mistakes_of(**more: Any) -> tuple[str, ...]:
    """What is wrong with the smallest configuration and these entries."""
    with pytest.raises(ConfigError) as caught:
        make_config(LEAST | more)
    return caught.value.mistakes


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


LEAST_TOML = 'model = "digits-mlp"\ndata = "digits"\nmethod = "sparse_apt"\n'


# -- defaults and the plan ------------------------------------------------------------------


def test_three_entries_are_enough() -> None:
    config = make_config(LEAST)
    assert (config.model, config.data, config.method) == ("digits-mlp", "digits", "sparse_apt")
    assert (config.seed, config.start, config.evaluate_test) == (0, None, True)
    assert config.training.batch_size == 128
    assert config.optimizer.name == "adadelta"


def test_the_plan_takes_the_soft_lr_for_hard_tying_unless_told() -> None:
    table = {"training": {"soft_steps": 5, "hard_steps": 2}}
    same = make_config(LEAST | table | {"optimizer": {"lr": 0.5}})
    assert same.plan == Plan(steps=7, soft_steps=5, lr=0.5, hard_lr=0.5, decay="constant")
    other = make_config(LEAST | table | {"optimizer": {"lr": 0.5, "hard_lr": 0, "decay": "cosine"}})
    assert other.plan == Plan(steps=7, soft_steps=5, lr=0.5, hard_lr=0.0, decay="cosine")


def test_without_any_steps_the_plan_is_the_papers() -> None:
    plan = Plan(steps=70_000, soft_steps=60_000, lr=1.0, hard_lr=1.0, decay="constant")
    assert make_config(LEAST).plan == plan
    only_hard = make_config(LEAST | {"training": {"soft_steps": 0}}).plan
    assert (only_hard.steps, only_hard.soft_steps) == (10_000, 0)


BUDGET: dict[str, Any] = LEAST | {
    "settings": {"target_bytes": 3_300},
    "training": {"steps": 60_000},
}


def test_with_a_budget_the_phases_are_the_methods_own() -> None:
    config = make_config(BUDGET)
    plan = Plan(steps=60_000, soft_steps=None, lr=1.0, hard_lr=1.0, decay="phases")
    assert config.plan == plan
    assert config.method_settings == {"target_bytes": 3_300, "steps": 60_000, "begin": "sparsify"}
    own = make_config(BUDGET | {"optimizer": {"decay": "cosine"}})
    assert (own.plan.decay, own.plan.soft_steps) == ("cosine", None)


def test_a_start_makes_a_budget_begin_with_a_trained_network() -> None:
    config = make_config(BUDGET | {"start": "/parent.reef"})
    assert config.method_settings["begin"] == "trained"
    told = {"target_bytes": 3_300, "begin": "sparsify"}
    assert make_config(BUDGET | {"start": "/p.reef", "settings": told}).method_settings == (
        told | {"steps": 60_000}
    )
    without = make_config(LEAST | {"start": "/parent.reef"})
    assert without.method_settings == {}


def test_a_network_without_compression_trains_for_the_steps_of_a_budget() -> None:
    config = make_config(LEAST | {"method": "dense", "training": {"steps": 50}})
    assert config.plan == Plan(steps=50, soft_steps=50, lr=1.0, hard_lr=1.0, decay="cosine")
    assert config.method_settings == {}
    replaced = replace(make_config(BUDGET), method="dense", settings={})
    assert replaced.plan.soft_steps == replaced.plan.steps == 60_000


@pytest.mark.parametrize("part", ["soft_steps", "hard_steps"])
def test_steps_of_a_budget_and_of_soft_or_hard_tying_exclude_each_other(part: str) -> None:
    found = mistakes_of(settings={"target_bytes": 3_300}, training={"steps": 60_000, part: 10})
    assert found == (
        "training.steps is for a budget, soft_steps and hard_steps for the rest; choose one",
    )


@pytest.mark.parametrize("length", [{"steps": 60_000}, {"soft_steps": 10, "hard_steps": 0}])
def test_the_best_state_is_one_of_hard_steps(length: dict[str, Any]) -> None:
    settings = {"target_bytes": 3_300} if "steps" in length else {}
    found = mistakes_of(settings=settings, training=length | {"keep_best": True})
    assert found == (
        "training.keep_best chooses among hard steps; give training.hard_steps, and no steps",
    )


@pytest.mark.parametrize("training", [{}, {"steps": 60_000}])
def test_steps_are_no_setting(training: dict[str, Any]) -> None:
    found = mistakes_of(settings={"target_bytes": 3_300, "steps": 50}, training=training)
    assert "steps belongs to [training], not to [settings]" in found


@pytest.mark.parametrize(
    ("more", "beginning"),
    [
        ({"settings": {"target_bytes": 3_300}}, "target_bytes needs steps"),
        ({"training": {"steps": 60_000}}, "steps needs target_bytes or target_density"),
        (
            {"settings": {"target_bytes": 3_300}, "training": {"steps": 5}},
            "steps must be a whole number of steps, at least 10, found 5",
        ),
        ({"settings": {"target_bytes": 0}, "training": {"steps": 50}}, "target_bytes must be"),
        (
            {"settings": {"target_bytes": 9, "l1_strength": 1.0}, "training": {"steps": 50}},
            "l1_strength is set by the budget",
        ),
        (
            {"method": "l2", "training": {"steps": 60_000}},
            "l2 has no budget; give training.soft_steps and training.hard_steps",
        ),
        (
            {"method": "dense", "training": {"steps": 0}},
            "training.steps must be at least 1, found 0",
        ),
        (
            {"optimizer": {"decay": "phases"}},
            'optimizer.decay = "phases" is the schedule of a budget, which needs training.steps',
        ),
        (
            {
                "settings": {"target_bytes": 9},
                "training": {"steps": 50},
                "optimizer": {"hard_lr": 0.1},
            },
            "optimizer.hard_lr goes with training.soft_steps and hard_steps, not with steps",
        ),
        (
            {"method": "l2", "settings": {"steps": 10}},
            "l2 has no setting 'steps'",
        ),
    ],
)
def test_half_a_budget_is_a_mistake(more: dict[str, Any], beginning: str) -> None:
    (mistake,) = mistakes_of(**more)
    assert mistake.startswith(beginning)


# -- mistakes -------------------------------------------------------------------------------


def test_missing_entries_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        make_config({})
    assert caught.value.mistakes == ("model is missing", "data is missing", "method is missing")


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ({"sede": 1}, "unknown key 'sede'; did you mean 'seed'?"),
        (
            {"training": {"soft_step": 1}},
            "unknown key 'training.soft_step'; did you mean 'soft_steps'?",
        ),
        (
            {"optimizer": {"zzz": 1}},
            "unknown key 'optimizer.zzz'; known are decay, hard_lr, lr, name, options",
        ),
        (
            {"method": "sparse-apt"},
            "unknown method 'sparse-apt'; did you mean 'sparse_apt'?",
        ),
        (
            {"optimizer": {"name": "Adam"}},
            "unknown optimizer 'Adam'; did you mean 'adam'?",
        ),
        (
            {"settings": {"clusters": 3}},
            "sparse_apt has no setting 'clusters'; did you mean 'num_clusters'?",
        ),
        (
            {"optimizer": {"name": "sgd", "options": {"momentun": 0.9}}},
            "sgd has no option 'momentun'; did you mean 'momentum'?",
        ),
    ],
)
def test_an_unknown_name_is_named_with_the_nearest(table: dict[str, Any], mistake: str) -> None:
    assert mistakes_of(**table) == (mistake,)


def test_the_model_of_a_method_and_the_lr_of_an_optimizer_are_no_settings() -> None:
    (mistake,) = mistakes_of(settings={"model": 1})
    assert mistake.startswith("sparse_apt has no setting 'model'")
    (mistake,) = mistakes_of(optimizer={"name": "sgd", "options": {"lr": 1.0}})
    assert mistake.startswith("sgd has no option 'lr'")


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ({"seed": "1"}, "seed must be a whole number, found '1'"),
        ({"seed": True}, "seed must be a whole number, found True"),
        ({"seed": 1.0}, "seed must be a whole number, found 1.0"),
        ({"model": 3}, "model must be a text, found 3"),
        ({"start": 3}, "start must be a text, found 3"),
        ({"evaluate_test": 1}, "evaluate_test must be true or false, found 1"),
        ({"settings": 3}, "settings must be a table, found 3"),
        ({"training": 3}, "training must be a table, found 3"),
        (
            {"training": {"batch_size": 1.5}},
            "training.batch_size must be a whole number, found 1.5",
        ),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr must be a number, found 'fast'"),
        ({"optimizer": {"lr": True}}, "optimizer.lr must be a number, found True"),
        ({"optimizer": {"hard_lr": "x"}}, "optimizer.hard_lr must be a number, found 'x'"),
        ({"optimizer": {"options": []}}, "optimizer.options must be a table, found []"),
    ],
)
def test_a_wrong_type_is_named_with_the_right_one(table: dict[str, Any], mistake: str) -> None:
    assert mistakes_of(**table) == (mistake,)


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ({"training": {"soft_steps": -1}}, "training.soft_steps must be at least 0, found -1"),
        ({"training": {"threads": -1}}, "training.threads must be at least 0, found -1"),
        ({"training": {"batch_size": 0}}, "training.batch_size must be at least 1, found 0"),
        (
            {"training": {"evaluate_every": 0}},
            "training.evaluate_every must be at least 1, found 0",
        ),
        (
            {"training": {"checkpoint_every": 0}},
            "training.checkpoint_every must be at least 1, found 0",
        ),
        (
            {"training": {"soft_steps": 0, "hard_steps": 0}},
            "training.soft_steps and training.hard_steps are both 0: there is nothing to do",
        ),
        (
            {"training": {"label_smoothing": 1}},
            "training.label_smoothing must be at least 0 and below 1, found 1.0",
        ),
        (
            {"optimizer": {"lr": -0.1}},
            "optimizer.lr must be a number of at least 0, found -0.1",
        ),
        (
            {"optimizer": {"lr": float("nan")}},
            "optimizer.lr must be a number of at least 0, found nan",
        ),
        (
            {"optimizer": {"hard_lr": float("inf")}},
            "optimizer.hard_lr must be a number of at least 0, found inf",
        ),
        (
            {"optimizer": {"decay": "exponential"}},
            "optimizer.decay must be one of constant, linear, cosine, one_cycle, plateau, phases, "
            "found 'exponential'",
        ),
    ],
)
def test_a_value_out_of_range_is_named(table: dict[str, Any], mistake: str) -> None:
    assert mistakes_of(**table) == (mistake,)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_that_torch_cannot_take_is_a_mistake(seed: int) -> None:
    (mistake,) = mistakes_of(seed=seed)
    assert mistake.startswith("seed must be")


@pytest.mark.parametrize(
    ("settings_table", "beginning"),
    [
        (
            {"num_clusters": 1},
            'num_clusters must be a whole number from 2 to 65,536 or "auto", found 1',
        ),
        ({"num_clusters": {"network": 1.5}}, "num_clusters must be a whole number from 2"),
        ({"tying_strength": -1}, "tying_strength must be a number of at least 0, found -1"),
        ({"l1_strength": "x"}, "l1_strength must be a number of at least 0, found 'x'"),
        ({"refit_every": 0.5}, "refit_every must be a whole number of steps"),
        ({"init": "random"}, "init must be one of even, kmeans, found 'random'"),
        ({"l1_step": "no"}, "l1_step must be one of subgradient, proximal, found 'no'"),
        ({"scope": "layer"}, "scope must be 'network', 'tensor' or a table"),
        ({"scope": {"all": 3}}, "scope"),
        ({"include": 3}, "include"),
        ({"exclude": [3]}, "exclude"),
        ({"init": ["even"]}, "init must be one of even, kmeans"),
    ],
)
def test_a_setting_that_the_method_cannot_use_is_named(
    settings_table: dict[str, Any], beginning: str
) -> None:
    (mistake,) = mistakes_of(settings=settings_table)
    assert mistake.startswith(beginning)


def test_plain_apt_may_have_one_cluster_and_knows_no_l1() -> None:
    make_config(LEAST | {"method": "apt", "settings": {"num_clusters": 1}})
    (mistake,) = mistakes_of(method="apt", settings={"l1_strength": 1.0})
    assert mistake.startswith("apt has no setting 'l1_strength'")


@pytest.mark.parametrize(
    "options",
    [{"momentum": -1.0}, {"momentum": "much"}, {"nesterov": True}, {"weight_decay": -1}],
)
def test_an_option_that_the_optimizer_cannot_use_is_a_mistake(options: dict[str, Any]) -> None:
    # torch itself refuses them, but with a traceback and after the data was loaded.
    assert mistakes_of(optimizer={"name": "sgd", "options": options})


def test_options_have_torchs_own_names() -> None:
    options = {"betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0}
    config = make_config(LEAST | {"optimizer": {"name": "adam", "options": options}})
    assert config.optimizer.options == options


def test_all_mistakes_are_reported_together() -> None:
    found = mistakes_of(
        sede=1,
        seed="x",
        settings={"num_clusters": 0, "clusters": 1},
        training={"soft_step": 1, "batch_size": 0},
        optimizer={"name": "adm", "lr": -1, "decay": "x"},
    )
    beginnings = [
        "unknown key 'sede'",
        "seed must be",
        "unknown key 'training.soft_step'",
        "training.batch_size must be",
        "optimizer.lr must be",
        "optimizer.decay must be",
        "sparse_apt has no setting 'clusters'",
        "num_clusters must be",
        "unknown optimizer 'adm'",
    ]
    assert sorted(found) == sorted(
        mistake for begin in beginnings for mistake in found if mistake.startswith(begin)
    )
    assert len(found) == len(beginnings)
    text = str(ConfigError(*found))
    assert text.startswith("9 mistakes:\n  - ")
    assert len(text.splitlines()) == 10


def test_the_hint_names_all_choices_when_none_is_near() -> None:
    assert nearest("xyz", ["one", "two"]) == "; known are one, two"
    assert nearest("xyz", []) == "; there are none"


# -- files and overrides --------------------------------------------------------------------


def test_start_is_relative_to_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    path = written(tmp_path / "configs", LEAST_TOML + 'start = "../dense/model.safetensors"\n')
    monkeypatch.chdir("/")
    start = read_config(path).start
    assert start is not None
    assert Path(start).is_absolute()
    assert Path(start).resolve() == (tmp_path / "dense/model.safetensors").resolve()


def test_an_override_of_start_is_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    path = written(tmp_path / "configs", LEAST_TOML + 'start = "here.reef"\n')
    monkeypatch.chdir(tmp_path)
    assert read_config(path, ["start=there.reef"]).start == str(tmp_path / "there.reef")


def test_teachers_are_relative_to_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    text = LEAST_TOML + '[distillation]\nteachers = ["a.reef", "/b.reef"]\n'
    path = written(tmp_path / "configs", text)
    monkeypatch.chdir("/")
    found = read_config(path).distillation
    assert list(found.teachers) == [str(tmp_path / "configs" / "a.reef"), "/b.reef"]
    assert (found.temperature, found.weight) == (4.0, 0.9)
    other = read_config(path, ['distillation.teachers=["c.reef"]', "distillation.weight=1"])
    assert list(other.distillation.teachers) == ["/c.reef"]
    assert make_config(tomllib.loads(to_toml(other))) == other


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ({"teachers": "a.reef"}, "distillation.teachers must be a list, found 'a.reef'"),
        ({"teachers": [1]}, "distillation.teachers must be a list of paths, found [1]"),
        ({"temperature": 0}, "distillation.temperature must be above 0, found 0.0"),
        ({"weight": 1.5}, "distillation.weight must be from 0 to 1, found 1.5"),
    ],
)
def test_mistakes_about_teachers_are_named(table: dict[str, Any], mistake: str) -> None:
    assert mistakes_of(distillation=table) == (mistake,)


def test_an_absolute_start_stays_as_it_is(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, LEAST_TOML + 'start = "/a/b.reef"\n')).start == "/a/b.reef"


def test_overrides_have_the_types_of_toml(tmp_path: Path) -> None:
    config = read_config(
        written(tmp_path, LEAST_TOML),
        [
            "seed=7",
            "evaluate_test=false",
            "optimizer.name=sgd",
            "optimizer.options.momentum=0.9",
            "optimizer.lr = 1e-3",
            'settings.exclude=["*.bias"]',
            "settings.scope=tensor",
            'model="my.module:function"',
            "data=my.module:function",
        ],
    )
    assert (config.seed, config.evaluate_test) == (7, False)
    assert (config.optimizer.name, config.optimizer.lr) == ("sgd", 1e-3)
    assert config.optimizer.options == {"momentum": 0.9}
    assert config.settings == {"exclude": ["*.bias"], "scope": "tensor"}
    assert (config.model, config.data) == ("my.module:function", "my.module:function")


def test_a_later_override_wins(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, LEAST_TOML), ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("seed", "--set takes key=value, found 'seed'"),
        ("seed.deep=1", "'seed' is not a table"),
        ("sede=1", "unknown key 'sede'; did you mean 'seed'?"),
        ("training.soft_step=1", "unknown key 'training.soft_step'"),
        ("seed=one", "seed must be a whole number, found 'one'"),
        ("=1", "unknown key ''"),
    ],
)
def test_a_bad_override_is_refused(tmp_path: Path, override: str, words: str) -> None:
    path = written(tmp_path, "seed = 3\n" + LEAST_TOML)
    with pytest.raises(ConfigError) as caught:
        read_config(path, [override])
    assert words in str(caught.value)


def test_an_override_is_one_value_and_not_more_lines(tmp_path: Path) -> None:
    # "1\nevil = 2" parses as TOML, of which only the first entry would be seen.
    with pytest.raises(ConfigError):
        read_config(written(tmp_path, LEAST_TOML), ["seed=1\nevil = 2"])


@pytest.mark.parametrize(
    "content", [b"seed = ", b"\xff\xfe", b"seed = 1\nseed = 2\n", b"seed = " + b"1" * 5000]
)
def test_what_is_no_toml_is_refused_with_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml is not valid TOML"):
        read_config(path)


def test_a_missing_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReefknotError, match=r"no\.toml could not be read: No such file"):
        read_config(tmp_path / "no.toml")


# -- writing --------------------------------------------------------------------------------


def there_and_back(config: Config, folder: Path) -> Config:
    return read_config(written(folder, to_toml(config)))


def test_the_smallest_configuration_reads_back(tmp_path: Path) -> None:
    config = make_config(LEAST)
    assert there_and_back(config, tmp_path) == config


def test_tables_of_groups_read_back(tmp_path: Path) -> None:
    text = LEAST_TOML + (
        "[settings.scope]\n"
        'conv = ["conv*", "bn*"]\n'
        '"all the rest" = "*"\n'
        "[settings.num_clusters]\n"
        "conv = 17\n"
        '"all the rest" = 33\n'
    )
    config = read_config(written(tmp_path, text))
    assert config.settings == {
        "scope": {"conv": ["conv*", "bn*"], "all the rest": "*"},
        "num_clusters": {"conv": 17, "all the rest": 33},
    }
    # The first match counts, so the order of the groups is part of the meaning.
    assert list(config.settings["scope"]) == ["conv", "all the rest"]
    back = there_and_back(config, tmp_path)
    assert back == config
    assert list(back.settings["scope"]) == ["conv", "all the rest"]


def test_a_budget_reads_back_and_names_only_what_is_set(tmp_path: Path) -> None:
    config = make_config(BUDGET)
    assert there_and_back(config, tmp_path) == config
    table = tomllib.loads(to_toml(config))
    assert table["training"]["steps"] == 60_000
    assert not {"soft_steps", "hard_steps"} & table["training"].keys()
    assert table.keys() == {
        "model", "data", "method", "seed", "evaluate_test", "settings", "training", "optimizer",
    }  # fmt: skip


# Any text that a TOML file can hold: all of Unicode but lone surrogates.
texts = st.text(st.characters(codec="utf-8"))
strengths = st.floats(0, 1e300)


@settings(max_examples=60, deadline=None)
@given(
    model=texts,
    data=texts,
    seed=st.integers(0, 2**63 - 1),
    evaluate_test=st.booleans(),
    groups=st.dictionaries(texts, texts | st.lists(texts, max_size=2), max_size=3),
    exclude=st.lists(texts, max_size=3),
    tying_strength=strengths,
    lr=strengths,
    hard_lr=st.none() | strengths,
    betas=st.lists(st.floats(0, 0.999), min_size=2, max_size=2),
)
def test_any_configuration_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    model: str,
    data: str,
    seed: int,
    evaluate_test: bool,
    groups: dict[str, Any],
    exclude: list[str],
    tying_strength: float,
    lr: float,
    hard_lr: float | None,
    betas: list[float],
) -> None:
    optimizer: dict[str, Any] = {"name": "adam", "lr": lr, "options": {"betas": betas}}
    if hard_lr is not None:
        optimizer["hard_lr"] = hard_lr
    config = make_config(
        {
            "model": model,
            "data": data,
            "method": "sparse_apt",
            "seed": seed,
            "evaluate_test": evaluate_test,
            "settings": {
                "scope": groups or "network",
                "exclude": exclude,
                "tying_strength": tying_strength,
            },
            "training": {"soft_steps": 3},
            "optimizer": optimizer,
        }
    )
    assert there_and_back(config, tmp_path_factory.getbasetemp()) == config


def test_shrinking_while_training_is_asked_for():
    table = {"model": "lenet-300-100", "data": "mnist", "method": "sparse_apt"}
    assert not make_config(table).training.shrink
    assert make_config(table | {"training": {"shrink": True}}).training.shrink
    with pytest.raises(ConfigError, match=r"training\.shrink must be true or false, found 1"):
        make_config(table | {"training": {"shrink": 1}})


@pytest.mark.parametrize(
    "pairs", [[16], [[0.2, 16.5]], [[0.5, 16], [0.2, 24]], [[1.0, 16]], [[0.5, 0]], ["ab"]]
)
def test_progressive_resizing_is_pairs_of_growing_shares_and_pixels(pairs) -> None:
    (mistake,) = mistakes_of(training={"progressive_resizing": pairs})
    assert mistake.startswith("training.progressive_resizing must be pairs of a share")


def test_progressive_resizing_is_read_and_needs_images_of_that_size(tmp_path) -> None:
    text = 'model = "digits-mlp"\ndata = "digits"\nmethod = "dense"\n'
    path = tmp_path / "c.toml"
    path.write_text(text + "[training]\nsteps = 4\nprogressive_resizing = [[0.5, 9]]\n")
    config = read_config(path)
    assert list(config.training.progressive_resizing) == [[0.5, 9]]
    with pytest.raises(ConfigError, match="to 9 pixels needs images of at least that size"):
        build(config)


@pytest.mark.parametrize("method", ["dense", "soft_weight_sharing"])
def test_weight_decay_is_for_matrices_alone(method) -> None:
    settings = {"num_examples": 1294} if method == "soft_weight_sharing" else {}
    table = {"model": "digits-mlp", "data": "digits", "method": method, "settings": settings}
    plain = {"name": "sgd", "lr": 0.1, "options": {"momentum": 0.9}}
    decayed = {"name": "sgd", "lr": 0.1, "options": {"momentum": 0.9, "weight_decay": 0.25}}
    expected = build(make_config(table | {"optimizer": plain}))
    parts = build(make_config(table | {"optimizer": decayed}))
    matrices = {parameter for parameter in parts.model.parameters() if parameter.dim() == 2}
    groups = parts.optimizer.param_groups
    found = {p: group["weight_decay"] for group in groups for p in group["params"]}
    assert {p for p, decay in found.items() if decay} == matrices
    assert {found[p] for p in matrices} == {0.25}
    assert len(found) == sum(len(group["params"]) for group in expected.optimizer.param_groups)
    factors = [
        [group.get("lr_factor") for group in p.optimizer.param_groups] for p in (expected, parts)
    ]
    assert sorted(set(factors[1]) - {None}) == sorted(set(factors[0]) - {None})
