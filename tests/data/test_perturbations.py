"""Every kind of perturbation by its definition, and a run on perturbed data."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse
from typer.testing import CliRunner

import graft
from graft.data import perturbations
from graft.data.federation import build
from graft.data.graphs import MASKS, make_graph
from graft.data.perturbations import KINDS, Perturbation, describe, perturb
from graft.data.scaling import Scaling
from graft.data.synthetic import generate
from graft.errors import InputError

COUNTED = [kind for kind in KINDS if kind != "feature_noise"]


@pytest.fixture(scope="module")
def graph():
    return generate(nodes=300, degree=6, classes=4, features=30, seed=1)


@pytest.fixture(scope="module")
def federation(graph):
    return build(graph, 3, "random", split="40/30/30", seed=5)


def changed(parts, seed=0, features="raw", **how):
    return perturb(parts, Perturbation(**how), seed, [Scaling(features)] * len(parts))


def sparse_graph(nodes=40, width=200):
    random = np.random.default_rng(3)
    x = (random.random((nodes, width)) < 0.05) * random.random((nodes, width))
    return make_graph(
        "thin", x, random.integers(0, nodes, (2, 80)), np.arange(nodes) % 3, masks={"train": np.ones(nodes, bool)}
    )


def same_graph(one, other):
    """Equal bit for bit."""
    features = [part.x.toarray() if issparse(part.x) else part.x for part in (one, other)]
    return (
        np.array_equal(*features)
        and np.array_equal(one.edges, other.edges)
        and np.array_equal(one.y, other.y)
        and all(np.array_equal(getattr(one, mask), getattr(other, mask)) for mask in MASKS)
    )


def check_edges(part):
    """Symmetric, sorted, without duplicates and self-loops."""
    keys = part.edges[0] * part.nodes + part.edges[1]
    assert (np.diff(keys) > 0).all()
    assert (part.edges[0] != part.edges[1]).all()
    assert set(map(tuple, part.edges.T)) == set(map(tuple, part.edges[::-1].T))


def test_nothing_changes_without_strength(federation):
    assert all(map(same_graph, changed(federation.clients), federation.clients))
    whole = build(federation.graph, 3, "random", split="40/30/30", seed=5, perturbation=Perturbation())
    assert whole.card == federation.card
    assert whole.hash == federation.hash
    assert whole.clean is None


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_changes_what_it_names_and_nothing_else(federation, kind):
    parts = changed(federation.clients, **{kind: 0.3})
    touched = {"label_sparsity": "train", "label_noise": "y", "edge": "edges", "feature": "x"}
    own = next(name for start, name in touched.items() if kind.startswith(start))
    for before, after in zip(federation.clients, parts, strict=True):
        for name in ("x", "edges", "y", *MASKS):
            assert np.array_equal(getattr(before, name), getattr(after, name)) == (name != own)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_depend_on_seed_client_and_strength(federation, kind):
    one = federation.clients[0]
    twin = [one, one]
    first, second = changed(twin, seed=1, **{kind: 0.3})
    assert not same_graph(first, second)
    assert same_graph(first, changed(twin, seed=1, **{kind: 0.3})[0])
    assert not same_graph(first, changed(twin, seed=2, **{kind: 0.3})[0])
    assert not same_graph(first, changed(twin, seed=1, **{kind: 0.4})[0])


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_chosen_clients_are_perturbed(federation, kind):
    parts = changed(federation.clients, perturbed_clients="0,2", **{kind: 0.5})
    same = [same_graph(*pair) for pair in zip(parts, federation.clients, strict=True)]
    assert same == [False, True, False]


def test_label_sparsity_takes_training_nodes_and_leaves_one(federation):
    for share in (0.1, 0.25, 0.5):
        for before, after in zip(federation.clients, changed(federation.clients, label_sparsity=share), strict=True):
            assert not (after.train & ~before.train).any()
            assert before.train.sum() - after.train.sum() == round(share * int(before.train.sum()))
    assert [part.train.sum() for part in changed(federation.clients, label_sparsity=1)] == [1, 1, 1]


def test_label_noise_changes_so_many_training_labels_and_each_to_another_class(federation):
    for before, after in zip(federation.clients, changed(federation.clients, label_noise=0.3), strict=True):
        different = before.y != after.y
        assert different.sum() == round(0.3 * int(before.train.sum()))
        assert not (different & ~before.train).any()
        assert after.y.min() >= 0
        assert after.y.max() < before.classes
    everything = changed(federation.clients, label_noise=1)
    assert all((one.y != other.y)[one.train].all() for one, other in zip(federation.clients, everything, strict=True))


def test_label_noise_draws_all_other_classes_alike_and_flips_two():
    train = {"train": np.ones(3000, bool)}
    four = make_graph("four", np.ones((3000, 1)), np.empty((2, 0)), np.full(3000, 2), 4, train)
    counts = np.bincount(changed([four], label_noise=1)[0].y, minlength=4)
    assert counts[2] == 0
    assert (np.abs(counts[[0, 1, 3]] - 1000) < 150).all()
    two = make_graph("two", np.ones((6, 1)), np.empty((2, 0)), np.array([0, 1] * 3), 2, {"train": np.ones(6, bool)})
    assert changed([two], label_noise=1)[0].y.tolist() == [1, 0] * 3
    one = make_graph("one", np.ones((6, 1)), np.empty((2, 0)), np.zeros(6, int), 1, {"train": np.ones(6, bool)})
    with pytest.raises(InputError, match="only one"):
        changed([one], label_noise=1)


def test_edge_sparsity_rounds_to_even(toy):
    ring = toy(10, [(node, (node + 1) % 10) for node in range(10)], train=np.ones(10, bool))
    kept = changed([ring], edge_sparsity=0.25)[0]
    assert kept.edge_count == 8
    check_edges(kept)
    assert set(map(tuple, kept.edges.T)) < set(map(tuple, ring.edges.T))
    assert changed([ring], edge_sparsity=1)[0].edge_count == 0
    five = toy(5, [(node, (node + 1) % 5) for node in range(5)], train=np.ones(5, bool))
    assert changed([five], edge_sparsity=0.3)[0].edge_count == 4  # 3.5 exactly, though 0.7 * 5 is a little less


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_edge_noise_keeps_the_number_of_edges_and_puts_them_where_none_were(federation, share):
    for before, after in zip(federation.clients, changed(federation.clients, edge_noise=share), strict=True):
        check_edges(after)
        assert after.edge_count == before.edge_count
        had, has = (set(map(tuple, part.edges.T)) for part in (before, after))
        assert len(had - has) == len(has - had) == 2 * round(share * before.edge_count)


def test_edge_noise_adds_what_fits_into_a_dense_graph(toy, cliques):
    almost = toy(4, [pair for pair in cliques(range(4)) if pair != (0, 3)], train=np.ones(4, bool))
    after = changed([almost], edge_noise=1)[0]
    assert after.edges.T.tolist() == [[0, 3], [3, 0]]
    assert changed([toy(4, cliques(range(4)), train=np.ones(4, bool))], edge_noise=0.5)[0].edge_count == 3
    lone = toy(1, [], train=np.ones(1, bool), labels=[0])
    assert changed([lone], edge_noise=1, edge_sparsity=1)[0].edge_count == 0


def test_new_edges_are_drawn_alike(toy):
    path = toy(6, [(node, node + 1) for node in range(5)], train=np.ones(6, bool))
    counts = np.zeros((6, 6))
    for seed in range(2000):
        after = changed([path], seed=seed, edge_noise=0.2)[0]
        low, high = after.edges[:, after.edges[0] + 1 < after.edges[1]]
        counts[low, high] += 1
    free = counts[np.triu_indices(6, 2)]
    assert counts.sum() == 2000
    assert (np.abs(free - 200) < 60).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_feature_sparsity_takes_a_share_of_every_nodes_features_rounded_down(federation, sparse):
    graph = sparse_graph() if sparse else federation.clients[0]
    before = csr_array(graph.x).toarray()
    for share in (0.1, 0.3, 0.5):
        after = changed([graph], feature_sparsity=share)[0]
        assert issparse(after.x) == sparse
        kept = csr_array(after.x).toarray()
        had, has = (np.count_nonzero(x, axis=1) for x in (before, kept))
        assert (had - has == np.array([int(count * round(share * 10) // 10) for count in had])).all()
        assert (kept[kept != 0] == before[kept != 0]).all()
    nothing = changed([graph], feature_sparsity=1)[0]
    assert csr_array(nothing.x).nnz == 0


def test_rows_are_scaled_again_where_features_are(graph):
    parts = build(graph, 2, "random", features="l2", perturbation=Perturbation(feature_sparsity=0.5)).clients
    assert np.allclose(np.linalg.norm(parts[0].x, axis=1), 1)
    with_norm = build(
        graph, 2, "random", features="l2", perturbation=Perturbation(feature_sparsity=0.5), feature_norm=4.0
    ).clients
    assert np.allclose(np.linalg.norm(with_norm[0].x, axis=1), 4)
    raw = build(graph, 2, "random", perturbation=Perturbation(feature_sparsity=0.5)).clients
    kept = raw[0].x != 0
    assert (raw[0].x[kept] == build(graph, 2, "random").clients[0].x[kept]).all()


def test_feature_noise_has_the_deviation_that_was_asked_for(federation):
    for before, after in zip(federation.clients, changed(federation.clients, feature_noise=0.2), strict=True):
        noise = after.x - before.x
        assert noise.std() == pytest.approx(0.2, rel=0.05)
        assert abs(noise.mean()) < 0.02
        assert after.x.dtype == np.float32
    assert not issparse(changed([sparse_graph()], feature_noise=0.1)[0].x)


@pytest.mark.parametrize(
    "wrong",
    [
        *({kind: value} for kind in COUNTED for value in (-0.1, 1.1, float("nan"))),
        {"feature_noise": -1.0},
        {"feature_noise": float("inf")},
        {"perturbed_clients": "some"},
        {"perturbed_clients": "0,-2"},
        {"perturbed_clients": ""},
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Perturbation(**wrong)


def test_clients_that_do_not_exist_are_refused(federation):
    with pytest.raises(InputError, match="0 to 2"):
        changed(federation.clients, perturbed_clients="3", label_noise=0.1)
    with pytest.raises(InputError, match="perturbed_clients"):
        graft.run("local", clients=3, perturbed_clients="3", rounds=1)


# The federation.


@pytest.mark.parametrize("kind", KINDS)
def test_the_pooled_graph_holds_what_the_clients_hold(graph, federation, kind):
    whole = build(graph, 3, "random", split="40/30/30", seed=5, perturbation=Perturbation(**{kind: 0.4}))
    crossing = federation.card["edges"]["lost"]
    assert whole.pooled().edge_count == crossing + sum(part.edge_count for part in whole.clients)
    for client, part in enumerate(whole.clients):
        nodes = np.flatnonzero(whole.membership == client)
        position = np.full(graph.nodes, -1)
        position[nodes] = np.arange(len(nodes))
        ends = position[whole.pooled("inside").edges]
        assert np.array_equal(ends[:, (ends >= 0).all(axis=0)], part.edges)
        assert np.array_equal(whole.graph.x[nodes], part.x)
        assert np.array_equal(whole.graph.y[nodes], part.y)
        assert np.array_equal(whole.graph.train[nodes], part.train)
    assert np.array_equal(whole.clean.graph.x, federation.graph.x)


def test_sparse_and_blurred_clients_can_be_pooled():
    graph = sparse_graph(60)
    whole = build(graph, 2, "random", perturbation=Perturbation(feature_noise=0.1, perturbed_clients="1"))
    assert issparse(whole.clients[0].x)
    assert not issparse(whole.clients[1].x)
    assert np.array_equal(whole.graph.x[whole.membership == 0], whole.clients[0].x.toarray())
    thin = build(graph, 2, "random", perturbation=Perturbation(feature_sparsity=0.5))
    assert issparse(thin.graph.x)


def test_the_hash_tells_perturbations_apart(graph):
    def of(seed=0, **how):
        return build(graph, 3, "random", seed=seed, perturbation=Perturbation(**how))

    federations = [of(), *(of(**{kind: share}) for kind in KINDS for share in (0.2, 0.3))]
    federations += [of(label_noise=0.2, perturbed_clients="0"), of(label_noise=0.2, evaluate_on="perturbed")]
    assert len({one.hash for one in federations}) == len(federations)
    assert len({one.card["hash"] for one in federations}) == 1  # the partition itself is the same
    assert of(edge_noise=0.2).hash == of(edge_noise=0.2).hash
    assert of(edge_noise=0.2).hash != of(seed=1, edge_noise=0.2).hash


def test_the_card_says_what_was_done_and_what_is_left(graph):
    federation = build(graph, 3, "random", perturbation=Perturbation(edge_sparsity=0.5, label_noise=0.1))
    card = federation.card
    assert card["perturbation"]["edge_sparsity"] == 0.5
    assert card["perturbation"]["hash"] == federation.hash
    assert [row["edges"] for row in card["per_client"]] == [part.edge_count for part in federation.clients]
    assert sum(row["edges"] for row in card["per_client"]) < federation.clean.card["edges"]["kept"]
    assert [row["labels"] for row in card["per_client"]] == [
        np.bincount(part.y, minlength=4).tolist() for part in federation.clients
    ]
    json.dumps(card)


def test_the_hash_is_of_the_data_too(federation):
    how = Perturbation(label_noise=0.1)
    parts = changed(federation.clients, label_noise=0.1)
    assert describe(parts, how) == describe(parts, how)
    assert describe(parts, how)["hash"] != describe(federation.clients, how)["hash"]


# Runs.


SMALL = {"dataset": "digits", "clients": 3, "partition": "random", "rounds": 2, "width": 8, "device": "cpu"}
SMALL |= {"optimizer": "adam", "learning_rate": 0.01}  # gets going within two rounds


def test_models_train_on_perturbed_data_and_are_scored_on_clean_data():
    plain = graft.run("fedavg", **SMALL)
    noisy = graft.run("fedavg", label_noise=1.0, **SMALL)
    assert noisy.accuracy["test"] < plain.accuracy["test"] / 2
    # Labels outside the training mask are the same either way, so only the score of training nodes differs.
    seen = graft.run("fedavg", label_noise=1.0, evaluate_on="perturbed", **SMALL)
    assert seen.accuracy == noisy.accuracy
    assert seen.rounds[-1]["train"] != noisy.rounds[-1]["train"]


def test_edges_that_were_taken_away_come_back_when_models_are_scored():
    clean_score, perturbed = (
        graft.run("local", edge_sparsity=1.0, evaluate_on=where, **SMALL) for where in ("clean", "perturbed")
    )
    assert clean_score.rounds[0]["loss"] == perturbed.rounds[0]["loss"]
    assert clean_score.accuracy["test"] != perturbed.accuracy["test"]
    assert [row["edges"] for row in clean_score.summary["per_client"]] == [0, 0, 0]


@pytest.mark.parametrize("method", ["fedproto", "centralised", "dpsgd"])
def test_clean_and_perturbed_data_train_different_models(method):
    losses = [graft.run(method, **SMALL | {kind: 0.6}).rounds[-1]["loss"] for kind in KINDS]
    losses.append(graft.run(method, **SMALL).rounds[-1]["loss"])
    assert len(set(losses)) == len(KINDS) + 1


def test_processes_score_on_clean_data_too():
    here, there = (
        graft.run("fedavg", engine=engine, edge_sparsity=0.7, participation=0.7, **SMALL)
        for engine in ("in_process", "loopback")
    )
    assert here.accuracy["test"] == pytest.approx(there.accuracy["test"], abs=0.01)
    perturbed = graft.run("fedavg", edge_sparsity=0.7, participation=0.7, evaluate_on="perturbed", **SMALL)
    assert abs(perturbed.accuracy["test"] - here.accuracy["test"]) > 0.01


def test_a_run_on_other_data_is_not_gone_on_with(tmp_path):
    def stop(_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        graft.run("fedavg", out=tmp_path / "run", edge_noise=0.2, checkpoint_every=1, callbacks=[stop], **SMALL)
    file = tmp_path / "run" / "experiment.toml"
    text = file.read_text()
    assert "edge_noise = 0.2" in text
    card = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert card["perturbation"]["edge_noise"] == 0.2
    file.write_text(text.replace("edge_noise = 0.2", "edge_noise = 0.3"))
    with pytest.raises(InputError, match="edge_noise"):
        graft.resume(tmp_path / "run")
    file.write_text(text)
    assert graft.resume(tmp_path / "run").finished


def test_the_partition_of_a_perturbed_run_can_be_used_again(tmp_path):
    first = graft.run("local", out=tmp_path / "run", edge_noise=0.2, **SMALL | {"rounds": 1})
    card = tmp_path / "run" / "partition.json"
    again = graft.run("local", edge_noise=0.2, **SMALL | {"rounds": 1, "partition": str(card)})
    assert again.accuracy == first.accuracy


def test_results_on_other_data_are_not_averaged():
    from graft.experiments.comparison.comparison import Comparison
    from graft.experiments.comparison.finished_runs import FinishedRun

    runs = [graft.run("local", **SMALL | {"rounds": 1}, **how).summary for how in ({}, {"edge_noise": 0.2})]
    assert [run["partition"] for run in runs] == ["random", "random, edge_noise=0.2"]
    comparison = Comparison([FinishedRun(run["experiment"], run) for run in runs])
    assert comparison.columns == ["digits, edge_noise=0", "digits, edge_noise=0.2"]
    assert len(comparison.cells) == 2


def test_studies_build_the_data_anew_for_another_perturbation():
    from graft.experiments.experiment import DATA_FIELDS, Experiment, make_experiment
    from graft.experiments.many_runs import cached_federation

    assert set(perturbations.FIELDS) < set(DATA_FIELDS)
    federations = {}
    experiments = [make_experiment({**SMALL, "edge_noise": share}) for share in (0.1, 0.2)]
    first, second = (cached_federation(experiment, federations) for experiment in experiments)
    assert first.hash != second.hash
    assert {name: getattr(Experiment(), name) for name in perturbations.FIELDS} == vars(Perturbation())


def test_the_command_line_has_all_of_it(tmp_path):
    from graft.cli import app

    flags = [f"--{kind.replace('_', '-')}=0.1" for kind in KINDS]
    size = ["--clients=3", "--rounds=1", "--width=8", "--device=cpu", "--method=local", f"--out={tmp_path / 'run'}"]
    done = CliRunner().invoke(app, ["run", *size, *flags, "--perturbed-clients=0,1", "--evaluate-on=perturbed"])
    assert done.exit_code == 0, done.output
    card = json.loads((tmp_path / "run" / "partition.json").read_text())["perturbation"]
    assert [card[kind] for kind in KINDS] == [0.1] * 6
    assert (card["perturbed_clients"], card["evaluate_on"]) == ("0,1", "perturbed")
    refused = CliRunner().invoke(app, ["run", "--label-noise=2"])
    assert refused.exit_code == 2
