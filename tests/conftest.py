"""What all tests share."""

import os

import pytest
import torch

from graft.models.architecture import LayeredModel

torch.set_num_threads(1)  # toy federations are too small for threads: on a busy machine they only wait for each other
os.environ.pop("COLUMNS", None)  # set in the processes of pytest-xdist: tables are as wide as in one process


@pytest.fixture
def asked_about_all(monkeypatch):
    """Models work out what they say of all nodes, even where just some are asked about, which rounds otherwise."""
    monkeypatch.setattr(LayeredModel, "supports_rows", False)
