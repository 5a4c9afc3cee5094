import pytest

SMALL = {"dataset": "synthetic:nodes=120,degree=6,classes=3,features=8", "clients": 3, "width": 8, "rounds": 6}


@pytest.fixture
def small():
    """An experiment that takes milliseconds."""
    return dict(SMALL)
