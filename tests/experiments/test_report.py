"""What the report says, by hand."""

import pytest

from graft.experiments.report import local_best, size, spread


def test_each_client_may_stop_at_its_own_best_validation_round():
    rounds = [
        {"per_client": {"validation": [0.9, 0.1, None], "test": [0.8, 0.2, 0.5]}},
        {"loss": 1.0},  # a round that was not evaluated
        {"per_client": {"validation": [0.5, 0.7, None], "test": [1.0, 0.6, 0.5]}},
    ]
    assert local_best(rounds) == pytest.approx((0.8 + 0.6) / 2)
    assert local_best([]) is None


def test_numbers_are_written_as_people_read_them():
    assert spread([0.5, 0.7]) == "60.0 ± 14.1"
    assert spread([0.5]) == "50.0"
    assert spread([None]) == "-"
    assert [size(count) for count in (0, 999, 1000, 3_855_720, 5e9)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "3.9 MB",
        "5.0 GB",
    ]
