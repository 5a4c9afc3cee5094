"""A party alone with its files: the federation's features, classes and masks, and what it tells of its data."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graft.data.client_graphs import Federation
from graft.data.data_agreement import agreed_encoding
from graft.data.data_file import read_schema
from graft.data.example_banks import write_banks
from graft.data.federation import build
from graft.data.graphs import make_graph
from graft.data.party import DataAgreement, PartyFacts, compare_facts, party_federation, read_party
from graft.data.party_facts import hash_names
from graft.data.preparation import Preparation, load_source
from graft.data.schema import Schema, parse_schema
from graft.data.shards import write_shards
from graft.errors import InputError

SCHEMA = {
    "label": "fraud",
    "numeric": ["balance", "turnover"],
    "log": ["turnover"],
    "categorical": {"channel": ["app", "web", "branch"], "branch": []},
    "date": ["opened"],
    "hash": 4,
    "unknown_nodes": "drop",
}
NAMES = (
    *("balance", "balance is missing", "log turnover", "turnover is missing"),
    *("channel = app", "channel = web", "channel = branch", "channel is other", "channel is missing"),
    *(f"branch hash {bucket}" for bucket in range(4)),
    *("branch is missing", "opened", "opened is missing"),
)


def agree(**changes):
    values = {"classes": ("no", "yes"), "schema": parse_schema(SCHEMA, "here"), "positive": "yes"}
    return DataAgreement(**{**values, **changes})


@pytest.fixture(scope="module")
def banks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("banks")
    write_banks(folder, size=0.1)
    return folder


def write_bank(
    folder, rows, header="id,balance,turnover,channel,branch,opened,fraud", edges="source,target\n1,2\n2,3\n"
):
    folder.mkdir(exist_ok=True)
    (folder / "nodes.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "edges.csv").write_text(edges)
    return folder


def plain_bank(folder, **more):
    days = range(1, 13)
    rows = [f"{day},{day},{2 * day},app,north,2024-01-{day:02},{'yes' if day % 3 else 'no'}" for day in days]
    return write_bank(folder, rows, **more)


def poor_bank(folder):
    """A bank with empty cells, constants, one class, an unknown category and columns that nobody agreed on."""
    header = "id,balance,turnover,channel,branch,opened,fraud,holder,updated"
    rows = [f"{day},,5,pigeon,,,no,somebody {day},01/02/2024" for day in range(1, 10)]
    return write_bank(folder, rows, header)


def arrays(nodes=30, width=4, classes=2, **more):
    random = np.random.default_rng(0)
    return make_graph(
        "any",
        random.normal(size=(nodes, width)),
        random.integers(0, nodes, (2, 90)),
        np.arange(nodes) % classes,
        **more,
    )


def test_parties_with_other_rows_come_to_the_same_features_in_the_same_order(tmp_path):
    rich, poor = plain_bank(tmp_path / "rich"), poor_bank(tmp_path / "poor")
    parties = [read_party(folder, agree(), folder.name) for folder in (rich, poor)]
    assert parties[0].graph.feature_names == parties[1].graph.feature_names == NAMES
    assert parties[0].facts.names_hash == parties[1].facts.names_hash
    # The control: each of them without an agreement comes to features of its own rows.
    alone = build(Federation({"rich": rich}, schema=agree().schema), None)
    assert alone.clients[0].feature_names != NAMES
    with pytest.raises(InputError, match="day and month"):
        load_source(poor, agree().schema)


def test_the_order_of_columns_in_a_file_does_not_count(tmp_path):
    one = plain_bank(tmp_path / "one")
    rows = [line.split(",") for line in (one / "nodes.csv").read_text().splitlines()]
    turned = [",".join(reversed(row)) for row in rows]
    other = write_bank(tmp_path / "other", turned[1:], turned[0])
    first, second = (read_party(folder, agree(), "bank") for folder in (one, other))
    assert first.graph.feature_names == second.graph.feature_names
    np.testing.assert_array_equal(first.graph.x, second.graph.x)


def test_three_banks_with_exports_of_their_own_come_to_the_same_features(banks):
    parties = [
        read_party(banks / name, agree(), name, number) for number, name in enumerate(("alpha", "beta", "gamma"))
    ]
    assert {party.graph.feature_names for party in parties} == {NAMES}
    assert {party.graph.class_names for party in parties} == {("no", "yes")}
    assert all(compare_facts(party.name, party.facts, agree()) is None for party in parties)
    assert len({party.graph.nodes for party in parties}) > 1


def test_a_column_that_nobody_agreed_on_is_no_feature_and_is_noted(tmp_path):
    party = read_party(poor_bank(tmp_path / "poor"), agree(), "poor")
    assert not any("holder" in name or "updated" in name for name in party.graph.feature_names)
    assert any("holder, updated not used" in note for note in party.notes)
    # New files with these columns are read in the same way.
    table = load_source(poor_bank(tmp_path / "new"), party.preparation.schema)
    assert party.preparation.apply(table).features == len(NAMES)


@pytest.mark.parametrize("column", ["balance", "turnover", "channel", "opened"])
def test_a_declared_column_that_is_not_there_is_refused_by_its_name(tmp_path, column):
    plain_bank(tmp_path / "bank", header="id,balance,turnover,channel,branch,opened,fraud".replace(column, "unlike"))
    with pytest.raises(InputError, match=f"there is no column '{column}'") as refusal:
        read_party(tmp_path / "bank", agree(), "bank")
    assert "\n" not in str(refusal.value)


def test_a_category_falls_into_the_same_bucket_everywhere(tmp_path):
    one, other = plain_bank(tmp_path / "one"), poor_bank(tmp_path / "other")
    content = (other / "nodes.csv").read_text().replace("pigeon,,", "pigeon,north,")
    (other / "nodes.csv").write_text(content)
    buckets = [name for name in NAMES if "hash" in name]
    rows = [read_party(folder, agree(), "bank").graph for folder in (one, other)]
    picked = [[graph.feature_names.index(name) for name in buckets] for graph in rows]
    dense = [graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray() for graph in rows]
    assert (dense[0][0, picked[0]] == dense[1][0, picked[1]]).all()
    assert dense[1][0, picked[1]].sum() == 1
    other_channel = rows[1].feature_names.index("channel is other")
    assert dense[1][:, other_channel].all()
    assert not dense[0][:, other_channel].any()


def test_a_party_may_lack_a_class_but_not_bring_one(tmp_path):
    lacking = read_party(poor_bank(tmp_path / "poor"), agree(), "poor")
    assert lacking.graph.classes == 2
    assert set(lacking.graph.y) == {0}
    assert lacking.facts.classes == ("no",)
    assert lacking.preparation.positive == "yes"
    plain_bank(tmp_path / "bank")
    with pytest.raises(InputError, match=r"bank has the class 'yes', but the classes .* are honest, no") as refusal:
        read_party(tmp_path / "bank", agree(classes=("honest", "no"), positive=None), "bank")
    assert str(refusal.value).count(".") == 1


def test_the_list_of_classes_gives_their_numbers_and_case_does_not_count(tmp_path):
    folder = plain_bank(tmp_path / "bank")
    first, turned = (
        read_party(folder, agree(classes=classes, positive="YES"), "bank").graph
        for classes in (("no", "Yes"), ("Yes", "no"))
    )
    np.testing.assert_array_equal(first.y, 1 - turned.y)


def test_a_party_without_labels_has_empty_masks(tmp_path):
    folder = plain_bank(tmp_path / "bank", header="id,balance,turnover,channel,branch,opened,other")
    party = read_party(folder, agree(), "bank")
    assert not any(mask.any() for mask in party.graph.masks.values())
    assert party.facts.classes == ()


def test_masks_are_those_of_the_client_of_this_number_in_one_process():
    graphs = {"alpha": arrays(), "beta": arrays(40)}
    together = build(Federation(graphs), None, seed=3).clients
    agreement = DataAgreement(classes=2, declared_features=4, seed=3)
    for number, (name, graph) in enumerate(graphs.items()):
        alone = read_party(graph, agreement, name, number).graph
        assert all((alone.masks[mask] == together[number].masks[mask]).all() for mask in alone.masks)
        np.testing.assert_array_equal(alone.x, together[number].x)
    another = read_party(graphs["beta"], agreement, "beta", 0).graph
    assert any((another.masks[mask] != together[1].masks[mask]).any() for mask in another.masks)


def test_a_part_of_a_dataset_is_the_client_of_a_run_in_one_process(tmp_path):
    from graft.data.datasets import load

    text = "synthetic:nodes=90,degree=4,classes=2,features=4"
    together = build(load(text), 3, seed=1)
    write_shards(together, tmp_path / "shards")
    agreement = DataAgreement(classes=2, declared_features=4, seed=1)
    for source in (f"{text}#2/3", f"{tmp_path / 'shards'}#2"):
        alone = read_party(source, agreement, "third", 2).graph
        assert alone.name == "third"
        for field in ("x", "edges", "y", "train", "validation", "test"):
            np.testing.assert_array_equal(getattr(alone, field), getattr(together.clients[2], field))
    other = read_party(f"{text}#1/3", agreement, "second", 1).graph
    assert other.edges.shape != together.clients[2].edges.shape or (other.edges != together.clients[2].edges).any()
    for wrong, sentence in ((f"{text}#3/3", "parts are 0 to 2"), (f"{text}#x", "which part of how many")):
        with pytest.raises(InputError, match=sentence):
            read_party(wrong, agreement)
    with pytest.raises(InputError, match="say whose is meant"):
        read_party(tmp_path / "shards", agreement)


def test_arrays_need_the_features_and_classes_that_were_agreed_on(tmp_path):
    agreement = DataAgreement(classes=2, declared_features=4)
    np.savez(tmp_path / "bank.npz", x=arrays().x, edges=arrays().edges, y=arrays().y)
    graph = arrays()
    data = Data(x=torch.tensor(graph.x), edge_index=torch.tensor(graph.edges), y=torch.tensor(graph.y))
    for source in (tmp_path / "bank.npz", data, graph):
        assert read_party(source, agreement, "bank").graph.features == 4
    with pytest.raises(InputError, match="bank has 5 features, but the federation agreed on 4"):
        read_party(arrays(width=5), agreement, "bank")
    with pytest.raises(InputError, match=r"bank has the class '2', but .* numbers from 0 to 1"):
        read_party(arrays(classes=3), agreement, "bank")
    with pytest.raises(InputError, match="numbers without names, but the federation agreed on fraud, honest"):
        read_party(arrays(), replace(agreement, classes=("fraud", "honest")), "bank")
    named = read_party(arrays(class_names=("honest", "fraud")), replace(agreement, classes=("fraud", "honest")), "bank")
    np.testing.assert_array_equal(named.graph.y, 1 - arrays().y)


def test_arrays_that_were_made_of_such_tables_join_a_federation_of_tables(tmp_path):
    table = read_party(plain_bank(tmp_path / "bank"), agree(), "bank")
    encoded = agree().encoding.encode(load_source(tmp_path / "bank", agree().schema))[0]
    graph = replace(table.graph, x=encoded, train=None, validation=None, test=None)
    party = read_party(graph, agree(), "bank")
    np.testing.assert_allclose(party.graph.x, table.graph.x, atol=1e-6)
    other = replace(graph, feature_names=(*NAMES[1:], NAMES[0]))
    with pytest.raises(InputError, match="the order of its features differs"):
        read_party(other, agree(), "bank")


def test_features_are_scaled_as_agreed_by_the_party_alone(tmp_path):
    folder = plain_bank(tmp_path / "bank")
    balance = {how: read_party(folder, agree(features=how), "bank").graph.x[:, 0] for how in ("auto", "raw")}
    assert abs(balance["auto"].mean()) < 1e-6
    assert balance["raw"].mean() == pytest.approx(6.5)
    with pytest.raises(InputError, match="parties scale by their own data"):
        agree(scaling="federated")


def test_the_data_file_of_a_party_says_only_how_its_tables_are_read(tmp_path):
    folder = plain_bank(tmp_path / "bank", edges="source;target\n1;2\n2;3\n")
    text = (folder / "nodes.csv").read_text().replace("balance", "saldo").replace(",", ";")
    (folder / "nodes.csv").unlink()
    (folder / "konten.csv").write_text(text)
    own = tmp_path / "bank.toml"
    own.write_text('folder = "bank"\n[schema]\nnodes = "konten.csv"\nseparator = ";"\nrename = { saldo = "balance" }\n')
    assert read_party(own, agree(), "bank").graph.feature_names == NAMES
    for key in ('numeric = ["age"]', 'label = "holder"', 'categorical = ["channel"]', "hash = 8"):
        own.write_text(f'folder = "bank"\n[schema]\n{key}\n')
        with pytest.raises(InputError, match=f"{key.split()[0]} is for the whole federation to agree on"):
            read_party(own, agree(), "bank")


def test_a_form_of_dates_is_a_party_s_own(tmp_path):
    rows = [f"{day},{day},{day},app,north,0{day % 9 + 1}/02/2024,{'yes' if day % 2 else 'no'}" for day in range(1, 12)]
    write_bank(tmp_path / "bank", rows)
    with pytest.raises(InputError, match="day and month"):
        read_party(tmp_path / "bank", agree(), "bank")
    own = tmp_path / "bank.toml"
    own.write_text('folder = "bank"\n[schema]\ndate = { opened = "%d/%m/%Y" }\n')
    assert read_party(own, agree(), "bank").graph.nodes == 11


def test_directed_edges_and_weights_count_as_the_schema_says(tmp_path):
    schema = parse_schema({**SCHEMA, "edges": {"directed": True, "weight": "amount"}}, "here")
    edges = "source,target,amount\n1,2,10\n2,3,20\n"
    party = read_party(plain_bank(tmp_path / "bank", edges=edges), agree(schema=schema), "bank")
    assert party.graph.feature_names[-2:] == ("log(1 + incoming weight)", "log(1 + outgoing weight)")
    assert (party.facts.directed, party.facts.weighted) == (True, True)
    # A column called weight that nobody declared changes no name of a feature.
    undeclared = parse_schema({**SCHEMA, "edges": {"directed": True}}, "here")
    named = "source,target,weight\n1,2,10\n2,3,20\n"
    features = [
        read_party(plain_bank(tmp_path / "bank", edges=text), agree(schema=undeclared), "bank").graph.feature_names
        for text in (named, edges)
    ]
    assert features[0] == features[1]
    with pytest.raises(InputError, match="no column 'amount'"):
        read_party(plain_bank(tmp_path / "bank", edges=named), agree(schema=schema), "bank")


def test_tables_need_a_schema_that_names_columns(tmp_path):
    with pytest.raises(InputError, match="names no column of features"):
        read_party(plain_bank(tmp_path / "bank"), DataAgreement(classes=2, declared_features=4), "bank")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"classes": ("only",)}, "at least two names"),
        ({"classes": 1}, "at least two names"),
        ({"classes": ("yes", "YES"), "positive": None}, "the same in a table"),
        ({"classes": ("yes", "none")}, "has no label"),
        ({"positive": "maybe"}, "positive class 'maybe' does not occur"),
        ({"features": "tall"}, "choose one of"),
        ({"split": "20/x"}, "cannot be read"),
        ({"declared_features": 3}, "the columns of \\[schema\\] become"),
        ({"declared_features": NAMES[::-1]}, "features names 'opened is missing' where"),
        ({"schema": Schema()}, "how many features"),
        ({"schema": Schema(), "declared_features": ("a", "a")}, "'a' twice"),
        ({"schema": Schema(numeric=("age",))}, "no label"),
    ],
)
def test_an_agreement_that_cannot_be_kept_is_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        agree(**changes)


def test_the_features_of_a_schema_are_found_without_any_file(tmp_path):
    schema = tmp_path / "schema.toml"
    schema.write_text('label = "fraud"\ncategorical = ["branch"]\nnumeric = ["age"]\nhash = 2\n')
    names = agreed_encoding(read_schema(schema)).feature_names
    assert names == ("age", "age is missing", "branch hash 0", "branch hash 1", "branch is missing")
    assert agreed_encoding(Schema()) is None


def facts(**changes):
    names = changes.pop("names", NAMES)
    values = {
        "features": len(names or NAMES),
        "feature_names": names,
        "names_hash": None if names is None else hash_names(names),
        "classes": ("yes",),
        "preprocessing": agree().preprocessing,
        "directed": False,
        "weighted": False,
    }
    return PartyFacts(**{**values, **changes})


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (facts(names=NAMES[1:]), "bank_b has 15 features, but the federation agreed on 16: 'balance' is missing."),
        (facts(names=(*NAMES, "age")), "bank_b has 17 features, but the federation agreed on 16: 'age' is too many."),
        (
            facts(names=("age", *NAMES[1:])),
            "bank_b has other features than the federation agreed on: 'balance' is missing and 'age' is too many.",
        ),
        (facts(names=None, features=15), "bank_b has 15 features, but the federation agreed on 16."),
        (
            facts(names=(NAMES[1], NAMES[0], *NAMES[2:])),
            "Feature 0 of bank_b is 'balance is missing', but the federation agreed on 'balance' there: the order of "
            "its features differs.",
        ),
        (facts(names_hash="0" * 64), "bank_b names 16 features that are not those of its number and hash."),
        (
            facts(classes=("yes", "maybe")),
            "bank_b has the class 'maybe', but the classes that the federation agreed on are no, yes.",
        ),
        (
            facts(preprocessing={**agree().preprocessing, "features": "row"}),
            "bank_b prepares its data with features = row, but the federation agreed on features = standard.",
        ),
        (
            facts(preprocessing={**agree().preprocessing, "split": "60/20/20"}),
            "bank_b prepares its data with split = 60/20/20, but the federation agreed on split = 20/40/40.",
        ),
        (
            facts(directed=True),
            "bank_b has edges with a direction, but the federation agreed on edges without a direction.",
        ),
        (facts(classes=("evil\n\x1b[31m",)), None),
    ],
)
def test_what_is_not_as_agreed_is_one_sentence_with_party_and_field(told, sentence):
    refusal = compare_facts("bank_b", told, agree())
    assert refusal is not None
    assert "\n" not in refusal
    assert refusal.isprintable()
    if sentence is not None:
        assert refusal == sentence


def test_facts_that_are_as_agreed_are_accepted():
    assert compare_facts("bank_b", facts(), agree()) is None
    assert compare_facts("bank_b", facts(names=None, classes=()), agree()) is None  # arrays without names


def test_facts_survive_a_message_and_others_are_refused():
    told = facts()
    content = json.loads(json.dumps(told.to_json()))
    assert PartyFacts.from_json(content) == told
    for name, value in (
        ("features", "16"),
        ("features", -1),
        ("classes", "yes"),
        ("directed", 1),
        ("preprocessing", {"split": [3]}),
        ("feature_names", ["a" * 2000]),
        ("more", 1),
    ):
        with pytest.raises(InputError, match="The facts of a party"):
            PartyFacts.from_json({**content, name: value})
    for value in (None, [], {}, "facts", {1: 2}):
        with pytest.raises(InputError, match="The facts of a party"):
            PartyFacts.from_json(value)


def test_facts_hold_no_number_of_nodes_and_no_value_of_a_cell(tmp_path):
    """Twice the rows with other values tell the same, but for a class that occurs now: that is told."""
    one, more = plain_bank(tmp_path / "one"), plain_bank(tmp_path / "more")
    rows = [
        f"{day},{day**2},7,web,south,2020-02-{day % 28 + 1:02},{'yes' if day % 2 else 'no'}" for day in range(20, 60)
    ]
    write_bank(more, rows, edges="source,target\n20,21\n")
    told = [read_party(folder, agree(), "bank").facts.to_json() for folder in (one, more)]
    assert told[0] == told[1]
    assert set(told[0]) == {*PartyFacts.__dataclass_fields__}
    lacking = read_party(poor_bank(tmp_path / "poor"), agree(), "bank").facts.to_json()
    assert {name for name in lacking if lacking[name] != told[0][name]} == {"classes"}


def test_a_party_is_a_federation_of_one_client(banks):
    data = party_federation("alpha", banks / "alpha", agree(), 0)
    assert data.names == ("alpha",)
    assert data.name == "alpha"
    assert data.positive == 1
    assert data.card["per_client"][0]["client"] == "alpha"
    assert data.partition == "own"
    assert data.exchange.up_bytes > 0
    (preparation,) = data.preparations
    saved = Preparation.from_json(json.loads(json.dumps(preparation.to_json())))
    new = load_source(banks / "alpha-new", saved.schema)
    assert saved.apply(new).feature_names == data.clients[0].feature_names


def test_training_does_not_see_test_nodes_where_that_was_agreed_on(tmp_path):
    folder = plain_bank(tmp_path / "bank")
    seen, unseen = (party_federation("bank", folder, agree(inductive=inductive)) for inductive in (False, True))
    assert seen.clean is None
    assert unseen.clean is not None
    assert unseen.clients[0].nodes == unseen.clean.clients[0].nodes - int(unseen.clean.clients[0].test.sum())
