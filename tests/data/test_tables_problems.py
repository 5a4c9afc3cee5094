"""What is wrong with tables: all of it at once, each with file, line, column and remedy."""

import gzip
import random
import re

import pytest

from graft.data.preparation import encode, load_sources
from graft.data.schema import ClientFiles, Schema
from graft.data.tables import TableError, read_table
from graft.data.tables.problems import MOST_OF_A_KIND
from graft.errors import InputError

NODES = "id,label,age,height,split\na,cat,1,2.5,train\nb,,3,4,\nc,dog,5,6,test\nd,cat,0,1,validation\n"
EDGES = "source,target,note\na,b,3\nb,a,3\nc,a,1\n"


@pytest.fixture
def folder(tmp_path):
    def write(nodes=NODES, edges=EDGES):
        (tmp_path / "nodes.csv").write_text(nodes, encoding="utf-8")
        (tmp_path / "edges.csv").write_text(edges, encoding="utf-8")
        return ClientFiles(path=tmp_path)

    return write


BAD_TABLES = {
    "text in a column of numbers": (
        {"nodes": NODES.replace("2.5", "tall")},
        r"nodes.csv, line 2, column height: 'tall' is not a finite number; correct it, leave it empty, or declare",
    ),
    "infinity": ({"nodes": NODES.replace("2.5", "inf")}, "line 2, column height: 'inf' is not a finite number"),
    "a number beyond 32 bits": ({"nodes": NODES.replace("2.5", "1e300")}, "line 2, column height"),
    "an id twice": (
        {"nodes": NODES.replace("c,dog", "a,dog"), "edges": "source,target\na,b\n"},
        r"nodes.csv, line 4, column id: 'a' was used before",
    ),
    "no id": (
        {"nodes": NODES.replace("c,dog", ",dog"), "edges": "source,target\na,b\n"},
        "line 4, column id: .* the id is empty",
    ),
    "a long id": (
        {"nodes": NODES.replace("c,dog", "c" * 300 + ",dog"), "edges": "source,target\na,b\n"},
        r"line 4, column id: 'c+\.\.\.' is too long",
    ),
    "an unknown split": ({"nodes": NODES.replace("test", "tset")}, "line 4, column split: 'tset' is not a split"),
    "a cell too few": ({"nodes": NODES.replace(",dog", "")}, "line 4: 4 cells, but 5 columns"),
    "a cell too many": ({"nodes": NODES.replace("dog", "dog,cat")}, "line 4: 6 cells, but 5 columns"),
    "a cell too few behind quotes": (
        {"nodes": NODES.replace("a,cat", '"a\n1",cat').replace(",dog", ""), "edges": "source,target\nb,d\n"},
        "line 5: 4 cells, but 5 columns",
    ),
    "a wrong cell behind a line break in quotes": (
        {"nodes": NODES.replace("a,cat", '"a\n1",cat').replace(",6,", ",six,"), "edges": "source,target\nb,d\n"},
        "line 5, column height: 'six'",
    ),
    "a wrong cell behind a blank line": (
        {"nodes": NODES.replace("c,dog", "\nc,dog").replace(",6,", ",six,")},
        "line 5,",
    ),
    "two names alike": ({"nodes": NODES.replace("height", "Age ")}, "two columns of the header have the same name"),
    "a header alone": ({"nodes": "id,label,f\n"}, "there is a header but no node"),
    "no nodes": ({"nodes": ""}, r"nodes.csv: the file is empty"),
    "no edges": ({"edges": "\n"}, r"edges.csv: the file is empty"),
    "an unknown node": (
        {"edges": EDGES.replace("c,a", "c,z")},
        r"edges.csv, line 4, column target: 'z' is unknown: there is no such node in nodes.csv; .* unknown_nodes",
    ),
    "an end that is empty": ({"edges": EDGES.replace("c,a", "c,")}, r"edges.csv, line 4, column target: '' is unknown"),
    "edges without a header": ({"edges": "a,b\nb,c\n"}, r"edges.csv, line 1: the first line holds ids"),
    "nodes without a header": ({"nodes": "1,5.5,7\n2,3,4\n"}, r"nodes.csv, line 1: the first line holds numbers"),
    "edges of something else": ({"edges": "p,q\nx,y\n"}, "the header lacks source and target"),
    "no column that identifies": ({"nodes": "label,f\nx,1\nx,1\n"}, "the header lacks id"),
    "a date that does not exist": (
        {
            "nodes": NODES.replace("age", "born")
            .replace("cat,1", "cat,2024-01-05")
            .replace("cat,0", "cat,2024-13-01")
            .replace(",3,", ",2024-01-01,")
            .replace("dog,5", "dog,2024-01-01")
        },
        "line 5, column born: '2024-13-01' is not a date like the others",
    ),
    "a thousand labels": (
        {"nodes": "id,label,f\n" + "".join(f"n{i},{i}.5,1\n" for i in range(1001)), "edges": "source,target\nn1,n2\n"},
        "column label: the label has 1001 different values",
    ),
}


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_bad_tables_are_refused_with_file_line_and_column(folder, kind):
    change, message = BAD_TABLES[kind]
    read_table(folder())
    with pytest.raises(InputError, match=message) as caught:
        read_table(folder(**change))
    assert "\n" not in str(caught.value).strip()


def test_everything_wrong_is_listed_at_once(folder):
    nodes = NODES.replace("2.5", "tall").replace("test", "tset").replace("d,cat", "a,cat")
    with pytest.raises(TableError) as caught:
        read_table(folder(nodes, EDGES.replace("b,a", "b,z")))
    lines = str(caught.value).splitlines()
    assert re.search("4 problems", lines[0])
    assert caught.value.count == len(lines) - 1 == 4
    assert [line.split(":")[0].rpartition("/")[2] for line in lines[1:]] == [
        "nodes.csv, line 5, column id",
        "nodes.csv, line 2, column height",
        "nodes.csv, line 4, column split",
        "edges.csv, line 3, column target",
    ]


def test_of_many_problems_of_a_column_the_first_are_shown_and_all_are_counted(folder):
    rows = "".join(f"n{i},x,{i if i % 3 else 'bad'}\n" for i in range(90))
    with pytest.raises(TableError) as caught:
        read_table(folder("id,label,f\n" + rows, "source,target\nn1,n2\n"))
    assert caught.value.count == 30
    assert len(caught.value.problems) == MOST_OF_A_KIND
    assert "25 more cells of this column" in str(caught.value)


def test_problems_of_all_clients_come_together(tmp_path):
    for name, cell in (("alpha", "tall"), ("beta", "2.5"), ("gamma", "small")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nodes.csv").write_text(NODES.replace("2.5", cell))
        (tmp_path / name / "edges.csv").write_text(EDGES)
    clients = {name: tmp_path / name for name in ("alpha", "beta", "gamma")}
    with pytest.raises(TableError, match="2 problems") as caught:
        load_sources(clients)
    assert "'tall'" in str(caught.value)
    assert "'small'" in str(caught.value)
    assert "beta" not in str(caught.value)


DECLARED = {
    "id": (Schema(id="ident"), "there is no column 'ident'.*, which the schema names as id"),
    "numeric": (Schema(numeric=("heigth",)), "there is no column 'heigth' .did you mean 'height'.*numeric"),
    "label nearly there": (Schema(label="lable"), "there is no column 'lable', the label .did you mean 'label'"),
    "weight": (Schema(edge_weight="sum"), "there is no column 'sum'.*weight"),
    "time": (Schema(time="when"), "there is no column 'when'.*time"),
    "category as number": (Schema(numeric=("label2",)), "there is no column 'label2'"),
    "date": (Schema(date=("age",)), "column age: '1' is not a date in a form that is known"),
    "weight of text": (Schema(edge_weight="source"), "column source: 'a' is not a weight"),
}


@pytest.mark.parametrize("kind", DECLARED)
def test_schemas_that_do_not_fit_are_refused(folder, kind):
    schema, message = DECLARED[kind]
    with pytest.raises(InputError, match=message):
        read_table(folder(), schema)


def test_negative_weights_and_empty_times_are_problems(folder):
    edges = "source,target,w,t\na,b,-1,5\nb,c,2,\n"
    with pytest.raises(TableError) as caught:
        read_table(folder(edges=edges), Schema(edge_weight="w", edge_time="t"))
    assert "line 2, column w: '-1' is not a weight" in str(caught.value)
    assert "line 3, column t: '' is no time" in str(caught.value)


def test_label_column_that_is_missing_leaves_nodes_unlabelled(folder):
    table = read_table(folder(NODES.replace("label", "colour")), Schema(label="fraud"))
    assert (table.y == -1).all()
    assert any("no column 'fraud'" in note for note in table.notes)


def test_folders_without_two_tables_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no nodes.csv and no edges.csv: .* it has no table"):
        read_table(ClientFiles(path=tmp_path))
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match=r"its tables are a.csv, b.csv, c.csv; name them, as nodes ="):
        read_table(ClientFiles(path=tmp_path))
    (tmp_path / "c.csv").unlink()
    with pytest.raises(InputError, match="cannot be told"):
        read_table(ClientFiles(path=tmp_path))
    with pytest.raises(InputError, match="not a folder"):
        read_table(ClientFiles(path=tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nodes.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is not a text file"),
        ("nodes.csv.gz", gzip.compress(b"id,label\na,1\n", mtime=0)[:-9], "cannot be read"),
        ("nodes.parquet", b"PAR1 but not really", "not a readable Parquet file"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "edges.csv").write_text(EDGES)
    with pytest.raises(InputError, match=message):
        read_table(ClientFiles(nodes_file=tmp_path / name, edges_file=tmp_path / "edges.csv"))


def test_packed_files_that_unpack_beyond_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("graft.data.tables.text_files.free_ram", lambda: 4 * 10**6)
    (tmp_path / "edges.csv").write_text(EDGES)
    for size, message in ((10**7, "more than there is memory for"), (10**5, "cells")):
        (tmp_path / "nodes.csv.gz").write_bytes(gzip.compress(b"id,label\na,b,c\n" * (size // 15)))
        with pytest.raises(InputError, match=message):
            read_table(ClientFiles(nodes_file=tmp_path / "nodes.csv.gz", edges_file=tmp_path / "edges.csv"))


def test_wrong_declared_encoding_is_named(folder):
    files = folder(NODES.replace("cat", "chât"))
    with pytest.raises(InputError, match=r"nodes.csv is not a readable text in ascii"):
        read_table(files, Schema(encoding="ascii"))


PIECES = [
    b'"',
    b";",
    b",",
    b"\n",
    b"\r",
    b"\0",
    b"|",
    b"\t",
    b"\xff",
    b"",
    b"nan",
    b"1e999",
    b"2024-13-45",
    b"-1",
    b" ",
]


def test_whatever_tables_hold_they_are_read_or_refused(tmp_path):
    draw = random.Random(0)
    outcomes = []
    for _ in range(80):
        for name, text in (("nodes.csv", NODES), ("edges.csv", EDGES)):
            content = bytearray(text.encode(draw.choice(["utf-8", "utf-8", "utf-16"])))
            for _ in range(draw.randint(0, 2)):
                start = draw.randrange(len(content) + 1)
                content[start : start + draw.randint(0, 4)] = draw.choice(PIECES)
            (tmp_path / name).write_bytes(content)
        try:
            graph = encode([read_table(ClientFiles(path=tmp_path))], ["table"]).graphs[0]
            outcomes.append(graph.nodes > 0)
        except InputError:
            outcomes.append(False)
    assert 5 < sum(outcomes) < 75
