"""FedTAD's generator and the labels of its nodes."""

import torch

from graft.methods.fedtad.generator import Generator, generate, pseudo_labels
from graft.tensors.trees import stack


def test_generator_has_the_published_shape():
    weights = Generator(50, 7, 32).start(torch.Generator().manual_seed(0))
    assert weights.classes.shape == (7, 7)
    assert [weights[f"layer{i}"].weight.shape for i in range(4)] == [(39, 64), (64, 128), (128, 256), (256, 50)]
    labels, noise = torch.tensor([0, 6]), torch.randn(2, 32)
    hidden = torch.cat([weights.classes[labels], noise], 1)
    for i in range(3):
        hidden = torch.tanh(hidden @ weights[f"layer{i}"].weight + weights[f"layer{i}"].bias)
    wanted = hidden @ weights.layer3.weight + weights.layer3.bias
    torch.testing.assert_close(generate(stack([weights]), labels, noise), wanted)


def test_pseudo_labels_are_balanced_over_usable_classes():
    every = torch.ones(7, dtype=torch.bool)
    assert torch.bincount(pseudo_labels(every, 100), minlength=7).tolist() == [15, 15, 14, 14, 14, 14, 14]
    some = torch.tensor([False, True, True, False, True])
    assert torch.bincount(pseudo_labels(some, 11), minlength=5).tolist() == [0, 4, 4, 0, 3]
    assert pseudo_labels(every, 3).tolist() == [0, 1, 2]
    assert pseudo_labels(torch.zeros(4, dtype=torch.bool), 5).shape == (5,)
