"""A module with buffers, which are averaged and never trained."""

from torch import nn

from tests.toy import CLASSES


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, CLASSES)

    def forward(self, x, edge_index):  # noqa: ARG002
        return self.head(self.norm(x))
