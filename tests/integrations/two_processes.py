"""A `Trainer` on two processes, as `test_transformers.py` starts it with torchrun.

BatchNorm sees other batches in each process, so its statistics, and the size of a file, differ.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from reefknot.integrations.transformers import TyingCallback


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(20, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Linear(60, 3)
        )

    def forward(self, inputs, labels=None):
        logits = self.body(inputs)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def gathered(tensors):
    here = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    found = [torch.empty_like(here) for _ in range(2)]
    dist.all_gather(found, here)
    return found


class Ending(TyingCallback):
    def on_train_end(self, args, state, control, **parts):
        model = self.session.method.model
        assert torch.equal(*gathered(model.parameters())), "weights have drifted apart"
        assert not torch.equal(*gathered(model.buffers()))
        super().on_train_end(args, state, control, **parts)
        assert torch.equal(*gathered(model.state_dict().values())), "the results differ"


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(256, 20)
    rows = [{"inputs": row, "labels": row[:3].argmax()} for row in inputs]
    arguments = TrainingArguments(
        output_dir="out", max_steps=40, per_device_train_batch_size=8, learning_rate=1e-2,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    Trainer(
        Net(), arguments, train_dataset=rows, callbacks=[Ending("model.reef", target_bytes=1_000)]
    ).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
