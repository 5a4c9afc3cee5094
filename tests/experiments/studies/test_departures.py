"""The study of departures from FedGKC's paper: every row changes one thing, and says all that it depends on."""

import pytest

from graft.experiments.experiment import make_experiment
from graft.experiments.reproduce import make_plan
from graft.experiments.studies import STUDIES
from graft.experiments.studies.fedgkc_departures import COMPARED, DEPARTURES

STUDY = STUDIES["fedgkc-departures"]


def experiment(row):
    return make_experiment(STUDY.values(row, "cora", 10, seed=0))


@pytest.mark.parametrize("method", COMPARED)
@pytest.mark.parametrize("departure", DEPARTURES)
def test_a_row_differs_from_its_plain_one_in_its_departure_alone(method, departure):
    plain, changed = (vars(experiment(row)) for row in (method, f"{method}-{departure}"))
    assert {name: value for name, value in changed.items() if value != plain[name]} == DEPARTURES[departure]


def test_there_is_a_row_of_every_method_with_every_departure():
    assert len(STUDY.rows) == len(COMPARED) * (1 + len(DEPARTURES)) == 15


def test_only_the_gin_loses_its_normalisation():
    plain, bare = experiment("local").model_names, experiment("local-plain-gin").model_names
    assert [(one, other) for one, other in zip(plain, bare, strict=True) if one != other] == [("gin", "gin_plain")]


def test_the_order_of_steps_is_said_and_not_left_to_a_default():
    assert all(row.settings["schedule"] == "local_first" for name, row in STUDY.rows.items() if "paper" in name)


def test_largest_components_run_when_they_are_named():
    assert not any(":lcc" in dataset for dataset in STUDY.datasets)
    plan = make_plan("fedgkc-departures", datasets=["photo", "photo:lcc"], clients=[10], methods=["local"], seeds=[0])
    assert [cell.experiment["dataset"] for cell in plan.cells] == ["photo", "photo:lcc"]
    assert len({cell.path for cell in plan.cells}) == 2


def test_printed_numbers_stand_beside_both_versions_of_the_method():
    assert STUDY.printed("fedgkc-paper-packing", "cora", 20).mean == 75.38
    assert STUDY.printed("fedgkc-own-start", "cora", 10).mean == 80.71
    assert STUDY.printed("local", "cora", 10) is None
