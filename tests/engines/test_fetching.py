"""A round's tensors as bytes and back."""

import torch

from graft.engines.fetching import pack_bytes, unpack_bytes
from graft.tensors.trees import Tree
from tests.toy import same


def test_tensors_come_back_as_they_were_views_included():
    square = torch.arange(9.0, dtype=torch.float64).view(3, 3)
    tensors = Tree(
        diagonal=square.diagonal(),
        column=square[:, 1],
        row=square.float()[1],
        whole=torch.tensor([3, 1]),
        mask=torch.tensor([[True, False], [False, True]]).T,
        scalar=torch.tensor(2.5),
    )
    data, layout = pack_bytes(tensors)
    returned = unpack_bytes(data, layout)
    for path, leaf in tensors.items():
        assert torch.equal(returned[path], leaf)
        assert returned[path].dtype == leaf.dtype
    assert not same(unpack_bytes(data.flip(0), layout), returned)
