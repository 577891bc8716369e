"""The training loop: batches, learning rates, events, batch-norm statistics, and when it stops."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reefknot.batchnorm import update_batchnorm
from reefknot.errors import DivergedError, UserCodeError
from reefknot.lab.baselines import METHODS
from reefknot.lab.runs.batches import Batches
from reefknot.lab.runs.training import Plan, error_percent, train
from reefknot.methods import Method

INPUTS = torch.arange(24.0).reshape(12, 2)
LABELS = torch.arange(12) % 3


def ids(batch: tuple[Tensor, Tensor]) -> list[int]:
    """Which examples of INPUTS are in a batch: example i is (2 i, 2 i + 1)."""
    inputs, labels = batch
    numbers = (inputs[:, 0] / 2).long()
    assert torch.equal(numbers % 3, labels)  # each with its own label
    return numbers.tolist()


# -- batches --------------------------------------------------------------------------------


def test_each_epoch_is_a_permutation_and_another_one() -> None:
    batches = Batches(INPUTS, LABELS, batch_size=4, seed=0)
    assert batches.per_epoch == 3
    epochs = [[i for b in range(3) for i in ids(batches[3 * e + b])] for e in range(4)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_an_incomplete_batch_is_left_out_and_no_example_comes_twice() -> None:
    batches = Batches(INPUTS, LABELS, batch_size=5, seed=0)
    assert batches.per_epoch == 2
    seen = ids(batches[0]) + ids(batches[1])
    assert len(seen) == len(set(seen)) == 10


def test_a_batch_size_beyond_the_data_takes_all_of_it() -> None:
    batches = Batches(INPUTS, LABELS, batch_size=100, seed=0)
    assert sorted(ids(batches[0])) == sorted(ids(batches[7])) == list(range(12))


def test_a_batch_depends_on_its_number_alone() -> None:
    ordered, jumping = (Batches(INPUTS, LABELS, batch_size=4, seed=5) for _ in range(2))
    wanted = {number: ids(ordered[number]) for number in range(9)}
    torch.manual_seed(123)
    for number in (8, 0, 5, 4, 8, 1, 7):
        torch.rand(3)
        assert ids(jumping[number]) == wanted[number]


def test_batches_leave_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    batches = Batches(INPUTS, LABELS, 4, 0, lambda x, g: x + torch.rand(1, generator=g))
    assert batches[0] is not None
    assert torch.equal(torch.get_rng_state(), before)


def test_another_seed_gives_another_order() -> None:
    orders = {tuple(ids(Batches(INPUTS, LABELS, 12, seed)[0])) for seed in range(5)}
    assert len(orders) == 5


def test_augmentation_depends_on_the_number_of_the_batch_alone() -> None:
    def add_noise(inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs + torch.rand(inputs.shape, generator=generator)

    one, other = (Batches(INPUTS, LABELS, 4, 5, add_noise) for _ in range(2))
    fourth = [one[number] for number in range(5)][4]
    assert torch.equal(other[4][0], fourth[0])
    # The noise of two batches differs: what it adds is the fraction of the whole numbers.
    assert not torch.equal(one[0][0] % 1, one[1][0] % 1)
    assert torch.equal(INPUTS, torch.arange(24.0).reshape(12, 2))


def test_labels_are_made_for_what_augmentation_made_of_the_inputs() -> None:
    def fill(inputs: Tensor, generator: torch.Generator) -> Tensor:
        return torch.full_like(inputs, 7.0)

    def soften(inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([inputs[:, 0], labels.double()], 1)

    inputs, labels = Batches(INPUTS, LABELS, 4, 5, fill, soften)[2]
    plain = Batches(INPUTS, LABELS, 4, 5)[2][1]
    assert labels.tolist() == [[7.0, label] for label in plain.tolist()]
    assert inputs.unique().tolist() == [7.0]


def test_images_are_small_at_first_and_teachers_see_them_at_full_size() -> None:
    # Halves of 4 x 4 images that are 1 above and 0 below; the antialiased mean keeps both.
    images = torch.zeros(6, 1, 4, 4)
    images[:, :, :2] = 1.0
    seen = []

    def soften(inputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(tuple(inputs.shape[2:]))
        return labels

    batches = Batches(images, LABELS[:6], 2, 0, None, soften, [(1, 1), (3, 2)])
    found = [batches[number][0] for number in range(4)]
    assert [tuple(x.shape[2:]) for x in found] == [(1, 1), (2, 2), (2, 2), (4, 4)]
    assert found[0].flatten().tolist() == pytest.approx([0.5, 0.5])
    assert (found[1][:, :, 0] > found[1][:, :, 1]).all()
    assert seen == [(4, 4)] * 4
    assert all(x.shape[2:] == (4, 4) for x in batches.some_inputs())  # for BatchNorm


# -- learning rates -------------------------------------------------------------------------


def make_plan(soft: int, hard: int, lr: float = 0.01, hard_lr: float = 0.01, **more: Any) -> Plan:
    """The plan of a method without a budget."""
    return Plan(steps=soft + hard, soft_steps=soft, lr=lr, hard_lr=hard_lr, **more)


def lrs(plan: Plan, method: Method | None = None) -> list[float]:
    """The learning rate of every step."""
    method = method or METHODS["dense"](nn.Linear(2, 3))
    return [plan.lr_at(step, method) for step in range(plan.steps)]


def test_a_constant_lr_changes_between_the_phases_only() -> None:
    assert lrs(make_plan(3, 2, lr=0.8, hard_lr=0.2)) == [0.8, 0.8, 0.8, 0.2, 0.2]


def test_a_linear_lr_falls_to_nearly_zero_in_each_phase() -> None:
    # After s of n steps: lr · (1 - s / n); s = 0 .. 3 of 4, then 0 and 1 of 2.
    plan = make_plan(4, 2, lr=0.8, hard_lr=0.2, decay="linear")
    assert lrs(plan) == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.2, 0.1])


def test_a_cosine_lr_falls_by_half_in_the_middle_of_each_phase() -> None:
    # lr · (1 + cos(π s / n)) / 2: the cosines of 0, 45, 90 and 135 degrees, then of 0 and 90.
    plan = make_plan(4, 2, lr=0.8, hard_lr=0.2, decay="cosine")
    high, low = (1 + math.sqrt(0.5)) / 2, (1 - math.sqrt(0.5)) / 2
    assert lrs(plan) == pytest.approx([0.8, 0.8 * high, 0.4, 0.8 * low, 0.2, 0.1])


def test_one_cycle_rises_for_an_eighth_of_each_phase_and_falls_to_zero() -> None:
    # 16 steps: two up, fourteen down; then 8 steps: one up, seven down.
    found = lrs(make_plan(16, 8, lr=0.7, hard_lr=0.07, decay="one_cycle"))
    assert found[:4] == pytest.approx([0, 0.35, 0.7, 0.7 * 13 / 14])
    assert found[14:18] == pytest.approx([0.1, 0.05, 0, 0.07])
    assert found[-1] == pytest.approx(0.01)


def test_a_plateau_halves_the_lr_after_ten_measurements_without_a_better_one() -> None:
    plan, method = make_plan(100, 20, lr=0.8, hard_lr=0.2, decay="plateau"), METHODS["dense"]
    dense = method(nn.Linear(2, 3))
    errors = [9.0, 5.0, *[5.0] * 9, 4.0, *[6.0] * 25]  # better at measurements 1, 2 and 12
    measured = [(step, error) for step, error in enumerate(errors, start=1)]
    found = {n: plan.lr_at(n, dense, measured[:n]) for n in range(len(errors) + 1)}
    halved = [n for n in found if n and found[n] < found[n - 1]]
    assert halved == [22, 32]
    assert (found[0], found[22], found[32]) == (0.8, 0.4, 0.2)


def test_a_plateau_of_the_hard_part_knows_its_own_errors_only() -> None:
    plan, dense = make_plan(20, 30, lr=0.8, hard_lr=0.2, decay="plateau"), METHODS["dense"]
    method = dense(nn.Linear(2, 3))
    measured = [(step, 1.0) for step in range(1, 21)] + [(step, 3.0) for step in range(21, 32)]
    assert plan.lr_at(19, method, measured[:19]) == 0.4
    assert plan.lr_at(20, method, measured[:20]) == 0.2
    assert plan.lr_at(30, method, measured[:30]) == 0.2
    assert plan.lr_at(31, method, measured) == 0.1


def test_a_phase_of_no_steps_is_passed_over() -> None:
    assert lrs(make_plan(0, 1, lr=0.8, hard_lr=0.2)) == [0.2]
    assert lrs(make_plan(2, 0, lr=0.8, hard_lr=0.2)) == [0.8, 0.8]


def test_with_a_budget_the_lr_decays_and_starts_anew_in_each_phase_of_the_method() -> None:
    tie = METHODS["sparse_apt"](nn.Linear(8, 4), target_density=0.5, steps=20_000)
    plan = Plan(steps=20_000, soft_steps=None, lr=0.5, hard_lr=0.5, decay="phases")
    found = lrs(plan, tie)
    assert found == [0.5 * tie.lr_factor(step) for step in range(20_000)]
    rises = [step for step in range(1, 20_000) if found[step] > found[step - 1]]
    assert len(rises) == 3  # recover, commit, frozen
    assert [found[step] for step in (0, *rises)] == pytest.approx([0.5, 0.5, 0.5, 0.05])


def test_with_a_budget_another_decay_goes_over_all_steps() -> None:
    plan = Plan(steps=4, soft_steps=None, lr=0.8, hard_lr=0.1, decay="linear")
    assert lrs(plan) == pytest.approx([0.8, 0.6, 0.4, 0.2])


# -- measuring ------------------------------------------------------------------------------


class _Echo(nn.Module):
    """The input is the output; notes the type and mode of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, torch.dtype, bool]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls.append((len(inputs), inputs.dtype, self.training))
        return inputs


def test_error_percent_is_the_share_of_wrong_answers() -> None:
    # The largest outputs are at 0, 1, 0, 2: with these labels one of four is wrong.
    outputs = torch.tensor([[3.0, 1, 0], [0, 2, 1], [1, 0.5, 0], [0, 0, 9]])
    labels = torch.tensor([0, 1, 2, 2])
    for exact in (False, True):
        assert error_percent(_Echo(), outputs, labels, exact=exact) == 25.0


def test_error_percent_measures_in_evaluation_mode_and_leaves_the_mode_as_it_was() -> None:
    model = _Echo()
    outputs = torch.eye(2).repeat(1100, 1)
    for training in (True, False):
        model.train(training)
        model.calls.clear()
        # The answers alternate 0, 1; labels of 0 make every second one wrong.
        assert error_percent(model, outputs, torch.zeros(2200, dtype=torch.int64)) == 50.0
        assert model.calls == [(size, torch.float32, False) for size in (1000, 1000, 200)]
        assert model.training == training


def test_float64_settles_what_float32_cannot() -> None:
    class _Sum(nn.Module):
        """Two outputs that differ by 1e-9 of their size, which float32 cannot see."""

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.stack([inputs[:, 0], inputs[:, 0] + 1e-9], dim=1)

    label = torch.tensor([1])
    assert error_percent(_Sum(), torch.ones(1, 1), label) == 100.0
    assert error_percent(_Sum(), torch.ones(1, 1), label, exact=True) == 0.0


class _Sums(nn.Module):
    """Three outputs: sums of thirds of the same ten inputs, each in its own order."""

    def __init__(self, orders: list[list[int]]) -> None:
        super().__init__()
        self.orders = orders

    def forward(self, inputs: Tensor) -> Tensor:
        sums = []
        for order in self.orders:
            total = torch.zeros_like(inputs[:, 0])
            for column in order:
                total = total + inputs[:, column] / 3
            sums.append(total)
        return torch.stack(sums, dim=1)


def test_outputs_that_are_equal_but_for_rounding_are_wrong_in_every_order_of_summation() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(300, 10) * 10.0 ** torch.arange(-3, 2).repeat(2)
    orders = [list(range(10)), list(range(9, -1, -1)), [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]]
    outputs = _Sums(orders)(inputs.double())
    assert 30 < int((outputs[:, 0] > outputs[:, 1]).sum()) < 270  # rounding alone decides
    for shift in range(3):
        model = _Sums(orders[shift:] + orders[:shift])
        for label in range(3):
            labels = torch.full((300,), label)
            assert error_percent(model, inputs, labels, exact=True) == 100.0


def test_an_output_that_is_clearly_the_largest_is_right_although_two_others_are_equal() -> None:
    outputs = torch.tensor([[1.0, 1.0, 1.0 + 1e-5], [2.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
    labels = torch.tensor([2, 0, 1])
    found = error_percent(_Echo(), outputs, labels, exact=True)
    assert found == pytest.approx(100 / 3)
    assert error_percent(_Echo(), outputs * math.nan, labels, exact=True) == 100.0


def test_an_exact_error_is_measured_on_a_copy() -> None:
    model = nn.Linear(1, 2)
    error_percent(model, torch.ones(1, 1), torch.tensor([0]), exact=True)
    assert model.weight.dtype == torch.float32
    assert model.training


def test_batchnorm_statistics_are_those_of_the_present_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, momentum=0.1), nn.Linear(3, 3))
    linear, norm = model[0], model[1]
    assert isinstance(linear, nn.Linear)
    assert isinstance(norm, nn.BatchNorm1d)
    batches = Batches(INPUTS, LABELS, batch_size=4, seed=0)
    for _ in range(3):
        model(torch.randn(5, 2))  # statistics of something else
    model.eval()
    update_batchnorm(model, batches.some_inputs())

    # Independently, in numpy: the mean over the epoch's batches of each batch's mean and
    # unbiased variance.
    weight, bias = (p.detach().double().numpy() for p in (linear.weight, linear.bias))
    hidden = [batches[n][0].double().numpy() @ weight.T + bias for n in range(3)]
    assert norm.running_mean is not None
    assert norm.running_var is not None
    np.testing.assert_allclose(
        norm.running_mean.numpy(), np.mean([h.mean(0) for h in hidden], 0), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        norm.running_var.numpy(), np.mean([h.var(0, ddof=1) for h in hidden], 0), rtol=1e-5
    )
    assert norm.momentum == 0.1
    assert not model.training


def test_an_exact_error_needs_float64_for_doubtful_examples_only() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 10))
    inputs, labels = torch.randn(3000, 6), torch.randint(0, 10, (3000,))
    seen: list[Tensor] = []

    def note(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0])

    model.register_forward_pre_hook(note)
    found = error_percent(model, inputs, labels, exact=True)
    precise = torch.cat([x for x in seen if x.dtype == torch.float64])
    assert 0 < len(precise) < 300
    answers = model.double()(inputs.double()).argmax(1)
    assert found == pytest.approx(100 * float((answers != labels).double().mean()))


def test_in_bfloat16_layers_compute_in_it_and_weights_stay_float32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    seen = set()
    model[0].register_forward_hook(lambda module, args, output: seen.add(output.dtype))
    tie = METHODS["sparse_apt"](model, num_clusters=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tie.attach(optimizer)
    plan = Plan(steps=8, soft_steps=4, lr=0.01, hard_lr=0.01)
    list(train(model, tie, optimizer, Batches(INPUTS / 10, LABELS, 4, 0), plan, bf16=True))
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    error_percent(model, INPUTS, LABELS, bf16=True)
    assert seen == {torch.bfloat16}


def test_statistics_belong_to_the_last_weights() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    plan = Plan(steps=9, soft_steps=4, lr=0.01, hard_lr=0.01)
    _, model, _ = trained(plan, model=model)
    norm = model.get_submodule("1")
    found = {name: value.clone() for name, value in norm.named_buffers()}
    update_batchnorm(model, Batches(INPUTS / 10, LABELS, 4, 0).some_inputs())
    assert all(torch.equal(found[name], value) for name, value in norm.named_buffers())


def test_a_norm_without_statistics_is_left_alone() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False))
    update_batchnorm(model, Batches(INPUTS, LABELS, 4, 0).some_inputs())
    assert model[0].running_mean is None


# -- the loop -------------------------------------------------------------------------------


def trained(
    plan: Plan, *, method: str = "sparse_apt", model: nn.Module | None = None, lr: float = 0.01
) -> tuple[list[tuple[str, int]], nn.Module, object]:
    """The events of a whole training, with the model and the method."""
    torch.manual_seed(0)
    model = model or nn.Linear(2, 3)
    settings: Mapping[str, object] = {} if method == "dense" else {"num_clusters": 4}
    tie = METHODS[method](model, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    tie.attach(optimizer)
    batches = Batches(INPUTS / 10, LABELS, 4, 0)
    events = [(p.event, p.step) for p in train(model, tie, optimizer, batches, plan)]
    return events, model, tie


def test_events_come_in_order() -> None:
    events, _, _ = trained(make_plan(3, 2))
    assert events == [
        ("step", 1),
        ("step", 2),
        ("step", 3),
        ("leaving", 3),
        ("entered", 3),
        ("step", 4),
        ("step", 5),
    ]


def test_no_hard_steps_still_harden() -> None:
    events, _, tie = trained(make_plan(2, 0))
    assert events == [("step", 1), ("step", 2), ("leaving", 2), ("entered", 2)]
    assert tie.finish().num_clusters <= 4  # type: ignore[attr-defined]


def test_no_soft_steps_harden_first() -> None:
    events, _, tie = trained(make_plan(0, 1))
    assert events == [("leaving", 0), ("entered", 0), ("step", 1)]
    assert tie.finish().num_clusters <= 4  # type: ignore[attr-defined]


def test_the_model_is_soft_when_it_leaves_and_tied_when_it_has_entered() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    tie = METHODS["sparse_apt"](model, num_clusters=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tie.attach(optimizer)
    distinct = {}
    for progress in train(model, tie, optimizer, Batches(INPUTS, LABELS, 4, 0), make_plan(2, 1)):
        values = torch.cat([p.detach().flatten() for p in model.parameters()])
        distinct[progress.event, progress.step] = len(values.unique())
    assert distinct[("leaving", 2)] == 9
    assert distinct[("entered", 2)] <= 3
    assert distinct[("step", 3)] <= 3


def test_the_phases_of_a_budget_are_entered_one_after_the_other() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    tie = METHODS["sparse_apt"](model, target_density=0.5, steps=20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tie.attach(optimizer)
    plan = Plan(steps=20, soft_steps=None, lr=0.01, hard_lr=0.01, decay="phases")
    seen: dict[tuple[str, str], list[int]] = {}
    for progress in train(model, tie, optimizer, Batches(INPUTS / 10, LABELS, 4, 0), plan):
        assert progress.phase == tie.stats()["phase"]
        assert progress.lr == optimizer.param_groups[0]["lr"]
        seen.setdefault((progress.phase, progress.event), []).append(progress.step)
    # Shares of 20 steps: 0.66, 0.06, 0.26; the rest is frozen.
    assert seen == {
        ("sparsify", "step"): list(range(1, 14)),
        ("sparsify", "leaving"): [13],
        ("recover", "entered"): [13],
        ("recover", "step"): [14],
        ("recover", "leaving"): [14],
        ("commit", "entered"): [14],
        ("commit", "step"): list(range(15, 20)),
        ("commit", "leaving"): [19],
        ("frozen", "entered"): [19],
        ("frozen", "step"): [20],
    }
    assert tie.phase.is_last
    assert tie.finish().density <= 0.5


def test_labels_are_smoothed() -> None:
    # Zero weights give each of three classes a third, so d loss / d w = (1/3 - target) x.
    model = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    method = METHODS["dense"](model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    method.attach(optimizer)
    batches = Batches(INPUTS, LABELS, 1, 0)
    list(train(model, method, optimizer, batches, make_plan(1, 0, lr=1.0), label_smoothing=0.3))
    x, y = batches[0]
    target = np.full(3, 0.1) + 0.7 * np.eye(3)[int(y)]
    expected = np.outer(target - 1 / 3, x[0].numpy())
    np.testing.assert_allclose(model.weight.detach().numpy(), expected, rtol=1e-5)


def test_the_last_weights_are_averaged() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    method = METHODS["dense"](model, average_steps=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method.attach(optimizer)
    weights = []
    for progress in train(
        model, method, optimizer, Batches(INPUTS / 10, LABELS, 4, 0), make_plan(6, 0, lr=0.1)
    ):
        if progress.event == "step":
            weights.append(model.weight.detach().double().numpy().copy())
    expected = np.mean(weights[:4], 0)
    for weight in weights[4:]:
        expected = 0.75 * expected + 0.25 * weight
    np.testing.assert_allclose(model.weight.detach().numpy(), expected, rtol=1e-5, atol=1e-7)
    assert not np.allclose(expected, weights[-1], rtol=1e-3)


def test_each_step_takes_its_own_lr_and_batch() -> None:
    # One weight per class and no bias: w -= lr · gradient, worked here with numpy.
    plan = make_plan(3, 0, lr=0.5, hard_lr=0.0, decay="linear")
    model = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    _, model, _ = trained(plan, method="dense", model=model, lr=99.0)
    weight = np.zeros((3, 2))
    batches = Batches(INPUTS / 10, LABELS, 4, 0)
    for step, lr in enumerate([0.5, 0.5 * 2 / 3, 0.5 / 3]):
        x, y = (part.double().numpy() for part in batches[step])
        scores = np.exp(x @ weight.T)
        away = scores / scores.sum(1, keepdims=True) - np.eye(3)[y.astype(int)]
        weight -= lr * away.T @ x / len(x)
    np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=1e-4)


def test_training_goes_on_from_a_step_without_repeating_any() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 3)
    tie = METHODS["dense"](model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tie.attach(optimizer)
    plan = make_plan(4, 1)
    events = [
        (p.event, p.step)
        for p in train(model, tie, optimizer, Batches(INPUTS, LABELS, 4, 0), plan, step=3)
    ]
    assert events == [("step", 4), ("leaving", 4), ("entered", 4), ("step", 5)]


def test_a_loss_that_is_not_finite_stops_with_the_step() -> None:
    class _Bad(nn.Linear):
        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(inputs) * (math.nan if self.calls == 3 else 1.0)

    model = _Bad(2, 3)
    with pytest.raises(DivergedError, match=r"the loss is nan at step 3"):
        trained(make_plan(9, 1), model=model)
    # The bad step was not taken: the weights are still those of step 2.
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_a_loss_that_is_finite_and_absurd_stops_with_the_step() -> None:
    class _Exploding(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * 1e27

    with pytest.raises(DivergedError, match=r"the loss is \d(\.\d+)?e\+2\d at step 1"):
        trained(make_plan(9, 1), model=_Exploding(2, 3))


def test_what_a_network_raises_becomes_one_sentence_with_the_step_and_its_cause() -> None:
    class _Raising(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            raise IndexError("of mine,\n  on two lines")

    with pytest.raises(UserCodeError, match="step 1 failed with IndexError: of mine, on") as found:
        trained(make_plan(9, 1), model=_Raising(2, 3))
    assert isinstance(found.value.__cause__, IndexError)
