"""Damaged files of every kind: refused with one sentence, or read as they were; nothing in between."""

import pytest

from tests.damage import FINE, SUBJECTS, run_cases

FEW, MANY = 24, 2000


def test_nothing_damaged_is_accepted_as_something_else():
    for subject, outcomes in run_cases(list(SUBJECTS), FEW).items():
        assert outcomes.keys() <= FINE, (subject, outcomes)
        assert outcomes.total() == FEW
        assert outcomes["refused"] > FEW / 4  # a reader that accepts everything would not do


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_thousands_of_damaged_files_are_refused_or_read_as_they_were(subject):
    outcomes = run_cases([subject], MANY)[subject]
    assert outcomes.keys() <= FINE, outcomes
    assert outcomes.total() == MANY
