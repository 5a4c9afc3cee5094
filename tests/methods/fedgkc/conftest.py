"""Fixtures of the tests of FedGKC."""

import pytest

import graft.models
from tests.methods.fedgkc.cases import Lookup


@pytest.fixture
def _lookup(monkeypatch):
    monkeypatch.setitem(graft.models.MODELS, "lookup", Lookup)
