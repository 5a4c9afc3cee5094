"""Damaged files of every kind: refused with one sentence, or read as they were; nothing in between."""

import pytest

from tests.damage import SUBJECTS, run_cases, summary

FEW, MANY = 40, 2000


def check(subject, count):
    outcomes = run_cases(subject, count)
    assert outcomes.keys() <= {"equal", "refused"}, summary(outcomes)
    assert sum(map(len, outcomes.values())) == count
    return outcomes


@pytest.mark.parametrize("subject", SUBJECTS)
def test_nothing_damaged_is_accepted_as_something_else(subject):
    assert check(subject, FEW).get("refused")  # a reader that accepts everything would not do


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_thousands_of_damaged_files_are_refused_or_read_as_they_were(subject):
    check(subject, MANY)
