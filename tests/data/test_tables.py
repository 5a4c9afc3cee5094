"""Tables as programs export them: separators, encodings, names, kinds of columns, and what is inferred."""

import gzip
import sys

import numpy as np
import polars as pl
import pytest

from graft.data.datasets import load
from graft.data.schema import ClientFiles, Schema, parse_schema
from graft.data.tables import read_table
from graft.errors import InputError

NODES = "id,label,age,height,split\na,cat,1,2.5,train\nb,,3,4,\nc,dog,5,6,test\nd,cat,0,1,validation\n"
EDGES = "source,target,note\na,b,3\nb,a,3\nc,a,1\n"


@pytest.fixture
def folder(tmp_path):
    def write(nodes=NODES, edges=EDGES, names=("nodes.csv", "edges.csv"), encoding="utf-8"):
        for name, text in zip(names, (nodes, edges), strict=True):
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return tmp_path

    return write


def read(path, **schema):
    return read_table(ClientFiles(path=path), Schema(**schema), "mine")


def test_folder_of_tables_is_read_as_ever(folder):
    graph = load(folder())
    assert graph.x.tolist() == [[1, 2.5], [3, 4], [5, 6], [0, 1]]
    assert graph.y.tolist() == [0, -1, 1, 0]
    assert graph.edges.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert [mask.tolist() for mask in graph.masks.values()] == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert graph.classes == 2
    assert graph.class_names == ("cat", "dog")
    assert graph.feature_names == ("age", "height")
    assert graph.ids.tolist() == ["a", "b", "c", "d"]
    assert load(str(folder())).nodes == 4


def test_labels_that_are_whole_numbers_are_ordered_by_value(folder):
    graph = load(folder("id,label,f\na,10,1\nb,2,1\nc,-1,1\nd,2.0,1\n", "source,target\na,b\n"))
    assert graph.y.tolist() == [1, 0, -1, 0]
    assert graph.class_names == ("2", "10")
    mixed = load(folder("id,label,f\na,10,1\nb,2,1\nc,x,1\n", "source,target\n"))
    assert mixed.y.tolist() == [0, 1, 2]
    assert mixed.masks == {}


@pytest.mark.parametrize("nothing", ["-1", "-1.0", "NA", "n/a", "NaN", "null", "None", "", "  "])
def test_labels_that_say_nothing_are_unlabelled(folder, nothing):
    table = read(folder(f"id,label,f\na,{nothing},1\nb,x,2\nc,y,3\n", "source,target\na,b\n"))
    assert table.y.tolist() == [-1, 0, 1]


def test_tables_may_have_a_byte_order_mark_spaces_quotes_and_blank_lines(folder):
    graph = load(folder('\ufeffid, label, f\n"a, 1", x, 2\n\nb,y,3\n', 'target,source\n"a, 1", b\n'))
    assert graph.x.tolist() == [[2], [3]]
    assert graph.edge_count == 1


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_separators_and_line_ends_are_found_out(folder, separator, end):
    nodes = NODES.replace(",", separator).replace("\n", end)
    edges = EDGES.replace(",", separator).replace("\n", end).removesuffix(end)
    assert load(folder(nodes, edges)).x.tolist() == load(folder()).x.tolist()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"])
def test_encodings_are_found_out(folder, encoding):
    nodes = "id,label,ort\nä1,x,Köln\nä2,y,Zürich\nä3,x,Köln\n"
    table = read(folder(nodes, "source,target\nä1,ä2\n", encoding=encoding))
    assert table.ids.to_list() == ["ä1", "ä2", "ä3"]
    assert table.columns["ort"].texts.to_list() == ["Köln", "Zürich", "Köln"]
    assert bool(table.notes) == (encoding in ("latin-1", "cp1252"))


def test_declared_encoding_counts(folder):
    nodes = "id,label,ort\na,x,Kraków\nb,y,Łódź\n"
    path = folder(nodes, "source,target\na,b\n", encoding="iso8859-2")
    assert read(path, encoding="iso8859-2").columns["ort"].texts.to_list() == ["Kraków", "Łódź"]
    assert read(path).columns["ort"].texts.to_list() != ["Kraków", "Łódź"]


def test_compressed_and_parquet_tables_are_read(folder, tmp_path):
    expected = load(folder())
    for name in ("nodes", "edges"):
        path = tmp_path / f"{name}.csv"
        pl.read_csv(path).write_parquet(tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    for suffix in (".csv.gz", ".parquet"):
        files = ClientFiles(nodes_file=tmp_path / f"nodes{suffix}", edges_file=tmp_path / f"edges{suffix}")
        table = read_table(files)
        assert table.columns["height"].numbers.tolist() == expected.x[:, 1].tolist()
        assert table.y.tolist() == expected.y.tolist()


def test_whole_numbers_in_parquet_are_the_same_ids_whatever_their_type(tmp_path):
    pl.DataFrame({"id": [1, 2, 3], "label": ["x", "y", "x"], "f": [1.5, None, 2.0]}).write_parquet(
        tmp_path / "nodes.parquet"
    )
    pl.DataFrame({"source": [1.0, 2.0], "target": [2, 3]}).write_parquet(tmp_path / "edges.parquet")
    table = read(tmp_path)
    assert table.edges.tolist() == [[0, 1], [1, 2]]
    assert np.isnan(table.columns["f"].numbers).tolist() == [False, True, False]


def test_names_of_columns_are_compared_without_case_and_blanks(folder):
    nodes = "Account ID;Fraud ;Balance-EUR\nA;yes;1,5\nB;no;2\n"
    path = folder(nodes, "From Account;To.Account\nA;B\n", names=("accounts.csv", "payments.csv"))
    table = read(path)
    assert (table.schema.id, table.schema.label) == ("account_id", "fraud")
    assert (table.schema.source, table.schema.target) == ("from_account", "to_account")
    assert table.columns["balance_eur"].numbers.tolist() == [1.5, 2.0]
    declared = read(path, id="account_id", numeric=("balance_eur",))
    assert declared.columns["balance_eur"].numbers.tolist() == [1.5, 2.0]


def test_ids_and_ends_are_found_by_their_values(folder):
    nodes = "colour,ref,label,f\nred,p,x,1\nred,q,y,2\nblue,r,x,3\n"
    edges = "when,one,other\n5,p,q\n6,q,r\n"
    table = read(folder(nodes, edges, names=("one.csv", "two.csv")))
    assert (table.schema.id, table.schema.source, table.schema.target) == ("ref", "one", "other")
    assert table.edges.tolist() == [[0, 1], [1, 2]]
    swapped = read(folder(edges, nodes, names=("one.csv", "two.csv")))
    assert swapped.edges.tolist() == table.edges.tolist()


def test_a_column_that_repeats_itself_is_no_id_whatever_its_name(folder):
    nodes = "user,number,label,f\nx,p,1,1\nx,q,2,2\nx,r,1,3\n"
    assert read(folder(nodes, "source,target\np,q\n")).schema.id == "number"


def test_kinds_of_columns_are_inferred(folder):
    rows = "".join(
        f"n{i},x,{i}.5,{'yes' if i % 2 else 'no'},2024-01-{i + 1:02d},{'ab'[i % 2]},free text {i},0{i},,c\n"
        for i in range(25)
    )
    header = "id,label,number,truth,day,letter,remark,code,empty,constant\n"
    table = read(folder(header + rows, "source,target\nn1,n2\n"))
    kinds = {name: column.kind for name, column in table.columns.items()}
    assert kinds == {
        "number": "number",
        "truth": "boolean",
        "day": "date",
        "letter": "category",
        "remark": "text",
        "code": "text",  # 01 is not a number
        "empty": "empty",
        "constant": "category",
    }
    assert table.columns["constant"].constant
    assert table.columns["truth"].numbers[:2].tolist() == [0, 1]
    assert table.schema.numeric == ("number", "truth")


@pytest.mark.parametrize(
    ("cells", "days"),
    [
        (("1970-01-02", "1970-01-11"), [1, 10]),
        (("1970-01-02T12:00:00Z", "1970-01-11T00:00:00+02:00"), [1.5, 10 - 2 / 24]),
        (("1970-01-02 06:00:00", "1970-01-11 00:00:00"), [1.25, 10]),
        (("02.01.1970", "11.01.1970"), [1, 10]),
        (("31/01/1970", "02/02/1970"), [30, 32]),
        (("01/31/1970", "02/02/1970"), [30, 32]),
        (("2 Jan 1970", "11 Jan 1970"), [1, 10]),
        (("01/01/1970", "02/02/1970"), [0, 32]),  # day and month are the same
    ],
)
def test_dates_are_days_since_1970(folder, cells, days):
    nodes = f"id,label,day\na,x,{cells[0]}\nb,y,{cells[1]}\nc,y,\n"
    column = read(folder(nodes, "source,target\na,b\n")).columns["day"]
    assert column.kind == "date"
    np.testing.assert_allclose(column.numbers[:2], days)
    assert np.isnan(column.numbers[2])


def test_dates_whose_day_and_month_could_be_either_have_to_be_declared(folder):
    path = folder("id,label,day\na,x,01/02/1970\nb,y,03/05/1970\n", "source,target\na,b\n")
    with pytest.raises(InputError, match=r"column day: day and month .* cannot be told apart; declare its form"):
        read(path)
    american = parse_schema({"date": {"day": "%m/%d/%Y"}}, "here")
    assert read_table(ClientFiles(path=path), american).columns["day"].numbers.tolist() == [1, 63]


@pytest.mark.parametrize(
    ("separator", "cells", "numbers"),
    [
        (";", ("1.234,5", "2"), [1234.5, 2]),
        (";", ("1.5", "2"), [1.5, 2]),
        (";", ("1,5", "2,25"), [1.5, 2.25]),
        (",", ('"1,234.5"', "2"), [1234.5, 2]),
        (",", ("1e3", "+2"), [1000, 2]),
        (",", ("NA", "2"), [np.nan, 2]),
    ],
)
def test_numbers_may_have_a_decimal_comma_or_thousands(folder, separator, cells, numbers):
    nodes = separator.join(("id", "label", "f")) + "\n"
    nodes += "".join(separator.join((name, "x", cell)) + "\n" for name, cell in zip("ab", cells, strict=True))
    column = read(folder(nodes, "source,target\na,b\n")).columns["f"]
    np.testing.assert_array_equal(column.numbers, numbers)


def test_declared_decimal_counts(folder):
    path = folder('id,label,f\na,x,"1,234"\nb,y,2\n', "source,target\na,b\n")
    assert read(path).columns["f"].numbers.tolist() == [1234, 2]
    assert read(path, decimal=",").columns["f"].numbers.tolist() == [1.234, 2]


def test_what_counts_as_missing_can_be_declared(folder):
    path = folder("id,label,land\na,x,NA\nb,y,DE\nc,y,none\n", "source,target\na,b\n")
    assert read(path).columns["land"].texts.to_list() == [None, "DE", None]
    assert read(path, missing=("none",)).columns["land"].texts.to_list() == ["NA", "DE", None]


def test_columns_can_be_declared_ignored_and_renamed(folder):
    path = folder("id,label,code,extra,saldo\na,x,1,9,5\nb,y,2,8,6\n", "von,nach\na,b\n")
    schema = parse_schema(
        {
            "categorical": ["code"],
            "ignore": ["Extra"],
            "rename": {"saldo": "balance", "Von": "source"},
            "edges": {"target": "nach"},
        },
        "here",
    )
    table = read_table(ClientFiles(path=path), schema)
    assert {name: column.kind for name, column in table.columns.items()} == {"code": "category", "balance": "number"}
    assert table.edges.tolist() == [[0], [1]]


def test_weights_times_self_loops_and_repeated_edges(folder):
    edges = "source,target,amount,paid\na,b,2,1970-01-02\na,b,3,1970-01-01\nc,c,9,1970-01-01\nd,c,1,1970-01-03\n"
    table = read(folder(edges=edges), edge_weight="amount", edge_time="paid")
    assert table.weights.tolist() == [2, 3, 1]
    assert table.edge_times.tolist() == [86400, 0, 2 * 86400]
    assert (table.self_loops, table.duplicate_edges) == (1, 1)


def test_edges_to_unknown_nodes_are_dropped_where_the_schema_says_so(folder):
    table = read(folder(edges="source,target\na,b\na,z\ny,b\n"), unknown_nodes="drop")
    assert table.edges.tolist() == [[0], [1]]
    assert table.dropped_edges == 2
    assert "2 edges to unknown nodes were dropped" in " ".join(table.notes)


def test_ids_that_became_floats_on_the_way_are_found(folder):
    nodes = "id,label,f\n1,x,1\n2,y,2\n10,x,3\n"
    assert read(folder(nodes, "source,target\n1.0,2\n10.0,1\n")).edges.tolist() == [[0, 2], [1, 0]]
    with pytest.raises(InputError, match=r"'11\.0' is unknown"):
        read(folder(nodes, "source,target\n11.0,2\n"))


def test_splits_have_several_names(folder):
    table = read(folder(NODES.replace("validation", "Dev").replace("train", "training")))
    assert {name: mask.tolist() for name, mask in table.masks.items()} == {
        "train": [1, 0, 0, 0],
        "validation": [0, 0, 0, 1],
        "test": [0, 0, 1, 0],
    }


def test_node_times_are_no_feature(folder):
    table = read(folder(), time="age")
    assert table.node_times.tolist() == [1, 3, 5, 0]
    assert list(table.columns) == ["height"]


def test_without_polars_a_sentence_says_how_to_get_it(folder, monkeypatch):
    path = folder()
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InputError, match="pip install polars"):
        read(path)


def test_files_full_of_quotes_are_read_by_polars_and_files_with_blank_lines_are_not(folder, monkeypatch):
    quoted = "".join(",".join(f'"{cell}"' for cell in line.split(",")) + "\n" for line in NODES.splitlines())
    expected = load(folder()).x.tolist()
    monkeypatch.setattr("graft.data.tables.sheets.BLOCK", 7)  # quotes go on from block to block
    monkeypatch.setattr("graft.data.tables.sheets._slow_parse", None)
    assert load(folder(quoted)).x.tolist() == expected
    assert load(folder(NODES + "\n\n")).x.tolist() == expected
    with pytest.raises(TypeError):
        load(folder(NODES.replace("\n", "\n\n")))


def test_index_column_without_a_name_is_left_out(folder):
    table = read(folder(",id,label,f\n0,a,x,1\n1,b,y,2\n", ",source,target\n0,a,b\n"))
    assert list(table.columns) == ["f"]
    assert table.schema.id == "id"
