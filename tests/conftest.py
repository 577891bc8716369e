"""One thread of torch: networks this small gain nothing from a second, and wait for it when busy."""

import torch

torch.set_num_threads(1)
