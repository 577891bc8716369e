"""Hugging Face's Trainer, the real one, on a model of two layers made from a configuration."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import reefknot
from reefknot import ConfigError, FormatError

transformers = pytest.importorskip("transformers")
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments  # noqa: E402

from reefknot.integrations.transformers import FILE, TyingCallback  # noqa: E402

LENGTH, EXAMPLES = 8, 64
LOGGED = {"reefknot/density", "reefknot/kmeans_penalty", "reefknot/bytes", "reefknot/phase"}


def make_model(seed=0, **more):
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, **more,
    )  # fmt: skip
    return BertForSequenceClassification(config)


class Parity(torch.utils.data.Dataset):
    """Whether token 7 is there."""

    def __init__(self):
        tokens = torch.randint(
            0, 50, (EXAMPLES, LENGTH), generator=torch.Generator().manual_seed(1)
        )
        self.rows = [{"input_ids": t, "labels": (t == 7).any().long()} for t in tokens]

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, number):
        return self.rows[number]


def arguments(folder, **more):
    return TrainingArguments(
        **{
            "output_dir": str(folder), "per_device_train_batch_size": 8, "max_steps": 20,
            "logging_steps": 5, "save_strategy": "no", "report_to": [], "use_cpu": True,
            "disable_tqdm": True, "seed": 3, "learning_rate": 1e-3,
        } | more
    )  # fmt: skip


def test_a_budget_ends_in_a_file_that_loads_with_equal_outputs(tmp_path):
    callback = TyingCallback(tmp_path / "m.reef", target_bytes=4_000)
    trainer = Trainer(
        make_model(), arguments(tmp_path), train_dataset=Parity(), callbacks=[callback]
    )
    trainer.train()
    assert (tmp_path / "m.reef").stat().st_size <= 4_000
    fresh = make_model(seed=9)
    fresh.load_state_dict(reefknot.load(tmp_path / "m.reef"))
    inputs = torch.stack([row["input_ids"] for row in Parity().rows[:4]])
    with torch.no_grad():
        expected, found = (m.eval()(inputs).logits for m in (trainer.model, fresh))
    assert torch.equal(expected, found)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 4
    for entry in logged:
        assert entry.keys() >= LOGGED
    assert logged[-1]["reefknot/bytes"] <= 4_000


def test_without_a_budget_it_is_hardened_after_a_share_of_the_steps(tmp_path):
    callback = TyingCallback(
        tmp_path / "m.reef", num_clusters=8, l1_strength=1e-4, harden_after=0.5
    )
    phases = []
    trainer = Trainer(make_model(), arguments(tmp_path), train_dataset=Parity())
    callback.add_to(trainer)

    class Watch(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **parts):
            phases.append((state.global_step, logs.get("reefknot/phase")))

    trainer.add_callback(Watch())  # as a reporter: it sees what ours has added
    trainer.train()
    assert [hard for step, hard in phases if step in (5, 15)] == [0.0, 1.0]
    assert reefknot.inspect(tmp_path / "m.reef")


def test_a_resumed_training_gives_the_same_file(tmp_path):
    def trained(folder, **more):
        path = folder / "m.reef"
        callback = TyingCallback(path, target_bytes=4_000)
        args = arguments(folder, save_strategy="steps", save_steps=8)
        trainer = Trainer(make_model(), args, train_dataset=Parity(), callbacks=[callback])
        trainer.train(**more)
        return path.read_bytes()

    whole = trained(tmp_path)
    assert (tmp_path / "checkpoint-8" / FILE).is_file()
    (tmp_path / "m.reef").unlink()
    assert trained(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-8")) == whole
    (tmp_path / "checkpoint-8" / FILE).unlink()
    with pytest.raises(FormatError, match="not found, so tying cannot resume after step 8"):
        trained(tmp_path, resume_from_checkpoint=str(tmp_path / "checkpoint-8"))


def test_a_trainer_that_was_stopped_goes_on_with_the_same_callback(tmp_path):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **parts):
            if state.global_step == 10:
                raise KeyboardInterrupt

    def made(folder):
        args = arguments(folder, save_strategy="steps", save_steps=8, max_steps=12)
        callback = TyingCallback(folder / "m.reef", target_bytes=4_000)
        return Trainer(make_model(), args, train_dataset=Parity(), callbacks=[callback])

    made(tmp_path / "whole").train()
    trainer = made(tmp_path / "stopped")
    trainer.add_callback(Stop)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.remove_callback(Stop)
    trainer.train(resume_from_checkpoint=True)  # the same optimizer, too
    whole, stopped = (tmp_path / name / "m.reef" for name in ("whole", "stopped"))
    assert stopped.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    "more",
    [
        {"gradient_accumulation_steps": 2},
        pytest.param({"bf16": True}, marks=pytest.mark.slow),
        pytest.param({"max_grad_norm": 0.1, "optim": "adafactor"}, marks=pytest.mark.slow),
    ],
    ids=["accumulation", "bf16", "adafactor"],
)
def test_the_trainers_own_ways_stay_within_the_budget(tmp_path, more):
    callback = TyingCallback(tmp_path / "m.reef", target_bytes=4_000)
    args = arguments(tmp_path, **more)
    trainer = Trainer(make_model(), args, train_dataset=Parity(), callbacks=[callback])
    trainer.train()
    assert len(trainer.optimizer.param_groups) == 2  # with weight decay and without
    assert callback.session.method.step == 20
    assert (tmp_path / "m.reef").stat().st_size <= 4_000


@pytest.mark.slow
def test_a_compiled_model_ends_in_a_file_for_a_plain_one(tmp_path):
    callback = TyingCallback(tmp_path / "m.reef", target_bytes=4_000)
    args = arguments(
        tmp_path, torch_compile=True, torch_compile_backend="aot_eager", max_steps=16,
        logging_steps=1, save_strategy="steps", save_steps=8,
    )  # fmt: skip
    trainer = Trainer(make_model(), args, train_dataset=Parity(), callbacks=[callback])
    trainer.train()
    assert hasattr(trainer.model_wrapped, "_orig_mod")  # it was compiled
    phases = [e["reefknot/phase"] for e in trainer.state.log_history if "loss" in e]
    assert phases == sorted(phases) and set(phases) == {0, 1, 2, 3}
    assert (tmp_path / "m.reef").stat().st_size <= 4_000
    fresh = make_model(seed=9)
    found = reefknot.load(tmp_path / "m.reef")
    assert found.keys() == fresh.state_dict().keys()
    fresh.load_state_dict(found)
    inputs = torch.stack([row["input_ids"] for row in Parity().rows[:4]])
    with torch.no_grad():
        expected, found = (m.eval()(inputs).logits for m in (trainer.model, fresh))
    assert torch.equal(expected, found)
    whole = (tmp_path / "m.reef").read_bytes()
    callback = TyingCallback(tmp_path / "m.reef", target_bytes=4_000)
    trainer = Trainer(make_model(), args, train_dataset=Parity(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert (tmp_path / "m.reef").read_bytes() == whole


def test_frozen_layers_stay_as_they_are(tmp_path):
    model = make_model()
    for parameter in model.bert.embeddings.parameters():
        parameter.requires_grad_(False)
    before = model.bert.embeddings.word_embeddings.weight.clone()
    callback = TyingCallback(tmp_path / "m.reef", num_clusters=8)
    Trainer(
        model, arguments(tmp_path, max_steps=10), train_dataset=Parity(), callbacks=[callback]
    ).train()
    found = reefknot.load(tmp_path / "m.reef")
    assert torch.equal(found["bert.embeddings.word_embeddings.weight"], before)


def test_tied_embeddings_are_stored_once(tmp_path):
    config = transformers.GPT2Config(vocab_size=60, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in Parity().rows]
    callback = TyingCallback(tmp_path / "m.reef", target_bytes=4_000)
    args = arguments(tmp_path)
    trainer = Trainer(model, args, train_dataset=rows, callbacks=[callback])
    trainer.train()
    found = reefknot.load(tmp_path / "m.reef")
    assert found["lm_head.weight"].data_ptr() == found["transformer.wte.weight"].data_ptr()
    fresh = transformers.GPT2LMHeadModel(config)
    fresh.load_state_dict(found)
    assert torch.equal(fresh.lm_head.weight, model.lm_head.weight)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_two_processes_end_with_the_same_network(tmp_path):
    script = Path(__file__).with_name("two_processes.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.reef").stat().st_size <= 1_000


def test_what_cannot_be_is_said_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="unknown method 'sparse'"):
        TyingCallback(tmp_path / "m.reef", method="sparse")
    with pytest.raises(ConfigError, match="harden_after is a fraction"):
        TyingCallback(tmp_path / "m.reef", harden_after=80)
    args = arguments(
        tmp_path, load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps",
        eval_steps=5, save_steps=5,
    )  # fmt: skip
    trainer = Trainer(
        make_model(), args, train_dataset=Parity(), eval_dataset=Parity(),
        callbacks=[TyingCallback(tmp_path / "m.reef", target_bytes=4_000)],
    )  # fmt: skip
    with pytest.raises(ConfigError, match="load_best_model_at_end"):
        trainer.train()
