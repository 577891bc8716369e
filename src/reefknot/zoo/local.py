"""A locally connected layer: a convolution whose filters are not shared between positions.

Takes     images, as `nn.Conv2d` does.
Gives     the layer; freshly initialised as the convolution of the same shape would be.
Paper     section 4.2: the locally connected network that tying is tried on.
Unaware   of networks, data and compression.
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
        pixels = torch.arange(in_channels * input_size**2, dtype=torch.float32)
        windows = unfold(pixels.view(1, in_channels, input_size, input_size), window)
        places = windows[0].T.flatten().long()  # which pixels each window sees
        self.register_buffer("places", places, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, in, H, H) to (N, out, side, side)."""
        pixels = images.flatten(1).T.contiguous()  # with a batch in each row, copies are quick
        windows = pixels.index_select(0, self.places).view(len(self.weight), -1, len(images))
        outputs = torch.baddbmm(self.bias.unsqueeze(2), self.weight, windows)
        return outputs.permute(2, 1, 0).unflatten(2, (self.side, self.side))
