"""A CNN for tokens: an embedding of width 32, a convolution of 64 channels, and a maximum over positions."""

from __future__ import annotations

from torch import Tensor, nn

from pfl.core.errors import InvalidInput
from pfl.data.shape import TokenShape, described
from pfl.models import Shape
from pfl.models._layers import Linear
from pfl.models._network import Network

WIDTH = 32  # of the embedding
CHANNELS = 64
KERNEL = 5  # tokens


class Extractor(nn.Module):
    """Tokens (B, T) to features (B, 64)."""

    def __init__(self, tokens: int):
        super().__init__()
        self.embedding = nn.Embedding(tokens, WIDTH)
        self.conv = nn.Conv1d(WIDTH, CHANNELS, KERNEL, padding=KERNEL // 2)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.conv(self.embedding(x).transpose(1, 2)).amax(2)
        return features.relu()


def text_cnn(shape: Shape, classes: int) -> Network:
    """The sentence classifier of Kim (2014), https://arxiv.org/abs/1408.5882, with kernels of one size and
    without dropout.

    Raises:
        InvalidInput: the samples are not sequences of tokens.
    """
    if not isinstance(shape, TokenShape) or len(shape) != 1:
        raise InvalidInput("samples", described(shape), "sequences of integer tokens (length,)")
    return Network(Extractor(shape.tokens), Linear(CHANNELS, classes))
