"""Pictures of the data: what they show is what the partition's card and the graphs say."""

import csv
import math
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from graft.cli import app
from graft.data.graphs import make_graph
from graft.experiments.reports.portraits import cosines, metrics, min_max_scaled, true_fingerprint, write_portrait
from graft.experiments.studies import PORTRAITS
from graft.experiments.studies.study import Portrait
from graft.methods.dfed_sst.fingerprints import Fingerprint

DATA = "synthetic:nodes=120,degree=6,classes=3,features=8"
TINY = Portrait(
    "A small one",
    (DATA,),
    (2,),
    ("labels", "homophily", "structure", "similarity"),
    {"rounds": 2, "width": 8},
    without=1,
)


def test_structure_of_a_triangle_with_a_tail():
    edges = np.array([[0, 1, 2, 2], [1, 2, 0, 3]])
    graph = make_graph("toy", np.eye(5), edges, np.array([0, 0, 0, 1, 1]), 2)
    card = {"nodes": 5, "edges": 4, "components": 2, "isolated": 1, "homophily": 0.75}
    # Degrees 2, 2, 3, 1, 0: ten ordered pairs of neighbours, of which six are joined.
    assert metrics(graph, card, 1.5) == [5, 4, 1.6, 2, 1, 0.75, 0.6, 1.5]
    # The first class is a triangle, of distance 1; no path joins the second, which counts 3: the longest path and 1.
    own = true_fingerprint(graph, 2)
    assert own.wlsd == pytest.approx((math.log(4) * 1 + math.log(3) * 3) / (math.log(4) + math.log(3)))
    assert own.cse == pytest.approx(np.diag([1.0, 3.0]))


def test_fingerprints_are_as_similar_as_their_angles():
    one, same, other = (Fingerprint(0.0, np.array(cse)) for cse in ([[1.0, 0]], [[2.0, 0]], [[0.0, 5]]))
    assert cosines([one, same, other]) == pytest.approx(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]))


def test_columns_run_from_their_lowest_to_their_highest_value():
    assert min_max_scaled([[2.0, 5.0], [4.0, 5.0], [3.0, 5.0]]) == [[0, 0], [1, 0], [0.5, 0]]


def test_a_portrait_is_drawn_and_written(tmp_path):
    reported = []
    paths = write_portrait(TINY, "tiny", tmp_path / "out", TINY.datasets, TINY.clients, reported.append)
    assert [path.name for path in paths] == ["figure.svg", "table.csv", "portrait.html"]
    assert reported == [f"{DATA} with 2 clients"]
    with (tmp_path / "out" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == ["0", "1"]
    assert sum(int(row["nodes"]) for row in rows) == 120
    assert sum(int(count) for row in rows for count in row["nodes_of_each_class"].split()) == 120
    figure = (tmp_path / "out" / "figure.svg").read_text()
    titles = ("share of each class", "homophily of each class", "structure", "similarity of fingerprints")
    for title in (*titles, "test accuracy of the global model"):
        assert figure.count(f"{DATA}-2: {title}") >= 1
    assert "without client 1" in figure
    assert "<svg" in (tmp_path / "out" / "portrait.html").read_text()


def test_a_portrait_without_the_package_that_draws_it_has_its_tables_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    reported = []
    portrait = replace(TINY, maps=("labels",), without=None)
    paths = write_portrait(portrait, "tiny", tmp_path / "out", TINY.datasets, TINY.clients, reported.append)
    assert [path.name for path in paths] == ["table.csv", "portrait.html"]
    assert reported[1:] == [
        "The figure was left out. Figures need vl-convert, which is not installed: pip install vl-convert-python."
    ]
    assert "The figure was left out." in (tmp_path / "out" / "portrait.html").read_text()


def test_a_portrait_of_links_draws_the_rounds_that_it_names_and_lists_who_hears_whom(tmp_path):
    portrait = Portrait(
        "Links", (DATA,), (3,), experiment={"rounds": 3, "width": 8}, links_of=("dpsgd", "gossip"), rounds=(1, 3)
    )
    paths = write_portrait(portrait, "links", tmp_path, portrait.datasets, portrait.clients, [].append)
    assert [path.name for path in paths] == ["figure.svg", "links.csv", "portrait.html"]
    figure = ElementTree.parse(tmp_path / "figure.svg").getroot()
    networks = figure.findall("{http://www.w3.org/2000/svg}svg")
    assert [network.get("aria-label") for network in networks] == ["round 1", "round 3"] * 2
    assert [(network.get("x"), network.get("y")) for network in networks[1:3]] == [("320", "26"), ("0", "372")]
    with (tmp_path / "links.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["method"], row["round"]) for row in rows} == {
        (method, number) for method in ("dpsgd", "gossip") for number in ("1", "3")
    }
    heard = [float(row["weight"]) for row in rows if (row["method"], row["round"], row["to"]) == ("dpsgd", "1", "0")]
    assert sum(heard) == pytest.approx(1, abs=1e-5)
    assert "hears" in (tmp_path / "portrait.html").read_text()


@pytest.mark.parametrize("name", sorted(PORTRAITS))
def test_every_portrait_is_of_a_possible_experiment(name):
    from graft.experiments.experiment import make_experiment

    portrait = PORTRAITS[name]
    for dataset in portrait.datasets:
        for method in portrait.links_of or ("fedavg",):
            values = portrait.values(dataset, method)
            experiment = make_experiment({**values, "dataset": dataset, "clients": portrait.clients[0]})
            assert max(portrait.rounds, default=1) <= experiment.rounds
    assert portrait.without is None or portrait.without < min(portrait.clients)


def test_an_unknown_dataset_of_a_portrait_is_refused():
    result = CliRunner().invoke(app, ["reproduce", "fedomd-labels", "--datasets", "nowhere"])
    assert result.exit_code == 2
    assert "has no dataset 'nowhere'" in " ".join(result.stderr.split())
