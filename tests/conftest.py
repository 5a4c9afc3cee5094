"""Toy federations are too small for threads: on a busy machine they only wait for each other."""

import pytest
import torch

from graft.models.architecture import LayeredModel

torch.set_num_threads(1)


@pytest.fixture
def asked_about_all(monkeypatch):
    """Models work out what they say of all nodes, even where just some are asked about, which rounds otherwise."""
    monkeypatch.setattr(LayeredModel, "supports_rows", False)
