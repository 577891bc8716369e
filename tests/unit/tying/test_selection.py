"""Which parameters are tied, and which are reported as left out."""

import pytest
import torch
from torch import nn

from reefknot.errors import ConfigError, TyingError
from reefknot.tying.selection import select


def choose(model, include=("*",), exclude=(), scope="network", norms="tied"):
    return select(model, include=include, exclude=exclude, scope=scope, norms=norms)


def names(selection):
    return {group: [m.name for m in members] for group, members in selection.groups.items()}


def net():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 3))


def test_every_trainable_parameter_is_tied_by_default():
    found = choose(net())
    expected = [f"{n}.{kind}" for n in range(3) for kind in ("weight", "bias")]
    assert names(found) == {"network": expected}
    assert found.skipped == {}


class OwnNorm(nn.LayerNorm):
    def __init__(self, size):
        super().__init__(size)
        self.inner = nn.Linear(size, size)


def test_norm_layers_share_a_codebook_whatever_the_scope():
    norms = [nn.BatchNorm1d(2), nn.LayerNorm(2), nn.GroupNorm(1, 2), OwnNorm(2)]
    norms += [nn.InstanceNorm1d(2, affine=True), nn.RMSNorm(2), nn.LocalResponseNorm(2)]
    model = nn.Sequential(nn.Linear(2, 2, bias=False), *norms)
    own = ["1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias", "4.weight", "4.bias"]
    own += ["5.weight", "5.bias", "6.weight"]
    others = ["0.weight", "4.inner.weight", "4.inner.bias"]
    found = choose(model, norms="separate")
    assert names(found) == {"network": others, "norms": own}
    assert found.dense == {"norms"}
    assert names(choose(model, norms="separate", scope="tensor")) == {n: [n] for n in others} | {
        "norms": own
    }
    found = choose(model, norms="separate", scope={"a": "4.*"})
    assert names(found) == {"a": others[1:], "norms": own[6:8]}
    assert found.skipped["1.weight"] == "in no group of the scope"
    found = choose(model, norms="exact")
    assert names(found) == {"network": others}
    assert found.skipped == dict.fromkeys(own, "of a norm layer, which are kept")
    found = choose(model, norms="tied")
    assert sorted(names(found)["network"]) == sorted(others + own)
    assert not found.dense


def test_a_group_of_weights_that_is_called_norms_is_refused():
    with pytest.raises(ConfigError, match=r"'0.weight' is in a group 'norms'"):
        choose(net(), scope={"norms": "*"}, norms="separate")
    assert choose(net(), scope={"norms": "1.*"}, norms="separate").dense == {"norms"}
    assert not choose(net(), scope={"norms": "*"}, norms="tied").dense


def test_norms_of_two_types_have_two_codebooks():
    model = nn.Sequential(nn.LayerNorm(2), nn.LayerNorm(2).double())
    assert choose(model, norms="separate").dense == {"norms (float32)", "norms (float64)"}


def test_patterns_leave_out_and_say_so():
    found = choose(net(), include=["*.weight"], exclude=["1.*"])
    assert names(found) == {"network": ["0.weight", "2.weight"]}
    assert found.skipped == {
        "0.bias": "not included",
        "1.weight": "excluded",
        "1.bias": "not included",
        "2.bias": "not included",
    }


def test_frozen_and_narrow_parameters_are_reported():
    model = net()
    model[2].bias.requires_grad_(False)
    model.codes = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    model.none = nn.Parameter(torch.zeros(0))
    skipped = choose(model).skipped
    assert "frozen" in skipped["2.bias"]
    assert "frozen" in skipped["codes"]
    assert "no elements" in skipped["none"]


def test_scope_tensor_gives_each_parameter_its_own_group():
    assert names(choose(nn.Linear(2, 2), scope="tensor")) == {
        "weight": ["weight"],
        "bias": ["bias"],
    }


def test_named_groups_take_the_first_match_and_report_the_rest():
    found = choose(net(), scope={"convs": "0.*", "dense": ["2.weight"]})
    assert names(found) == {"convs": ["0.weight", "0.bias"], "dense": ["2.weight"]}
    assert found.skipped["2.bias"] == "in no group of the scope"


def test_a_group_of_two_types_has_a_codebook_for_each():
    model = net()
    model[2].to(torch.bfloat16)
    assert set(names(choose(model))) == {"network (float32)", "network (bfloat16)"}


def test_a_shared_parameter_counts_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert names(choose(model)) == {"network": ["0.weight", "0.bias", "1.bias"]}


def test_wrappers_do_not_reach_the_names():
    model = net()
    inner = torch.compile(model, backend="eager")
    assert names(choose(inner)) == names(choose(model))
    model[0] = torch.compile(model[0], backend="eager")
    assert "0.weight" in names(choose(model))["network"]


def test_a_module_that_is_really_called_module_keeps_its_name():
    model = nn.Sequential()
    model.module = nn.Linear(2, 2)
    assert names(choose(model)) == {"network": ["module.weight", "module.bias"]}


def test_a_pattern_that_matches_nothing_is_a_mistake_with_a_hint():
    with pytest.raises(ConfigError, match=r"did you mean '2\.weight'"):
        choose(net(), exclude=["2.weigth"])


def test_nothing_to_tie_is_an_error():
    with pytest.raises(TyingError, match="nothing to tie"):
        choose(net(), exclude=["*"])


def test_memory_with_gaps_is_refused_by_name():
    model = nn.Module()
    model.gappy = nn.Parameter(torch.zeros(4, 6)[:, ::2])
    with pytest.raises(TyingError, match="'gappy'"):
        choose(model)


def test_one_tensor_in_two_groups_is_refused():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    with pytest.raises(ConfigError, match=r"'embed\.weight' and 'head\.weight' are one tensor"):
        select(model, include="*", exclude=(), scope={"a": "embed.*", "b": "head.*"})
