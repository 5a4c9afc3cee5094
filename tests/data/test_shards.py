import json
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
import safetensors.numpy
from scipy.sparse import csr_array, issparse

import graft
from graft.data import shards
from graft.data.client_graphs import Federation
from graft.data.federation import FederationData, build
from graft.data.generated import Generated, GeneratedGraphs
from graft.data.graphs import Graph, make_graph
from graft.data.perturbations import Perturbation
from graft.data.shards import ShardedGraphs, write_shards
from graft.data.stores import Folder, open_store
from graft.errors import InputError

GENERATED = Generated(nodes=40, degree=3, classes=3, features=5)


def a_graph(seed, nodes=50, **more):
    random = np.random.default_rng(seed)
    y = np.arange(nodes) % 3
    ends = random.integers(0, nodes, (2, 3 * nodes))
    return make_graph("own", random.normal(size=(nodes, 6)) + y[:, None], ends, y, 3, **more)


def sparse_graph(seed):
    graph = a_graph(seed)
    return replace(graph, x=csr_array(np.where(graph.x > 2.5, graph.x, 0)))


def full_graph(seed):
    """A graph with all that one can have."""
    random, nodes = np.random.default_rng(seed), 50
    ends = random.integers(0, nodes, (2, 120))
    return make_graph(
        "own",
        random.normal(size=(nodes, 2)),
        ends,
        np.where(np.arange(nodes) % 7 == 0, -1, np.arange(nodes) % 3),
        3,
        ids=[f"näme\u2003{node}\N{SNOWMAN}" * (node % 3) + str(node) for node in range(nodes)],
        feature_names=["age", "größe"],
        class_names=["a", "b", "c"],
        node_times=random.normal(size=nodes),
        weights=random.random(120) + 0.1,
        edge_times=random.random(120),
    )


def without_edges(seed):
    return make_graph("own", np.random.default_rng(seed).normal(size=(30, 6)), [[], []], np.arange(30) % 3, 3)


def assert_equal_graphs(one, other, ids=True):
    assert isinstance(one, Graph)
    for field in fields(Graph):
        if field.name == "ids" and not ids:
            continue
        first, second = getattr(one, field.name), getattr(other, field.name)
        if issparse(first):
            assert issparse(second)
            first, second = ([matrix.data, matrix.indices, matrix.indptr] for matrix in (first, second))
        for left, right in zip(
            *(value if isinstance(value, list) else [value] for value in (first, second)), strict=True
        ):
            same = np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right
            assert same, field.name
            assert getattr(left, "dtype", None) == getattr(right, "dtype", None), field.name


def federation_of(make, **settings):
    return build(Federation({name: make(seed) for seed, name in enumerate(("north", "süd", "east"))}), None, **settings)


KINDS = {"dense": a_graph, "sparse": sparse_graph, "everything": full_graph, "no edges": without_edges}


@pytest.mark.parametrize("place", ["folder", "memory://", "file://"])
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_come_back_as_they_were(kind, place, tmp_path):
    url = {"folder": tmp_path / "s", "memory://": f"memory://{tmp_path.name}/s", "file://": f"file://{tmp_path}/s"}[
        place
    ]
    federation = federation_of(KINDS[kind])
    graphs = write_shards(federation, url)
    assert len(graphs) == 3
    for client, graph in enumerate(federation.clients):
        assert_equal_graphs(graphs[client], graph)
        assert graphs.scoring(client) is None
    assert graphs.names == ("north", "süd", "east")
    assert graphs.class_names == federation.class_names
    assert graphs.nodes().tolist() == [graph.nodes for graph in federation.clients]
    assert graphs.edges().tolist() == [graph.edge_count for graph in federation.clients]


PREPARED = {
    "inductive": {"inductive": True},
    "perturbed": {"perturbation": Perturbation(edge_sparsity=0.3, feature_noise=0.1)},
    "inductive, perturbed": {"inductive": True, "perturbation": Perturbation(label_noise=0.5)},
    "scored perturbed": {"perturbation": Perturbation(edge_noise=0.2, evaluate_on="perturbed")},
}


@pytest.mark.parametrize("settings", PREPARED.values(), ids=PREPARED)
@pytest.mark.parametrize("make", [a_graph, sparse_graph, full_graph])
def test_graphs_to_be_scored_on_come_back_too(make, settings, tmp_path):
    federation = federation_of(make, **settings)
    graphs = write_shards(federation, tmp_path / "s")
    for client, graph in enumerate(federation.clients):
        assert_equal_graphs(graphs[client], graph)
        if federation.clean is None:
            assert graphs.scoring(client) is None
        else:
            assert_equal_graphs(graphs.scoring(client), federation.clean.clients[client])
    lazy = graphs.federation()
    assert (lazy.hash, lazy.graph_hash, lazy.partition) == (
        federation.hash,
        federation.graph_hash,
        federation.partition,
    )
    assert [sizes.tolist() for sizes in lazy.sizes] == [sizes.tolist() for sizes in federation.sizes]
    assert lazy.card == federation.card


def test_what_training_and_scoring_share_is_written_once(tmp_path):
    clean = write_shards(federation_of(a_graph), tmp_path / "clean")
    labels = write_shards(federation_of(a_graph, perturbation=Perturbation(label_noise=0.5)), tmp_path / "labels")
    edges = write_shards(federation_of(a_graph, perturbation=Perturbation(edge_sparsity=0.5)), tmp_path / "edges")
    sizes = [sum(file.size - file.header for file in graphs.manifest.files) for graphs in (clean, labels, edges)]
    assert sizes[0] < sizes[1] < sizes[0] * 1.2 < sizes[2]


def test_nodes_of_a_graph_that_was_shared_out_keep_their_numbers(tmp_path):
    federation = build(a_graph(0), 3, "random")
    graphs = write_shards(federation, tmp_path / "s")
    for client, graph in enumerate(graphs):
        assert_equal_graphs(graph, federation.clients[client], ids=False)
        assert graph.ids.tolist() == [str(node) for node in np.flatnonzero(federation.membership == client)]


def test_files_are_plain_safetensors(tmp_path):
    write_shards(federation_of(a_graph), tmp_path / "s")
    tensors = safetensors.numpy.load_file(tmp_path / "s" / "clients-0000000.safetensors")
    assert np.array_equal(tensors["1/x"], a_graph(1).x)


class CountingStore(Folder):
    """A folder that notes what is read of it."""

    def __init__(self, path):
        super().__init__(path)
        self.reads = []

    def read(self, name, start=0, length=None):
        content = super().read(name, start, length)
        self.reads.append((name, start, len(content)))
        return content


def counted(folder):
    graphs = ShardedGraphs(folder)
    graphs.store = CountingStore(folder)
    return graphs


def test_worker_reads_only_its_clients(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "CLIENTS_A_FILE", 4)
    write_shards(GeneratedGraphs(GENERATED, 20), tmp_path / "s")
    graphs = counted(tmp_path / "s")
    for client in (9, 10):
        graphs[client]
    (file,) = {name for name, _, _ in graphs.store.reads}
    shard = graphs.manifest.files[2]
    assert file == shard.name
    header, *records = graphs.store.reads
    assert header == (shard.name, 0, shard.header)  # once for both
    everything = sum(entry.size for entry in graphs.manifest.files)
    assert sum(length for _, _, length in records) < (everything - 5 * shard.header) / 20 * 2 * 1.6
    assert len(records) == 2
    starts = [start for _, start, _ in records]
    assert starts[1] == starts[0] + records[0][2]  # side by side, and neither reads the other


def test_sizes_are_known_without_reading_a_graph(tmp_path):
    write_shards(GeneratedGraphs(GENERATED, 20), tmp_path / "s")
    graphs = counted(tmp_path / "s")
    assert graphs.nodes().tolist() == GeneratedGraphs(GENERATED, 20).nodes().tolist()
    assert graphs.federation().card["nodes"] == graphs.nodes().sum()
    assert {name for name, _, _ in graphs.store.reads} == {shards.SIZES}


def test_large_clients_get_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "FILE_BYTES", 3000)
    graphs = write_shards(GeneratedGraphs(GENERATED, 7), tmp_path / "s")
    assert 3 <= len(graphs.manifest.files) <= 7
    assert sum(file.clients for file in graphs.manifest.files) == 7
    for client, graph in enumerate(GeneratedGraphs(GENERATED, 7)):
        assert_equal_graphs(graphs[client], graph)


def test_writer_holds_one_file_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "CLIENTS_A_FILE", 3)
    waiting = []
    write = shards._Writer._write
    monkeypatch.setattr(
        shards._Writer, "_write", lambda self, clients, upto: (waiting.append(len(clients)), write(self, clients, upto))
    )
    told = []
    write_shards(GeneratedGraphs(GENERATED, 8), tmp_path / "s", told=told.append)
    assert (waiting, told) == ([3, 3, 2], [3, 6, 8])


def test_pickled_graphs_are_small_and_refuse_others_in_their_place(tmp_path):
    graphs = write_shards(GeneratedGraphs(GENERATED, 40), tmp_path / "s")
    sent = pickle.dumps(graphs)
    assert len(sent) < 1000
    assert_equal_graphs(pickle.loads(sent)[39], graphs[39])
    write_shards(GeneratedGraphs(GENERATED, 40, seed=1), tmp_path / "s", overwrite=True)
    with pytest.raises(InputError, match="not those that this run began with"):
        pickle.loads(sent)


def test_hash_is_that_of_the_content(tmp_path):
    hashes = [
        write_shards(GeneratedGraphs(GENERATED, 3, seed=seed), tmp_path / str(number)).hash
        for number, seed in enumerate((0, 0, 1))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


# What goes wrong.


@pytest.fixture
def written(tmp_path):
    write_shards(federation_of(a_graph, inductive=True), tmp_path / "s")
    return tmp_path / "s"


def read_all(folder):
    graphs = ShardedGraphs(folder)
    graphs.nodes()
    return [(graph, graphs.scoring(client)) for client, graph in enumerate(graphs)]


def refusal(folder):
    """The sentence that refuses to read a folder; None where all of it can be read."""
    try:
        read_all(folder)
    except InputError as error:
        return str(error)
    return None


def test_every_changed_byte_is_noticed(written):
    before = ShardedGraphs(written).hash
    random = np.random.default_rng(0)
    for path in sorted(written.iterdir()):
        content = path.read_bytes()
        for position in random.integers(0, len(content), 60):
            path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
            sentence = refusal(written)
            if sentence is None:  # as of the last digit of a number that is the same with another
                assert path.name == "shards.json"
                assert ShardedGraphs(written).hash == before
            else:
                assert path.name in sentence
        path.write_bytes(content)
    read_all(written)


@pytest.mark.parametrize("file", ["shards.json", "sizes.safetensors", "clients-0000000.safetensors"])
def test_short_and_missing_files_are_refused(written, file):
    content = (written / file).read_bytes()
    for kept in (0, 7, len(content) // 2, len(content) - 1):
        (written / file).write_bytes(content[:kept])
        if file == "shards.json" and kept == len(content) - 1:
            continue  # the last line's end
        with pytest.raises(InputError):
            read_all(written)
    (written / file).unlink()
    with pytest.raises(InputError, match=r"holds no shards\.json|cannot be read"):
        read_all(written)


def test_damage_in_one_client_does_not_touch_another(written):
    graphs = ShardedGraphs(written)
    path = written / "clients-0000000.safetensors"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    assert graphs[0].nodes > 0
    with pytest.raises(InputError, match="of client 2, its bytes are not those"):
        graphs[2]


def resealed(folder, **changes):
    from graft.files import seal, unseal

    path = folder / "shards.json"
    path.write_text(json.dumps(seal({**unseal(json.loads(path.read_text())), **changes})))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 4}, "not those of 4 clients"),
        ({"classes": 0}, "classes"),
        ({"classes": 1}, "labels are of classes"),
        ({"features": 7}, "x have the shape"),
        ({"names": ["a"]}, "names are not those"),
        ({"preparations": []}, "preparation is missing"),
        ({"of_client": [0, 1, 9]}, "preparation is missing"),
        ({"files": []}, "files are not those"),
        ({"sizes": {"name": "../x", "size": 1, "sha256": ""}}, "lies elsewhere"),
        ({"format": "graft-shards-9"}, "another version"),
        ({"more": 1}, "more"),
    ],
)
def test_what_does_not_fit_together_is_refused(written, changes, words):
    resealed(written, **changes)
    with pytest.raises(InputError, match=words):
        read_all(written)


def test_unfinished_writing_leaves_no_dataset(tmp_path, monkeypatch):
    class Failing(GeneratedGraphs):
        def read(self, client):
            if client == 5:
                raise RuntimeError("crash")
            return super().read(client)

    monkeypatch.setattr(shards, "CLIENTS_A_FILE", 2)
    with pytest.raises(RuntimeError, match="crash"):
        write_shards(Failing(GENERATED, 8), tmp_path / "s")
    assert len(list((tmp_path / "s").iterdir())) == 2
    with pytest.raises(InputError, match=r"holds no shards\.json"):
        ShardedGraphs(tmp_path / "s")
    graphs = write_shards(GeneratedGraphs(GENERATED, 3), tmp_path / "s")  # what a crash left is no obstacle
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        "shards.json",
        "sizes.safetensors",
        *(file.name for file in graphs.manifest.files),
    }


def test_overwriting_that_crashes_leaves_no_dataset(tmp_path, monkeypatch):
    write_shards(GeneratedGraphs(GENERATED, 3), tmp_path / "s")
    monkeypatch.setattr(shards, "pack", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_shards(GeneratedGraphs(GENERATED, 3), tmp_path / "s", overwrite=True)
    with pytest.raises(InputError, match=r"holds no shards\.json"):
        ShardedGraphs(tmp_path / "s")


@pytest.mark.parametrize("place", ["folder", "url"])
def test_only_an_empty_place_or_earlier_shards_are_written_to(tmp_path, place):
    url = tmp_path / "s" if place == "folder" else f"memory://{tmp_path.name}/s"
    graphs = GeneratedGraphs(GENERATED, 2)
    write_shards(graphs, url)
    with pytest.raises(InputError, match="holds shards already"):
        write_shards(graphs, url)
    write_shards(graphs, url, overwrite=True)
    open_store(url).write("thesis.txt", [b"all of it"])
    with pytest.raises(InputError, match=r"thesis\.txt"):
        write_shards(graphs, url, overwrite=True)


@pytest.mark.parametrize(
    ("url", "words"), [("nowhere://x", "Protocol not known"), ("memory://empty/x", "holds no shards.json")]
)
def test_urls_that_lead_nowhere_are_refused(url, words):
    with pytest.raises(InputError, match=words):
        graft.run("fedavg", url, rounds=1)


def test_url_without_fsspec_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(InputError, match="needs fsspec"):
        ShardedGraphs("memory://anything")


# Runs.

QUICK = {"rounds": 3, "width": 8}
WHOLE = "synthetic:nodes=200,degree=6,classes=3,features=8"


def written_from(tmp_path, **settings):
    experiment = graft.make_experiment({"dataset": WHOLE, "clients": 3, **settings})
    names = ("clients", "partition", "split", "inductive", "label_noise", "edge_sparsity")
    federation = graft.build_federation(experiment)
    write_shards(federation, tmp_path / "s", settings={name: getattr(experiment, name) for name in names})
    return str(tmp_path / "s")


@pytest.mark.parametrize("settings", [{}, {"inductive": True}, {"label_noise": 0.3, "edge_sparsity": 0.2}])
@pytest.mark.parametrize("method", ["fedavg", "fedgkc"])
def test_run_on_shards_equals_the_run_on_the_data(tmp_path, method, settings):
    place = written_from(tmp_path, **settings)
    direct = graft.run(method, WHOLE, clients=3, **QUICK, **settings)
    read = graft.run(method, place, **QUICK)
    drop = ("seconds",)
    assert [{name: record[name] for name in record if name not in drop} for record in read.rounds] == [
        {name: record[name] for name in record if name not in drop} for record in direct.rounds
    ]
    for name in ("accuracy", "per_client", "communication", "dataset", "partition", "warnings"):
        assert read.summary[name] == direct.summary[name], name
    for name in ("graph", "partition", "models"):
        assert read.summary["hashes"][name] == direct.summary["hashes"][name]
    other = graft.run(method, place, seed=1, **QUICK)
    assert other.summary["accuracy"] != read.summary["accuracy"]


def test_predictions_know_nodes_by_their_numbers(tmp_path):
    place = written_from(tmp_path)
    direct, read = (graft.run("fedavg", data, **QUICK, **more) for data, more in ((WHOLE, {"clients": 3}), (place, {})))
    first, second = (result.models.client(1).predict() for result in (direct, read))
    assert [str(node) for node in first.ids] == second.ids.tolist()
    assert np.array_equal(first.classes, second.classes)


def test_run_on_shards_is_opened_and_resumed(tmp_path):
    place = written_from(tmp_path)

    def stop(record):
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graft.run("fedavg", place, out=tmp_path / "run", callbacks=[stop], checkpoint_every=1, **QUICK)
    resumed = graft.resume(tmp_path / "run")
    assert resumed.summary["accuracy"] == graft.run("fedavg", place, **QUICK).summary["accuracy"]
    opened = graft.load_result(tmp_path / "run")
    own = opened.models.client(1).predict().classes
    assert len(own) == resumed.summary["per_client"][1]["nodes"]


def test_run_does_not_go_on_with_other_shards(tmp_path):
    place = written_from(tmp_path)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        graft.run("fedavg", place, out=tmp_path / "run", callbacks=[stop], checkpoint_every=1, **QUICK)
    experiment = graft.make_experiment({"dataset": WHOLE, "clients": 3, "seed": 5})
    settings = {"clients": 3, "partition": "louvain", "split": "20/40/40"}
    write_shards(graft.build_federation(experiment), place, settings=settings, overwrite=True)
    with pytest.raises(InputError, match="not what this run began with"):
        graft.resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": 4}, "clients is 4"),
        ({"partition": "metis"}, "partition is metis"),
        ({"split": "50/25/25"}, "written with split=20/40/40"),
        ({"inductive": True}, "inductive is True"),
        ({"features": "row"}, "features is row"),
        ({"edge_noise": 0.1}, "edge_noise is 0.1"),
    ],
)
def test_settings_beside_shards_must_be_theirs(tmp_path, settings, words):
    place = written_from(tmp_path)
    with pytest.raises(InputError, match=words):
        graft.run("fedavg", place, **QUICK, **settings)


def test_equal_settings_beside_shards_are_fine(tmp_path):
    place = written_from(tmp_path)
    result = graft.run("fedavg", place, clients=3, partition="louvain", split="20/40/40", **QUICK)
    assert result.summary["experiment"]["partition"] == "louvain"


def test_leaving_out_a_client_of_shards(tmp_path):
    from graft.experiments.joining import without

    graphs = ShardedGraphs(written_from(tmp_path))
    rest = without(graphs.federation(), 1)
    assert isinstance(rest, FederationData)
    assert [graph.nodes for graph in rest.clients] == graphs.nodes()[[0, 2]].tolist()
    assert rest.data_hash != graphs.hash


def test_tables_keep_their_preparations_and_their_exchange(tmp_path):
    rows = "id,age,town,label\n" + "\n".join(f"{n},{n % 9},{'abc'[n % 3]},{'xy'[n % 2]}" for n in range(40))
    links = "source,target\n" + "\n".join(f"{n},{(n * 7 + 1) % 40}" for n in range(40))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nodes.csv").write_text(rows)
        (tmp_path / name / "edges.csv").write_text(links)
    graphs = {name: tmp_path / name for name in ("one", "two")}
    federation = build(Federation(graphs), None, scaling="federated")
    lazy = write_shards(federation, tmp_path / "s").federation()
    assert [entry.to_json() for entry in lazy.preparations] == [entry.to_json() for entry in federation.preparations]
    assert lazy.exchange.fields == federation.exchange.fields
    assert lazy.exchange.up_bytes == federation.exchange.up_bytes > 0
    assert list(lazy.notes) == list(federation.notes)
