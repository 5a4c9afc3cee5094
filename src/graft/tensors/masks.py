"""Masks and the values that they select, packed for messages."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def packed(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """Returns the values [clients, count] that the mask [clients, values] selects."""
    target = torch.where(mask, mask.cumsum(1) - 1, count)
    return values.new_zeros(len(values), count + 1).scatter(1, target, values)[:, :count]


def unpacked(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the packed values where the mask is true, 0 elsewhere."""
    source = torch.where(mask, mask.cumsum(1) - 1, values.shape[1])
    return functional.pad(values, (0, 1)).gather(1, source)


def as_bits(mask: Tensor) -> Tensor:
    """Returns a mask [clients, entries] in bytes, eight entries each."""
    eights = functional.pad(mask.to(torch.uint8), (0, -mask.shape[1] % 8)).view(len(mask), -1, 8)
    return (eights << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(2, dtype=torch.uint8)


def from_bits(data: Tensor, count: int) -> Tensor:
    """Returns the mask back, [clients, count]."""
    eights = data.unsqueeze(2) >> torch.arange(8, dtype=torch.uint8, device=data.device) & 1
    return eights.flatten(1)[:, :count].bool()
