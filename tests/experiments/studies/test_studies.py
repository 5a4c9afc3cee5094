"""The declared studies: possible experiments, and the papers' numbers as they are printed."""

from statistics import mean

import numpy as np
import pytest

from graft.experiments.experiment import make_experiment
from graft.experiments.make_method import make_method
from graft.experiments.reproduce import make_plan
from graft.experiments.studies import STUDIES
from graft.experiments.studies.paper_tables import COLUMNS, FOLDER, MEAN, Number, printed, read_table


@pytest.fixture
def some_graphs(tmp_path, monkeypatch):
    """A data root with a file for each client of the studies whose clients bring their own graphs."""
    for study in STUDIES.values():
        for pattern in study.graphs.values():
            for client in range(study.clients[0]):
                path = tmp_path / pattern.replace("*", f"c{client}")
                path.parent.mkdir(exist_ok=True)
                np.savez(path, x=np.eye(4), edges=np.array([[0, 1], [1, 2]]), y=np.arange(4) % 2)
    monkeypatch.setenv("GRAFT_DATA", str(tmp_path))


@pytest.mark.usefixtures("some_graphs")
@pytest.mark.parametrize("name", STUDIES)
def test_every_declared_study_is_made_of_possible_experiments(name):
    plan = make_plan(name, seeds=(0,), device="cpu")
    study = plan.study
    assert len(plan.cells) == len(study.datasets) * len(study.clients) * len(study.rows)
    assert len({cell.path for cell in plan.cells}) == len(plan.cells)
    for cell in {cell.row: cell for cell in plan.cells}.values():  # what a plan resolved can be run as it stands
        experiment = make_experiment(cell.experiment)
        make_method(experiment.method, experiment.settings, experiment.plug)
    datasets, names = {*study.datasets, *study.on_request}, {row.paper or name for name, row in study.rows.items()}
    for table in (study.paper, study.later):
        for row, dataset, clients in table:
            assert row in names
            assert dataset in datasets
            assert clients in study.clients
    if study.figure == "lines":
        assert all(row.point is not None for row in study.rows.values())


def test_the_paper_settings_live_in_one_place():
    row = STUDIES["fedgkc-architectures"].rows["fedgkc-paper"]
    assert (row.method, row.settings) == ("fedgkc_paper", {})
    both = STUDIES["fedgkc-modules"].rows["both"]
    assert (both.method, both.settings) == ("fedgkc_paper", {})
    other = STUDIES["fedgkc-modules"].rows["both-copilot-first"]
    assert (other.method, other.settings, other.paper) == ("fedgkc_paper", {"schedule": "copilot_first"}, "both")


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("fedgkc-architectures", {"local", "centralised", "fedgkc_alone"}),
        ("fedgkc-scales", {"local", "centralised", "fedgkc_alone"}),
        (
            "fedgkc-homogeneous",
            {"local", "centralised", "lg_fedavg", "fedproto", "fml", "fml-all", "fedkd", "fedkd-all", "fedtgp"}
            | {"fedgkc_alone"},
        ),
        ("fedgkc-modules", set()),
        ("dfed-sst-main", {"local", "centralised"}),
        ("dfed-sst-topology-sparsity", {"local-0.1", "local-0.3", "local-0.5"}),
        ("dfed-sst-label-sparsity", {"local-0.1", "local-0.3", "local-0.5"}),
        ("fedomd-main", {"centralised", "alone", "fedomd-server-adam", "fedgcn-server-adam"}),
        ("fedomd-parties", {"centralised", "alone", "fedomd-server-adam", "fedgcn-server-adam"}),
        ("fedomd-modules", {"alone", "neither", "orthogonal", "moments", "both"}),
        ("fedomd-depth", {"depth2", "depth4", "depth6", "depth8", "depth10"}),
        ("fedtad-main", {"local", "centralised"}),
        ("fedtad-participation", set()),
    ],
)
def test_only_our_own_rows_are_without_a_number_of_the_paper(name, own):
    study = STUDIES[name]
    cells = {**study.paper, **study.later}
    assert {row for row, entry in study.rows.items() if (entry.paper or row) not in {cell[0] for cell in cells}} == own


# Cells of each printed table that have a number, and those that are lost; the paper's own means are not counted.
CELLS = {
    "dfed_sst_table2": (103, 25),
    "dfed_sst_table3": (64, 0),
    "dfed_sst_table4": (64, 0),
    "fedgkc_v1_table2": (144, 0),
    "fedgkc_v1_table3": (144, 0),
    "fedgkc_v1_table4": (36, 0),
    "fedgkc_v1_table5": (36, 0),
    "fedgkc_v2_table1": (216, 0),
    "fedgkc_v2_table2": (216, 0),
    "fedgkc_v2_table3": (15, 21),
    "fedgkc_v2_table4": (36, 0),
    "fedomd_table4": (127, 1),
    "fedomd_table5": (16, 0),
    "fedomd_table6": (24, 0),
    "fedomd_table7": (48, 0),
    "fedtad_table2": (198, 0),
    "fedtad_table3": (16, 0),
    "fedtad_table4": (25, 0),
}


def test_every_printed_table_is_there_with_all_its_cells():
    assert {path.stem for path in FOLDER.iterdir()} == set(CELLS)
    for table, counts in CELLS.items():
        lines = [line for line in read_table(table) if MEAN not in (line["dataset"], line["clients"])]
        lost = sum(not line["accuracy"] for line in lines)
        assert (len(lines) - lost, lost) == counts, table
        assert {column for line in lines for column in line} >= set(COLUMNS)


def test_printed_numbers_are_those_of_the_papers():
    first, second = printed("fedgkc_v1_table2"), printed("fedgkc_v2_table1")
    assert (first["fedgkc", "cora", 10], second["fedgkc", "cora", 10]) == (Number(80.71), Number(82.71, 0.62))
    assert (first["fedkd", "photo", 20].mean, second["fedkd", "photo", 20].mean) == (85.37, 86.74)
    assert (first["lg_fedavg", "cs", 5].mean, second["lg_fedavg", "cs", 5].mean) == (89.07, 88.07)
    assert second["fiarse", "photo", 20] == Number(88.38, 0.15)
    assert printed("fedgkc_v2_table2")["trust", "cora", 5] == Number(78.73, 0.32)
    one = printed("fedgkc_v1_table4")
    assert mean(number.mean for (row, _, _), number in one.items() if row == "fedavg") == pytest.approx(79.67, abs=0.01)
    assert mean(number.mean for (row, _, _), number in one.items() if row == "fedgkc") == pytest.approx(90.17, abs=0.01)
    assert printed("fedtad_table2", noise="10%")["fedtad", "physics", 20].mean == 92.9
    assert printed("fedtad_table3", plug="fedtad")["gcfl_plus", "ogbn-arxiv", 20].mean == 59.4
    assert printed("fedomd_table7", gcn_layers="2")["fedgcn", "computers", 9] == Number(40.12, 2.54)
    assert STUDIES["fedtad-participation"].printed("fedtad-paper-0.4", "cora", 20).mean == 54.2
    assert STUDIES["fedomd-depth"].printed("paper-depth10", "computers", 3).mean == 46.23
    assert STUDIES["fedgkc-modules"].printed("kama", "pubmed", 5).mean == 85.05


def test_a_lost_cell_has_no_number_and_one_from_another_table_is_marked():
    table = printed("fedomd_table4")
    assert ("fedgcn", "citeseer", 9) not in table
    assert [cell for cell, number in table.items() if not number.sure] == [("fedomd", "photo", 9)]


def test_rows_are_chosen_and_named_and_an_unknown_number_of_clients_is_filled_in():
    table = printed("dfed_sst_table3", {"pens": "mine"}, clients=10)
    assert set(table) == {("mine", name, 10) for name in (*STUDIES["dfed-sst-main"].datasets, "ogbn-arxiv")}
    assert printed("dfed_sst_table3") == {}


def test_a_table_that_needs_a_choice_or_lacks_a_column_is_refused():
    with pytest.raises(ValueError, match=r"'fedtad_table3' has .* more than once"):
        printed("fedtad_table3")
    with pytest.raises(ValueError, match="'fedtad_table3' has no column noise"):
        printed("fedtad_table3", noise="0")
