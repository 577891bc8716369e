"""A locally connected layer: a convolution whose filters are not shared between positions.

Takes     images, as `nn.Conv2d` does.
Gives     the layer, freshly initialised as the convolution of the same shape would be, and a pool
          that is quick behind it.
Paper     section 4.2: the locally connected network that tying is tried on.
Unaware   of networks, data and compression.

Images between these layers have the batch innermost in memory: then a layer is one batched matrix
product, forward and backward, a pool is one over channels_last, and nothing is copied but windows.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold


class LocallyConnected2d(nn.Module):
    """Square windows at every place of the image (stride 1, no padding), each with its own weights.

    `weight` has (positions, out_channels, in_channels · window²), positions row by row and windows
    as `unfold` lays them out; `bias` has (positions, out_channels).
    """

    places: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, window: int, *, input_size: int
    ) -> None:
        super().__init__()
        self.side = input_size - window + 1
        positions, area = self.side**2, window**2
        self.weight = nn.Parameter(torch.empty(positions, out_channels, in_channels * area))
        self.bias = nn.Parameter(torch.zeros(positions, out_channels))
        bound = (6 / (in_channels * area + out_channels * area)) ** 0.5  # Glorot's
        nn.init.uniform_(self.weight, -bound, bound)
        pixels = torch.arange(input_size**2 * in_channels, dtype=torch.float32)
        images = pixels.view(1, input_size, input_size, in_channels).permute(0, 3, 1, 2)
        places = unfold(images, window)[0].T.flatten().long()  # which pixels each window sees
        self.register_buffer("places", places, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, in, H, H) to (N, out, side, side)."""
        pixels = _batch_last(images).flatten(0, 2)
        windows = pixels.index_select(0, self.places).view(len(self.weight), -1, len(images))
        outputs = torch.baddbmm(self.bias.unsqueeze(2), self.weight, windows)
        return _batch_first(outputs.unflatten(0, (self.side, self.side)))


class LocalMaxPool2d(nn.MaxPool2d):
    """An `nn.MaxPool2d` that is quick on images with the batch innermost in memory."""

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, H) to (N, C, side, side)."""
        rows = _batch_last(images)
        pooled = super().forward(rows.flatten(2).unsqueeze(0).permute(0, 3, 1, 2))
        return _batch_first(pooled.squeeze(0).permute(1, 2, 0).unflatten(2, rows.shape[2:]))


def _batch_last(images: Tensor) -> Tensor:
    """(N, C, H, W) to (H, W, C, N), contiguous."""
    return images.permute(2, 3, 1, 0).contiguous()


def _batch_first(images: Tensor) -> Tensor:
    """(H, W, C, N) to (N, C, H, W), without a copy."""
    return images.permute(3, 2, 0, 1)
