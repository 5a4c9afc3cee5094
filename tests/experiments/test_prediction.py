"""Predictions: for new graphs as people bring them, by whom they were asked for, and into a table."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

import graft
from graft.cli import app
from graft.data.client_graphs import Federation
from graft.experiments.prepared_data import describe_data, load_prepared, save_prepared
from graft.experiments.run_directory import RunDirectory
from tests.experiments.export.test_networks import Normed, unseen_graph

DATA = "synthetic:nodes=90,degree=5,classes=3,features=6"
SETTINGS = dict(dataset=DATA, clients=3, width=8, rounds=2, device="cpu", threads=1, partition="random")


def as_data(graph):
    return Data(x=torch.from_numpy(graph.x), edge_index=torch.from_numpy(graph.edges))


def write_tables(folder, nodes, labels=True, seed=0):
    """Writes two small tables with ids, a category and a number."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    header = "id,amount,kind" + (",label" if labels else "")
    lines = [
        f"{folder.name}{n},{random.normal(100 * (n % 2), 20):.3f},{'ab'[random.integers(2)]}"
        + (f",{('good', 'bad')[n % 2]}" if labels else "")
        for n in range(nodes)
    ]
    (folder / "nodes.csv").write_text("\n".join([header, *lines]) + "\n")
    edges = [f"{folder.name}{random.integers(nodes)},{folder.name}{random.integers(nodes)}" for _ in range(2 * nodes)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "run"
    return place, graft.run("fedavg", out=place, **SETTINGS)


@pytest.fixture(scope="module")
def banks(tmp_path_factory):
    """A run of two clients with tables of their own, and where it is."""
    root = tmp_path_factory.mktemp("banks")
    clients = {name: write_tables(root / name, 60, seed=seed) for seed, name in enumerate(("alpha", "beta"))}
    graft.run("fedavg", Federation(clients), out=root / "run", **without_data())
    return root


def without_data():
    return {name: value for name, value in SETTINGS.items() if name not in ("dataset", "clients", "partition")}


def test_a_graph_a_data_and_a_file_give_the_same_predictions(run, tmp_path):
    _, result = run
    graph, _ = unseen_graph()
    np.savez(tmp_path / "new.npz", x=graph.x, edges=graph.edges, y=graph.y)
    model = result.client(1)
    expected = model.predict(graph)
    for data in (as_data(graph), tmp_path / "new.npz", str(tmp_path / "new.npz")):
        predictions = model.predict(data)
        assert (predictions.probabilities == expected.probabilities).all()
        assert predictions.ids.tolist() == list(range(23))
    assert not np.allclose(expected.probabilities, result.client(0).predict(graph).probabilities)


def test_predictions_depend_on_edges_that_training_never_saw(run):
    _, result = run
    graph, _ = unseen_graph()
    edgeless = replace(graph, edges=graph.edges[:, :0])
    with_edges, without = (result.client(0).predict(data).probabilities for data in (graph, edgeless))
    assert not np.allclose(with_edges, without)
    assert np.allclose(with_edges[-1], without[-1])  # an isolated node has none either way


def test_labels_of_new_data_do_not_matter(run):
    _, result = run
    graph, _ = unseen_graph()
    labelled = replace(graph, y=np.arange(23) % 3)
    assert (result.client(0).predict(labelled).probabilities == result.client(0).predict(graph).probabilities).all()


def test_probabilities_and_classes_belong_together(run):
    predictions = run[1].client(0).predict()
    assert np.allclose(predictions.probabilities.sum(1), 1)
    assert (predictions.classes == predictions.probabilities.argmax(1)).all()
    assert predictions.labels.tolist() == [predictions.class_names[label] for label in predictions.classes]
    assert repr(predictions) == "Predictions(30 nodes, classes 0, 1, 2)"


def test_nodes_of_a_shared_graph_are_known_by_their_numbers_there(run):
    _, result = run
    ids = [result.client(client).predict().ids for client in range(3)]
    assert sorted(np.concatenate(ids)) == list(range(90))
    for client, own in enumerate(ids):
        assert (result.models.federation().membership[own] == client).all()


def test_centralised_training_has_one_model_for_all_clients(tmp_path):
    result = graft.run("centralised", out=tmp_path / "run", feature_norm=0, **SETTINGS)  # or each client has a factor
    graph, _ = unseen_graph()
    predictions = [graft.load_result(tmp_path / "run").client(client).predict(graph) for client in range(3)]
    assert all((other.probabilities == predictions[0].probabilities).all() for other in predictions)
    assert sorted(np.concatenate([result.client(client).predict().ids for client in range(3)])) == list(range(90))


@pytest.mark.parametrize("features", ["row", "l2", "standard"])
def test_new_data_are_scaled_as_the_old_were(tmp_path, features):
    random = np.random.default_rng(0)
    x = random.uniform(1, 9, size=(60, 4)) * [1, 10, 100, 1000]
    graph = graft.make_graph("mine", x, random.integers(0, 60, (2, 150)), np.arange(60) % 3, 3)
    settings = {**SETTINGS, "dataset": graph, "features": features, "partition": "random"}
    result = graft.run("fedavg", out=tmp_path / "run", **settings)
    federation = result.models.federation()
    opened = graft.load_result(tmp_path / "run")
    for client in range(3):
        own = np.flatnonzero(federation.membership == client)
        raw = graft.make_graph("again", x[own], np.empty((2, 0), int), np.full(len(own), -1), 3)
        assert np.allclose(opened.client(client).prepare(raw).x, federation.clients[client].x, atol=1e-5)
        assert not np.allclose(opened.client(client).prepare(raw).x, raw.x)


def test_tables_are_prepared_as_in_training_and_keep_their_ids(banks, tmp_path):
    opened = graft.load_result(banks / "run", dataset=None)
    new = write_tables(tmp_path / "new", 25, labels=False, seed=7)
    predictions = opened.client("beta").predict(new)
    assert predictions.ids.tolist() == [f"new{n}" for n in range(25)]
    assert set(predictions.class_names) == {"bad", "good"}
    again = opened.client("beta").predict(banks / "beta")
    table = Federation({name: banks / name for name in ("alpha", "beta")})
    own = graft.load_result(banks / "run", dataset=table).client("beta").predict()
    assert again.ids.tolist() == own.ids.tolist()
    assert np.allclose(again.probabilities, own.probabilities, atol=1e-6)


def test_a_client_is_found_by_name_or_number_and_others_are_listed(banks, run):
    opened = graft.load_result(banks / "run")
    assert opened.client("beta").number == opened.client(1).number == opened.client("1").number == 1
    assert opened.client(0).name == "alpha"
    for wrong in ("gamma", 2, -1, "-1", "²", True):
        with pytest.raises(graft.InputError, match=r"There is no client .*; there are alpha, beta"):
            opened.client(wrong)
    with pytest.raises(graft.InputError, match="There is no client 'alpha'; there are 0 to 2"):
        run[1].client("alpha")


def test_features_that_the_model_does_not_take_are_refused(run):
    for features in (5, 7):
        with pytest.raises(graft.InputError, match=f"'unseen' has {features} features, but the model takes 6"):
            run[1].client(0).predict(unseen_graph(features=features)[0])


def test_objects_that_a_run_was_given_must_be_given_again(tmp_path):
    module, graph = Normed(), graft.load(DATA)
    result = graft.run("fedavg", out=tmp_path / "run", models=module, **{**SETTINGS, "dataset": graph})
    with pytest.raises(graft.InputError, match=r"given its models in Python: open it there, graft.load_result\("):
        graft.load_result(tmp_path / "run")
    opened = graft.load_result(tmp_path / "run", models=Normed())
    new, _ = unseen_graph()
    assert (opened.client(0).predict(new).probabilities == result.client(0).predict(new).probabilities).all()
    with pytest.raises(graft.InputError, match="given its dataset in Python"):
        opened.client(0).predict()
    whole = graft.load_result(tmp_path / "run", models=Normed(), dataset=graph)
    assert (whole.client(0).predict().probabilities == result.client(0).predict().probabilities).all()
    with pytest.raises(graft.InputError, match="The models are not those that this run was trained with"):
        graft.load_result(tmp_path / "run", models=Normed(7))


def test_data_that_changed_are_not_taken_for_those_of_the_run(tmp_path):
    graph = graft.load(DATA)
    graft.run("fedavg", out=tmp_path / "run", **{**SETTINGS, "dataset": graph})
    other = replace(graph, x=graph.x + 1)
    with pytest.raises(graft.InputError, match="is not what this run was trained on"):
        graft.load_result(tmp_path / "run", dataset=other).client(0).predict()


def test_what_is_known_of_the_data_comes_back_and_damage_is_refused(tmp_path, run):
    federation = run[1].models.federation()
    data = describe_data(replace(federation, names=("a", "b", "c")), run[1].models.experiment, False)
    path = tmp_path / "preparation.json"
    save_prepared(path, data, "bound")
    loaded = load_prepared(path, "bound")
    assert (loaded.clients, loaded.names, loaded.pooled) == (3, ("a", "b", "c"), False)
    assert [entry.to_json() for entry in loaded.preparations] == [entry.to_json() for entry in data.preparations]
    with pytest.raises(graft.InputError, match="damaged or not of the run beside it"):
        load_prepared(path, "another run")
    path.write_text(path.read_text().replace('"c"', '"d"'))
    with pytest.raises(graft.InputError, match="checksum does not match"):
        load_prepared(path, "bound")


def test_a_loaded_result_is_that_of_the_run(run):
    place, result = run
    opened = graft.load_result(place)
    assert opened.summary["accuracy"] == result.accuracy
    assert [record["round"] for record in opened.rounds] == [1, 2]
    assert torch.equal(opened.clients[2].model.head.weight, result.clients[2].model.head.weight)
    assert torch.equal(opened.server.model.head.weight, result.server.model.head.weight)
    assert repr(opened.client(2)) == repr(result.client(2))


# The command line.


def invoke(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def read_table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_predict_writes_a_table_of_ids_classes_and_probabilities(banks, tmp_path):
    new, out = write_tables(tmp_path / "new", 25, labels=False, seed=7), tmp_path / "scores.csv"
    code, said = invoke("predict", banks / "run", "--client", "beta", "--data", new, "--out", out)
    assert code == 0, said
    assert "25 nodes predicted by the own gcn of client beta" in said
    header, *rows = read_table(out)
    predictions = graft.load_result(banks / "run").client("beta").predict(new)
    assert header == ["id", "class", *(f"p({name})" for name in predictions.class_names)]
    assert [row[0] for row in rows] == [f"new{n}" for n in range(25)]
    assert [row[1] for row in rows] == predictions.labels.tolist()
    values = np.array([row[2:] for row in rows], np.float32)
    assert (values == predictions.probabilities).all()


def test_predict_takes_the_global_model_and_the_last_round(run, tmp_path):
    place, result = run
    for flags, options in (([], {}), (["--global"], {"model": "global"}), (["--last"], {"at": "last"})):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.csv"
        code, said = invoke("predict", place, "--client", 2, "--out", out, *flags)
        assert code == 0, said
        values = np.array([row[2:] for row in read_table(out)[1:]], np.float32)
        assert (values == result.client(2, **options).predict().probabilities).all()


def test_export_writes_a_folder(run, tmp_path):
    code, said = invoke("export", run[0], "--client", 1, "--out", tmp_path / "out", "--format", "torchscript")
    assert code == 0, said
    assert (tmp_path / "out" / "model.pt").is_file()
    assert "MODEL_CARD.md" in said


def bad_commands(place, folder):
    """Returns commands that cannot be done, and what should be said of each."""
    out, there, mine = folder / "out.csv", folder / "there.csv", folder / "mine"
    there.write_text("mine")
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    np.savez(folder / "wide.npz", x=np.ones((4, 9)), edges=np.array([[0], [1]]), y=np.zeros(4, int))
    (folder / "damaged.npz").write_bytes(b"PK nonsense")
    predict, export = ("predict", place, "--client", "1"), ("export", place, "--client", "1")
    return [
        (("predict", folder / "nothing", "--client", "1", "--out", out), "is not a run directory"),
        (("predict", folder, "--client", "1", "--out", out), "is not a run directory"),
        (("predict", place, "--client", "9", "--out", out), "There is no client '9'; there are 0 to 2"),
        (("predict", place, "--out", out), "Say whose model: --client with one of 0 to 2"),
        ((*predict, "--out", there), "exists already; choose another --out, or --overwrite it"),
        ((*predict, "--out", mine), "is a folder"),
        ((*predict, "--out", folder / "no" / "where.csv"), "there is no folder"),
        ((*predict, "--data", "nothing", "--out", out), "There is no dataset or file 'nothing'"),
        ((*predict, "--data", folder / "wide.npz", "--out", out), "has 9 features, but the model takes 6"),
        ((*predict, "--data", folder / "damaged.npz", "--out", out), "damaged.npz"),
        ((*export, "--out", mine), "exists already"),
        ((*export, "--out", mine, "--overwrite"), "is not an exported model, so it is not overwritten"),
        ((*export, "--out", there), "is a file; an export needs a folder"),
        ((*export, "--out", folder / "new", "--format", "keras"), "There is no format 'keras'"),
        (("export", place, "--client", "9", "--out", folder / "new"), "There is no client '9'"),
    ]


def test_what_cannot_be_done_is_one_sentence_and_writes_nothing(run, tmp_path):
    commands = bad_commands(run[0], tmp_path)
    before = sorted((path, path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*"))
    for words, sentence in commands:
        code, said = invoke(*words)
        assert code == 2, (words, said)
        assert sentence in said
        assert said.count("\n") == 1, said
        assert sorted((path, path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*")) == before


def test_a_run_without_scores_or_without_its_objects_says_so(tmp_path):
    graft.run("fedavg", out=tmp_path / "given", models=Normed(), **SETTINGS)
    code, said = invoke("predict", tmp_path / "given", "--client", 0, "--out", tmp_path / "x.csv")
    assert (code, "given its models in Python" in said) == (2, True)
    forget_best(tmp_path / "given")
    graft.run("local", out=tmp_path / "local", **SETTINGS)
    code, said = invoke("predict", tmp_path / "local", "--client", 0, "--global", "--out", tmp_path / "x.csv")
    assert (code, "Method 'local' has no global model" in said) == (2, True)
    forget_best(tmp_path / "local")
    code, said = invoke("predict", tmp_path / "local", "--client", 0, "--out", tmp_path / "x.csv")
    assert (code, "none of its rounds was evaluated yet" in said) == (2, True)
    assert not (tmp_path / "x.csv").exists()


def forget_best(place):
    """Removes the best models of a run, as if it had never been scored."""
    for path in RunDirectory(place).best.iterdir():
        path.unlink()


def test_overwriting_replaces_a_table_as_a_whole(run, tmp_path):
    out = tmp_path / "scores.csv"
    out.write_text("old")
    assert invoke("predict", run[0], "--client", 1, "--out", out, "--overwrite")[0] == 0
    assert len(read_table(out)) == 31
    assert [path.name for path in tmp_path.iterdir()] == ["scores.csv"]


def test_ids_with_commas_quotes_and_line_breaks_survive(tmp_path):
    predictions = graft.Predictions(
        np.array(['a,b', 'say "hi"', "two\nlines", "=1+1"]), np.array([0, 1, 0, 1]), np.full((4, 2), 0.5, np.float32),
        ("x,y", "z"),
    )  # fmt: skip
    predictions.to_csv(tmp_path / "odd.csv")
    header, *rows = read_table(tmp_path / "odd.csv")
    assert header == ["id", "class", "p(x,y)", "p(z)"]
    assert [row[0] for row in rows] == predictions.ids.tolist()
