"""Look-up tables: which rows inputs read, and steps that follow from it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import reefknot
from reefknot.dtypes import DTYPES, from_numbers, to_numbers
from reefknot.errors import ConfigError
from reefknot.packing.clustering import Settings
from reefknot.packing.lookups import (
    have_own_steps,
    quantize_rows,
    reads_of,
    row_weights,
    weighted_error,
    weights_as_read,
)
from reefknot.packing.network import Packer
from reefknot.packing.outputs import change_of_outputs


class Table(nn.Module):
    def __init__(self, read, rows=5, width=3):
        super().__init__()
        self.table = nn.Parameter(torch.randn(rows, width))
        self.read = read

    def forward(self, ids):
        return self.read(self.table, ids)


@pytest.mark.parametrize(
    "read",
    [
        lambda table, ids: F.embedding(ids, table),
        lambda table, ids: table[ids],
        lambda table, ids: table[ids - 5],  # from the end
        lambda table, ids: table.index_select(0, ids),
        lambda table, ids: torch.stack([table[n] for n in ids[:, None]]),
        lambda table, ids: F.embedding_bag(ids[None], table, mode="sum"),
    ],
    ids=["embedding", "index", "negative index", "index_select", "one by one", "bag"],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_rows_are_counted_however_they_are_read(read, mode):
    with mode():
        found = reads_of(Table(read), [torch.tensor([0, 3, 3]), torch.tensor([3, 4])])
    assert found["table"].tolist() == [1, 0, 0, 3, 1]


def test_a_mask_of_rows_is_counted_and_other_tensors_are_not():
    table = Table(lambda table, ids: torch.cat([table[ids == 1], torch.zeros(9, 3)[ids]]))
    found = reads_of(table, [torch.tensor([0, 1, 1, 0, 1])])
    assert {name: counts.tolist() for name, counts in found.items()} == {"table": [0, 1, 1, 0, 1]}


def test_padding_is_not_counted():
    model = nn.Embedding(5, 3, padding_idx=0)
    assert reads_of(model, [torch.tensor([4, 1, 0, 0, 0])])["weight"].tolist() == [0, 1, 0, 0, 1]
    assert reads_of(model, [torch.tensor([0, 0]), torch.zeros(0, dtype=torch.long)]) == {}


def test_a_weight_that_is_multiplied_is_no_table():
    assert reads_of(nn.Linear(4, 3), [torch.randn(2, 4)]) == {}


def test_a_row_counts_as_often_as_it_is_read():
    # But for the first row, 40 reads of 20 rows, 2 of a row on average. Two rows were read once, so
    # two more reads are expected of the 16 others: 1/8 each, which is 1/16 of the mean.
    reads = np.array([100, 24, 14, 1, 1] + [0] * 16)
    assert row_weights(reads).tolist() == [16, 12, 7, 0.5, 0.5] + [1 / 16] * 16
    assert weights_as_read(reads).tolist() == [16, 12, 7, 0.5, 0.5] + [0] * 16


def test_a_row_that_is_read_all_the_time_does_not_make_the_others_rare():
    assert row_weights(np.array([10**6] + [2] * 999)).tolist() == [16] + [1] * 999


def test_no_row_counts_less_than_a_sixteenth_of_the_mean():
    assert row_weights(np.array([2] * 51 + [0] * 50)).tolist() == [2] * 51 + [1 / 16] * 50


def test_rows_that_are_read_alike_count_alike():
    assert row_weights(np.full(7, 3)).tolist() == [1] * 7


def test_rows_not_read_yet_count_no_more_than_those_read_once():
    # All six reads are of different rows: the four others are as likely.
    assert row_weights(np.array([1] * 6 + [0] * 4)) == pytest.approx([9 / 5] * 10)


@pytest.mark.parametrize(
    ("reads", "pay"),
    [
        # Four rows at 16 times the mean, 96 at 1/16, with steps halved four times and never. Saved:
        # log2(0.04 * 256 + 0.96) / 2 - 0.16 = 1.58 bits. Cost: at most H(0.04) = 0.24 bits.
        ([25] * 4 + [0] * 96, True),
        # 1/4 and 7/4 of the mean: steps are halved once and twice. Saved: log2(10 / 8) / 2 = 0.16
        # bits. Cost: half of the elements of half of the rows have a digit more; whose they are
        # takes H(1/4) - H(1/2) / 2 = 0.31 bits.
        ([1, 7] * 50, False),
        ([2, 6] * 50, False),  # the same step for all
        ([1] * 100, False),
    ],
)
def test_rows_have_steps_of_their_own_where_it_pays(reads, pay):
    assert have_own_steps(row_weights(np.array(reads))) == pay


def test_an_error_counts_as_often_as_its_row():
    table = torch.tensor([[3.0, 4.0], [0.0, 5.0]])  # squares 25 and 25
    changed = table + torch.tensor([[1.0, 0.0], [0.0, 2.0]])  # squared errors 1 and 4
    assert weighted_error(table, changed, np.array([1.5, 0.5])) == pytest.approx(3.5 / 50)


@given(
    rows=st.integers(1, 40), width=st.integers(1, 9), seed=st.integers(0, 2**32 - 1),
    step=st.floats(1e-4, 0.02), tag=st.sampled_from(["F32", "F16", "BF16", "F64"]),
)  # fmt: skip
def test_each_row_is_within_half_of_its_step(rows, width, seed, step, tag):
    random = np.random.default_rng(seed)
    signs, dtype = random.choice([-1, 1], (rows, width)), DTYPES[tag]
    values = from_numbers(signs * random.uniform(0.5, 1, (rows, width)), dtype)
    numbers = to_numbers(values, dtype)
    weights = 4.0 ** random.integers(-2, 3, rows)
    stored, counts = quantize_rows(values, dtype, weights, step)
    # The step of a row with the least weight, 1/16, is at least 1/128 of the rms.
    step = max(step, 1 / 512) * np.sqrt(np.mean(np.square(numbers)))
    steps = step / np.sqrt(weights)[:, None]
    rounding = {"F32": 1e-6, "F16": 1e-3, "BF16": 1e-2, "F64": 1e-12}[tag]
    assert np.all(np.abs(to_numbers(stored, dtype) - numbers) <= 0.51 * steps + rounding)
    assert counts.sum() == rows * width
    assert np.all(counts > 0)


class Words(nn.Module):
    def __init__(self, words=400):
        super().__init__()
        self.words = nn.Embedding(words, 32)
        self.out = nn.Linear(32, 8)

    def forward(self, ids):
        return self.out(self.words(ids))


def model_and_words(words):
    """A model, and inputs in which the first words are much more frequent than the last."""
    torch.manual_seed(0)
    likely = 1 / torch.arange(1, words + 1)
    draws = [torch.multinomial(likely, 1024, True).view(16, -1) for _ in range(6)]
    return Words(words).eval(), draws[:4], draws[4:]


def packed_at(price, model, batches, random=False):
    packer = Packer(model, batches, Settings(min_size=256), random=random)
    packer.measure_sensitivity(price)
    return packer.at(price)


def test_frequent_words_are_more_exact_than_rare_ones_and_the_file_is_smaller(tmp_path):
    model, batches, fresh = model_and_words(8000)
    packed, changes = packed_at(2.0**-22, model, batches)
    lost = (packed.words.weight - model.words.weight).square().mean(1).detach()
    assert lost[:8].mean() < lost[-4000:].mean() / 20
    assert "without its inputs" not in changes["words.weight"].done
    alike, _ = packed_at(2.0**-21.1, model, batches, random=True)
    small, large = (
        reefknot.save(reefknot.cluster(m.state_dict()), tmp_path / "m.reef")
        for m in (packed, alike)
    )
    assert small < large
    assert (
        change_of_outputs(model, packed, fresh).relative_error
        < 0.95 * change_of_outputs(model, alike, fresh).relative_error
    )


def test_rows_that_are_read_alike_have_one_step():
    model, *_ = model_and_words(400)
    batches = [torch.arange(400).view(16, -1)] * 4
    packed, _ = packed_at(2.0**-16, model, batches)
    alike, _ = packed_at(2.0**-16, model, batches, random=True)
    assert torch.equal(packed.words.weight, alike.words.weight)


def test_the_layers_after_a_table_make_up_for_its_errors():
    model, batches, _ = model_and_words(400)
    packed, _ = packed_at(2.0**-14, model, batches)
    ids = torch.cat(batches)
    assert not torch.allclose(packed.words(ids), model.words(ids), atol=0.05)
    means = [m(ids).mean((0, 1)) for m in (model, packed)]  # the bias corrects these
    assert torch.allclose(*means, atol=1e-5)


def test_every_error_can_be_reached():
    model, batches, fresh = model_and_words(2000)
    packed, _ = packed_at(2.0**-60, model, batches)
    alike, _ = packed_at(2.0**-60, model, batches, random=True)
    assert (
        change_of_outputs(model, packed, fresh).relative_error
        < 1.1 * change_of_outputs(model, alike, fresh).relative_error
    )


def test_a_table_of_zeros_stays_one():
    model, batches, _ = model_and_words(2000)
    model.words.weight.data.zero_()
    packed, _ = packed_at(2.0**-16, model, batches)
    assert not packed.words.weight.any()


def test_a_table_that_no_input_reads_is_warned_of_and_kept_as_well_as_others(tmp_path):
    class Two(Words):
        def __init__(self):
            super().__init__(2000)
            self.other = nn.Embedding(500, 32)

    torch.manual_seed(0)
    _, batches, _ = model_and_words(2000)
    model = Two().eval()
    packed = reefknot.pack(model, tmp_path / "m.reef", bits=4, inputs=batches)
    [other] = [change for change in packed.changes if change.name == "other.weight"]
    assert other.relative_error < 0.3
    assert any("'other.weight'" in sentence for sentence in packed.warnings)


def test_tables_that_share_storage_stay_shared(tmp_path):
    model = nn.Sequential(nn.Embedding(500, 32), nn.Linear(32, 500, bias=False)).eval()
    model[1].weight.data = model[0].weight.data
    batches = [torch.randint(500, (16, 8)) for _ in range(6)]
    packed = reefknot.pack(model, tmp_path / "m.reef", bits=3, inputs=batches)
    assert packed.elements == 500 * 32
    state = reefknot.load(tmp_path / "m.reef")
    assert torch.equal(state["0.weight"], state["1.weight"])
    assert not torch.equal(state["0.weight"], model[0].weight)


def test_a_table_with_a_largest_norm_is_packed_as_it_is_used(tmp_path):
    model = nn.Sequential(nn.Embedding(500, 32, max_norm=1.0), nn.Linear(32, 8)).eval()
    before = model[0].weight.detach().clone()
    batches = [torch.randint(500, (16, 8)) for _ in range(6)]
    packed = reefknot.pack(model, tmp_path / "m.reef", bits=4, inputs=batches)
    assert torch.equal(model[0].weight, before)
    [table] = [change for change in packed.changes if change.name == "0.weight"]
    stored = reefknot.load(tmp_path / "m.reef")["0.weight"]
    assert table.done == f"tied to {len(stored.unique()):,} values"
    assert packed.outputs.relative_error < 0.1


def test_empty_batches_are_left_out(tmp_path):
    model, batches, _ = model_and_words(2000)
    empty = torch.zeros(0, 12, dtype=torch.long)
    one = reefknot.pack(model, tmp_path / "a.reef", bits=4, inputs=[*batches, empty])
    other = reefknot.pack(model, tmp_path / "b.reef", bits=4, inputs=batches)
    assert one == other
    with pytest.raises(ConfigError, match="no batch"):
        reefknot.pack(model, tmp_path / "c.reef", bits=4, inputs=[empty])
