"""FedTAD's generator and the labels of its nodes."""

import torch

from graft.methods.fedtad import FedTADPaper
from graft.methods.fedtad.generator import Generator, drawn_labels, generate, pseudo_labels
from graft.tensors.trees import stack
from tests.toy import CLASSES, run_rounds, toy_setup


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


def test_drawn_labels_are_usable_classes_each_as_likely():
    some = torch.tensor([False, True, True, False, True])
    thirds = torch.tensor([0.0, 0.3, 0.34, 0.66, 0.67, 0.9999])
    assert drawn_labels(some, thirds).tolist() == [1, 1, 2, 2, 4, 4]
    assert drawn_labels(torch.zeros(4, dtype=torch.bool), thirds).shape == (6,)  # nobody is reliable: nothing is learnt


def test_labels_are_drawn_anew_in_every_round_only_where_the_print_is_followed():
    seen = []

    class Watched(FedTADPaper):
        def train_generator(self, state, lesson, students, noise, terms):
            seen.append(lesson.labels.tolist())
            super().train_generator(state, lesson, students, noise, terms)

    run_rounds(toy_setup(Watched(pseudo_nodes=40)), rounds=2)
    assert seen[0] != seen[1]
    assert set(seen[0]) == set(range(CLASSES))
    run_rounds(toy_setup(Watched(pseudo_nodes=40, pseudo_classes="balanced")), rounds=2)
    assert seen[2] == seen[3] == sorted(seen[2])
