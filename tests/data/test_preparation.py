"""Clients with tables and graphs of their own come to the same features and classes, and new data to the same again."""

import json

import numpy as np
import pytest
from scipy.sparse import issparse

from graft.data.exchange import as_texts
from graft.data.graphs import make_graph
from graft.data.preparation import Preparation, check_labels, encode, load_source, preparations, scale
from graft.data.schema import Schema, parse_schema
from graft.data.survey import schema_sentence
from graft.errors import InputError

ALPHA = (
    "id,label,amount,branch,vip,opened\na,yes,10,north,yes,2024-01-01\nb,no,,south,no,2024-01-03\nc,no,30,north,no,\n"
)
BETA = "id,label,amount,branch,vip,opened\nx,No,50,west,no,2024-02-01\ny,Yes,70,west,no,2024-02-02\n"
EDGES = {"alpha": "source,target\na,b\nb,c\n", "beta": "source,target\nx,y\n"}
NAMES = ["alpha", "beta"]


@pytest.fixture
def load(tmp_path):
    def write(name, nodes, edges=None, schema=None):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "nodes.csv").write_text(nodes)
        (tmp_path / name / "edges.csv").write_text(EDGES[name] if edges is None else edges)
        return load_source(tmp_path / name, schema, name)

    return write


@pytest.fixture
def banks(load):
    return [load("alpha", ALPHA), load("beta", BETA)]


def dense(graph):
    return graph.x.toarray() if issparse(graph.x) else graph.x


def column(graph, name):
    return dense(graph)[:, graph.feature_names.index(name)].tolist()


def prepare(sources, names=NAMES, scaling="federated", features="auto"):
    encoded = encode(sources, names, scaling)
    return encoded, scale(encoded.graphs, names, encoded.encodings, features, scaling)


def test_all_clients_get_the_same_features_and_classes(banks):
    encoded = encode(banks, NAMES, "federated")
    alpha, beta = encoded.graphs
    assert (
        alpha.feature_names
        == beta.feature_names
        == (
            "amount",
            "amount is missing",
            "branch = north",
            "branch = south",
            "branch = west",
            "vip",
            "opened",
            "opened is missing",
        )
    )
    assert column(alpha, "amount") == [10, 0, 30]
    assert column(alpha, "amount is missing") == [0, 1, 0]
    assert column(beta, "amount is missing") == [0, 0]
    assert column(alpha, "branch = north") == [1, 0, 1]
    assert column(beta, "branch = west") == [1, 1]
    assert column(alpha, "vip") == [1, 0, 0]
    assert alpha.class_names == beta.class_names == ("no", "yes")
    assert (alpha.y.tolist(), beta.y.tolist()) == ([1, 0, 0], [0, 1])
    assert alpha.ids.tolist() == ["a", "b", "c"]


def test_missing_cells_are_zero_after_scaling_and_count_in_no_moment(banks):
    _, scaled = prepare(banks)
    alpha, beta = scaled.graphs
    values = np.array([10, 30, 50, 70])
    expected = (values - values.mean()) / values.std()
    np.testing.assert_allclose(column(alpha, "amount"), [expected[0], 0, expected[1]], rtol=1e-6)
    np.testing.assert_allclose(column(beta, "amount"), expected[2:], rtol=1e-6)
    assert column(alpha, "opened")[2] == 0
    assert column(alpha, "branch = north") == [1, 0, 1]
    assert all(np.isfinite(dense(graph)).all() for graph in scaled.graphs)


def test_local_scaling_tells_nothing_but_names_kinds_classes_and_flags(banks):
    encoded, scaled = prepare(banks, scaling="local")
    told = (encoded.exchange + scaled.exchange).fields
    assert set(told) == {"columns", "kinds", "missing", "constant", "directed", "classes"}
    assert scaled.exchange.up_bytes == 0
    sent = b"".join(array.tobytes() for message in encoded.exchange.up for array in message.values())
    assert b"amount" in sent
    assert b"north" not in sent
    federated = encode(banks, NAMES, "federated").exchange
    assert b"north" in b"".join(array.tobytes() for message in federated.up for array in message.values())
    alpha = scaled.graphs[0]
    np.testing.assert_allclose(column(alpha, "amount"), [-1, 0, 1])
    assert [name for name in alpha.feature_names if "hash" in name] == [f"branch hash {bucket}" for bucket in range(16)]
    assert dense(alpha)[:, 2:18].sum(axis=1).tolist() == [1, 1, 1]


def test_the_exchange_is_counted_field_by_field(banks):
    encoded, scaled = prepare(banks)
    exchange = encoded.exchange + scaled.exchange
    fields = exchange.fields
    assert as_texts(exchange.up[1]["categories/branch"]) == ["west"]
    assert as_texts(exchange.down[1]["categories/branch"]) == ["north", "south", "west"]
    assert exchange.up[0]["category_counts/branch"].tolist() == [2, 1]
    assert fields["moments/means"].up == [3 * 8, 3 * 8]
    assert fields["moments/means"].down == [0, 0]
    assert exchange.up_bytes == sum(sum(field.up) for field in fields.values())
    assert exchange.down_bytes == sum(sum(field.down) for field in fields.values())
    assert all(field.reveals for field in fields.values())


def test_hashed_categories_have_the_same_bucket_everywhere(load):
    nodes = "id,label,branch\na,x,north\nb,y,south\n"
    swapped = "id,label,branch\nx,y,south\ny,x,north\n"
    alpha, beta = encode([load("alpha", nodes, "source,target\na,b\n"), load("beta", swapped)], NAMES, "local").graphs
    assert dense(alpha)[0].tolist() == dense(beta)[1].tolist()
    assert dense(alpha)[0].tolist() != dense(alpha)[1].tolist()
    assert alpha.feature_names[dense(alpha)[0].argmax()] == "branch hash 9"  # fixed for all times


def test_declared_categories_are_one_hot_without_an_exchange(load):
    schema = parse_schema({"categorical": {"branch": ["south", "north"]}, "hash": 4}, "here")
    sources = [load("alpha", ALPHA, schema=schema), load("beta", BETA, schema=schema)]
    encoded = encode(sources, NAMES, "local")
    assert [name for name in encoded.graphs[0].feature_names if "branch" in name] == [
        "branch = south",
        "branch = north",
        "branch is other",
    ]
    assert column(encoded.graphs[1], "branch is other") == [1, 1]
    assert "categories/branch" not in encoded.exchange.fields


def test_rare_categories_beyond_the_limit_are_other(load, monkeypatch):
    monkeypatch.setattr("graft.data.agreement.MOST_CATEGORIES", 2)
    encoded = encode([load("alpha", ALPHA), load("beta", BETA)], NAMES, "federated")
    names = [name for name in encoded.graphs[0].feature_names if "branch" in name]
    assert names == ["branch = north", "branch = west", "branch is other"]
    assert column(encoded.graphs[0], "branch is other") == [0, 1, 0]


def test_direction_becomes_two_features(load):
    schema = parse_schema({"edges": {"directed": True}}, "here")
    table = load("alpha", ALPHA, "source,target\na,b\na,b\nc,b\nb,b\n", schema)
    graph = encode([table], ["alpha"]).graphs[0]
    np.testing.assert_allclose(column(graph, "log(1 + incoming edges)"), np.log([1, 4, 1]), rtol=1e-6)
    np.testing.assert_allclose(column(graph, "log(1 + outgoing edges)"), np.log([3, 1, 2]), rtol=1e-6)
    assert graph.edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert not any("log" in name for name in encode([load("alpha", ALPHA)], ["alpha"]).graphs[0].feature_names)
    weighted = parse_schema({"edges": {"directed": True, "weight": "w"}}, "here")
    table = load("alpha", ALPHA, "source,target,w\na,b,2\na,b,3\nc,b,1\n", weighted)
    graph = encode([table], ["alpha"]).graphs[0]
    np.testing.assert_allclose(column(graph, "log(1 + incoming weight)"), np.log([1, 7, 1]), rtol=1e-6)
    assert graph.weights.tolist() == [5, 5, 1, 1]


def test_logarithm_of_a_column_is_taken_before_scaling_and_of_new_data_too(load):
    schema = parse_schema({"log": ["amount"]}, "here")
    table = load("alpha", ALPHA.replace(",30,", ",-30,"), schema=schema)
    graph = encode([table], ["alpha"]).graphs[0]
    np.testing.assert_allclose(column(graph, "log amount"), [np.log(11), 0, -np.log(31)], rtol=1e-6)
    assert column(graph, "amount is missing") == [0, 1, 0]
    _, again, expected = saved([table], names=["alpha"])
    np.testing.assert_array_equal(dense(again.apply(load("alpha", ALPHA.replace(",30,", ",-30,")))), dense(expected))
    with pytest.raises(InputError, match="'few' is not a finite number"):
        load("alpha", ALPHA.replace("10", "few"), schema=schema)


def test_columns_that_tell_nothing_are_left_out_and_named(load):
    rows = "".join(f"n{i},{'xy'[i % 2]},{i},EUR,,note {i}\n" for i in range(30))
    table = load("alpha", "id,label,f,currency,empty,remark\n" + rows, "source,target\nn1,n2\n")
    encoded = encode([table], ["alpha"])
    assert encoded.graphs[0].feature_names == ("f",)
    assert " ".join(encoded.agreement_notes).count("ignored") == 3


def test_a_column_that_is_constant_at_one_client_stays(load):
    alpha = load("alpha", ALPHA.replace("south", "north"))
    varied = encode([alpha, load("beta", BETA.replace("x,No,50,west", "x,No,50,north"))], NAMES, "federated")
    assert "branch = north" in varied.graphs[0].feature_names
    constant_everywhere = encode([alpha, load("beta", BETA)], NAMES, "federated")
    assert "branch = north" not in constant_everywhere.graphs[0].feature_names


DISAGREEMENTS = {
    "a column is lacking": (
        BETA.replace("amount", "sum"),
        "client beta, column amount: there is no such column, but alpha",
    ),
    "another kind": (
        BETA.replace("50", "much").replace("70", "less"),
        "client beta, column amount: it holds categories",
    ),
}


@pytest.mark.parametrize("kind", DISAGREEMENTS)
def test_tables_that_do_not_fit_together_name_client_and_column(load, kind):
    nodes, message = DISAGREEMENTS[kind]
    with pytest.raises(InputError, match=message):
        encode([load("alpha", ALPHA), load("beta", nodes)], NAMES, "federated")


def test_kinds_that_can_be_one_become_one(load):
    maybe = BETA.replace("70,west,no", "70,west,maybe")
    encoded = encode([load("alpha", ALPHA), load("beta", maybe)], NAMES, "federated")
    assert [name for name in encoded.graphs[0].feature_names if "vip" in name] == [
        "vip = maybe",
        "vip = no",
        "vip = yes",
    ]
    empty = BETA.replace("50", "").replace("70", "")
    scaled = prepare([load("alpha", ALPHA), load("beta", empty)])[1]
    assert column(scaled.graphs[1], "amount") == [0, 0]


def test_what_columns_were_taken_for_is_said_in_one_line(banks):
    assert schema_sentence(banks[0]) == (
        "alpha: id id, label label, edges from source to target; numbers amount, vip; categories branch; dates opened"
    )


# Graphs that came with their features.


def graph(name="g", width=2, y=(0, 1, 0), **names):
    return make_graph(name, np.arange(3 * width, dtype=float).reshape(3, width), [[0, 1], [1, 2]], y, **names)


def test_plain_graphs_keep_features_and_labels():
    encoded = encode([graph("p"), graph("q", y=(0, 2, 1))], ["p", "q"])
    assert [part.classes for part in encoded.graphs] == [3, 3]
    assert encoded.class_names is None
    scaled = scale(encoded.graphs, ["p", "q"], encoded.encodings)
    assert all(after.x is before.x for after, before in zip(scaled.graphs, encoded.graphs, strict=True))


def test_graphs_of_other_widths_or_names_are_refused_with_the_client():
    with pytest.raises(InputError, match="Client q has 3 features, but client p has 2"):
        encode([graph("p"), graph("q", width=3)], ["p", "q"])
    named = graph("p", feature_names=("age", "size"))
    with pytest.raises(InputError, match="Client q has no feature 'size', which client p has"):
        encode([named, graph("q", feature_names=("age", "weight"))], ["p", "q"])
    with pytest.raises(InputError, match="Feature 0 of client q is 'size', but of client p 'age'"):
        encode([named, graph("q", feature_names=("size", "age"))], ["p", "q"])
    assert encode([named, graph("q")], ["p", "q"]).graphs[0].features == 2


def test_tables_and_graphs_can_be_clients_together(load):
    table = load("alpha", "id,label,f,g\na,1,1,2\nb,0,3,4\n", "source,target\na,b\n")
    encoded = encode([table, graph("q", y=(0, 2, -1))], ["alpha", "q"], "federated")
    assert encoded.class_names == ("0", "1", "2")
    assert [part.y.tolist() for part in encoded.graphs] == [[1, 0], [0, 2, -1]]
    assert encoded.graphs[1].feature_names == ("f", "g")
    scaled = scale(encoded.graphs, ["alpha", "q"], encoded.encodings, "auto", "federated")
    np.testing.assert_allclose(np.concatenate([part.x for part in scaled.graphs]).mean(axis=0), 0, atol=1e-6)


def test_labels_of_one_class_or_none_are_refused(load):
    only = encode([load("alpha", ALPHA.replace("yes,10", "no,10"))], ["alpha"])
    with pytest.raises(InputError, match="'alpha' has a single class, 'no'"):
        check_labels(only.graphs, ["alpha"])
    none = encode(
        [load("alpha", ALPHA.replace("label", "colour").replace("no,", ",").replace("yes,1", ",1"))], ["alpha"]
    )
    with pytest.raises(InputError, match="no label at all"):
        check_labels(none.graphs, ["alpha"])
    check_labels(encode([load("alpha", ALPHA)], ["alpha"]).graphs, ["alpha"])


def test_positive_class_is_found_in_any_spelling_and_refused_when_it_is_none(load):
    assert encode([load("alpha", ALPHA, schema=Schema(positive="YES"))], ["alpha"]).positive == "yes"
    with pytest.raises(InputError, match="positive class 'fraud' does not occur; the classes are no, yes"):
        encode([load("alpha", ALPHA, schema=Schema(positive="fraud"))], ["alpha"])


# New data.


def saved(sources, scaling="federated", names=NAMES):
    encoded, scaled = prepare(sources, names, scaling)
    preparation = preparations(encoded, scaled)[0]
    return preparation, Preparation.from_json(json.loads(json.dumps(preparation.to_json()))), scaled.graphs[0]


@pytest.mark.parametrize("scaling", ["local", "federated"])
def test_saved_preparation_gives_the_same_features(banks, scaling):
    preparation, again, expected = saved(banks, scaling)
    assert again.to_json() == preparation.to_json()
    applied = again.apply(banks[0])
    assert np.array_equal(applied.x, expected.x)
    assert np.array_equal(applied.y, expected.y)
    assert applied.feature_names == expected.feature_names
    assert not np.array_equal(
        again.apply(banks[1]).x, preparations(*prepare(banks, NAMES, "local"))[1].apply(banks[1]).x
    )


@pytest.mark.parametrize("scaling", ["local", "federated"])
def test_new_nodes_with_unknown_categories_empty_cells_and_no_label_are_prepared(banks, load, scaling):
    _, again, _ = saved(banks, scaling)
    nodes = "id,amount,branch,vip,opened,more\np,20,east,no,2024-01-01,1\nq,,north,,2024-01-02,2\n"
    new = again.apply(load("new", nodes, "source,target\np,q\n", again.schema))
    assert (new.y == -1).all()
    assert new.ids.tolist() == ["p", "q"]
    assert column(new, "vip")[1] == 0  # nothing was missing there before: the mean
    assert column(new, "amount is missing") == [0, 1]
    unknown = dense(new)[0, [name.startswith("branch") for name in new.feature_names]]
    assert unknown.sum() == (1 if scaling == "local" else 0)  # a bucket, or no category at all
    assert np.isfinite(dense(new)).all()


def test_new_tables_need_no_split_time_or_column_that_is_no_feature(load):
    nodes = "id,label,f,currency,split,seen\na,x,1,EUR,train,1\nb,y,2,EUR,test,2\n"
    table = load("alpha", nodes, "source,target,t\na,b,1\n", Schema(time="seen", edge_time="t"))
    encoded, scaled = prepare([table], ["alpha"])
    preparation = preparations(encoded, scaled)[0]
    new = preparation.apply(load("new", "id,f,label_of_box\np,1,3\n", "source,target\n", preparation.schema))
    np.testing.assert_allclose(dense(new), [[-1]])
    with pytest.raises(InputError, match="no column 'f'"):
        load("new", "id,currency\np,EUR\n", "source,target\n", preparation.schema)


def test_unknown_categories_are_other_where_there_was_one(load, monkeypatch):
    monkeypatch.setattr("graft.data.agreement.MOST_CATEGORIES", 2)
    _, again, _ = saved([load("alpha", ALPHA), load("beta", BETA)])
    new = again.apply(load("new", ALPHA.replace("south", "east"), EDGES["alpha"], again.schema))
    assert column(new, "branch is other") == [0, 1, 0]


def test_new_data_that_cannot_be_prepared_are_refused(banks, load):
    _, again, _ = saved(banks)
    lacking = load("new", "id,amount,vip,opened\np,20,no,2024-01-01\n", "source,target\n")
    with pytest.raises(InputError, match="The table of 'new' lacks branch"):
        again.apply(lacking)
    with pytest.raises(InputError, match="has the label 'perhaps', but the classes are no, yes"):
        again.apply(load("new", ALPHA.replace("a,yes", "a,perhaps"), EDGES["alpha"]))
    with pytest.raises(InputError, match="column 'amount' of 'new' is a category, but it was a number"):
        again.apply(load("new", ALPHA.replace("10", "few").replace("30", "many"), EDGES["alpha"]))
    with pytest.raises(InputError, match="'g' has 2 features, but the model takes 8"):
        again.apply(graph())


def test_preparation_of_plain_graphs_scales_new_graphs():
    sources = [graph("p"), graph("q")]
    encoded, scaled = prepare(sources, ["p", "q"], features="standard")
    preparation = Preparation.from_json(json.loads(json.dumps(preparations(encoded, scaled)[0].to_json())))
    new = preparation.apply(graph("new", y=(-1, -1, -1)))
    np.testing.assert_array_equal(new.x, scaled.graphs[0].x)
    with pytest.raises(InputError, match="'new' has label 2, but labels are 0 to 1"):
        preparation.apply(graph("new", y=(0, 1, 2)))


def test_parts_of_one_table_share_its_encoding(load):
    encoded = encode([load("alpha", ALPHA)], ["alpha"], "local")
    parts = [encoded.graphs[0], encoded.graphs[0]]
    scaled = scale(parts, ["0", "1"], encoded.encodings, "auto", "local")
    assert encoded.exchange.up_bytes == 0
    assert len(preparations(encoded, scaled)) == 2
    np.testing.assert_allclose(column(scaled.graphs[1], "amount"), [-1, 0, 1])
