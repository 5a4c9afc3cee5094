"""Masks come back from their bits, and packed values to their places."""

import pytest
import torch

from graft.tensors.masks import as_bits, from_bits, packed, unpacked


@pytest.mark.parametrize("count", [1, 8, 13])
def test_bits_and_values_come_back_as_they_were(count):
    mask = torch.rand(3, count, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[0], mask[1] = True, False
    assert as_bits(mask).shape == (3, -(-count // 8))
    assert torch.equal(from_bits(as_bits(mask), count), mask)
    values = torch.randn(3, count)
    for row in range(3):
        has = mask[row : row + 1]
        sent = packed(values[row : row + 1], has, int(has.sum()))
        assert torch.equal(sent[0], values[row][has[0]])
        assert torch.equal(unpacked(sent, has), values[row : row + 1] * has)
