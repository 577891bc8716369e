"""Random inputs like an example, for packing without data."""

import pytest
import torch
from torch import nn

from reefknot.packing.inputs import pink_noise, random_batches


def test_random_inputs_have_a_natural_spectrum_and_ids_of_the_vocabulary():
    x = pink_noise((64, 3, 32, 32), torch.Generator().manual_seed(0))
    assert x.shape == (64, 3, 32, 32)
    assert float(x.mean()) == pytest.approx(0, abs=1e-3)
    assert float(x.var()) == pytest.approx(1, abs=1e-3)
    power = torch.fft.fft(x, dim=-1).abs().square().mean((0, 1, 2))
    assert power[1] > 4 * power[4] > 16 * power[12]
    assert float(torch.corrcoef(x.transpose(0, 1).flatten(1))[0, 1]) == pytest.approx(0.9, abs=0.03)
    ids = torch.cat(
        [batch[0] for batch in random_batches(nn.Embedding(100, 4), (torch.tensor([[1, 5]]),))]
    )
    assert ids.min() == 0 and ids.max() == 99


def test_ids_are_those_of_the_table_that_fits_the_example():
    tables = nn.ModuleList([nn.Embedding(500, 4), nn.EmbeddingBag(60, 4), nn.Embedding(2, 4)])
    users, items = torch.tensor([[3, 170]]), torch.tensor([[3, 41]])
    batches = random_batches(tables, (users, items))
    assert max(int(batch[0].max()) for batch in batches) == 499
    assert max(int(batch[1].max()) for batch in batches) == 59


@pytest.mark.parametrize(
    ("shape", "inputs", "batches"), [((3, 8, 8), 512, 8), ((2**16,), 64, 4), ((2**21,), 8, 4)]
)
def test_large_inputs_are_fewer(shape, inputs, batches):
    made = random_batches(nn.Identity(), (torch.zeros(1, *shape),))
    assert len(made) == batches
    assert sum(len(batch[0]) for batch in made) == inputs


def test_random_inputs_have_the_scale_of_the_example():
    example = torch.tensor([[3.0, 5.0, 3.0, 5.0]])  # of mean 4 and deviation 1
    made = torch.cat([batch[0] for batch in random_batches(nn.Identity(), (example,))])
    assert float(made.mean()) == pytest.approx(4, abs=0.1)
    assert float(made.std()) == pytest.approx(1, abs=0.1)
    constant = torch.cat([b[0] for b in random_batches(nn.Identity(), (torch.ones(1, 64),))])
    assert float(constant.std()) == pytest.approx(1, abs=0.05)


def test_a_state_beside_the_inputs_keeps_its_shape_and_a_number_its_value():
    sounds, state, rate = torch.randn(5, 100), torch.randn(2, 5, 8), torch.tensor(16_000)
    for batch in random_batches(nn.Identity(), (sounds, state, rate)):
        assert batch[0].shape == (5, 100) and batch[1].shape == (2, 5, 8)
        assert batch[2] == 16_000
        assert not torch.equal(batch[0], sounds)
