"""Saved preparations that are not what they should be: whatever they hold, one sentence."""

import copy
import json
import random

import pytest

from graft.data.preparation import Preparation, encode, load_source, preparations, scale
from graft.errors import InputError

NODES = {
    "alpha": "id,label,amount,branch,opened\na,yes,10,north,2024-01-01\nb,no,,south,2024-01-03\nc,no,30,north,\n",
    "beta": "id,label,amount,branch,opened\na,no,50,west,2024-02-01\nb,yes,70,west,2024-02-02\n",
}


@pytest.fixture
def tables(tmp_path):
    for name, nodes in NODES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "nodes.csv").write_text(nodes)
        (tmp_path / name / "edges.csv").write_text("source,target\na,b\n")
    return [load_source(tmp_path / name, None, name) for name in NODES]


def saved(tables, scaling="federated"):
    encoded = encode(tables, list(NODES), scaling)
    scaled = scale(encoded.graphs, list(NODES), encoded.encodings, "auto", scaling)
    return json.loads(json.dumps(preparations(encoded, scaled)[0].to_json()))


WRONG = [None, True, -1, 1.5, float("nan"), "text", [], {}, [None], {"a": 1}, 10**400]


def paths(content, at=()):
    if at:
        yield at
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in entries:
        yield from paths(value, (*at, key))


def replaced(content, path, value):
    content = copy.deepcopy(content)
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return content


@pytest.mark.parametrize("scaling", ["local", "federated"])
def test_preparations_with_wrong_values_are_refused_or_as_good_as_the_old(tables, scaling):
    content = saved(tables, scaling)
    draw, refused = random.Random(0), []
    for path in paths(content):
        for value in draw.sample(WRONG, 4):
            try:
                Preparation.from_json(replaced(content, path, value)).apply(tables[0])
            except InputError as error:
                refused.append(str(error))
    assert len(refused) > 100
    assert not any("\n" in sentence for sentence in refused)


@pytest.mark.parametrize(
    "key", ["format", "encoding", "scaling", "features", "feature_names", "classes", "class_names"]
)
def test_preparations_that_lack_a_key_or_have_one_too_many_are_refused(tables, key):
    content = saved(tables)
    with pytest.raises(InputError, match="saved preparation cannot be used"):
        Preparation.from_json({name: value for name, value in content.items() if name != key})
    with pytest.raises(InputError, match="saved preparation cannot be used"):
        Preparation.from_json({**content, "more": 1})


INCONSISTENT = {
    ("features",): 9,
    ("feature_names", 0): "other",
    ("class_names", 0): "yes",
    ("positive",): "none",
    ("scaling", "columns", 0): 1,
    ("scaling", "columns", 1): 99,
    ("scaling", "mean"): [0.0],
    ("scaling", "deviation", 0): -1.0,
    ("scaling", "mean", 0): float("inf"),
    ("encoding", "columns", 0, "name"): "branch",
    ("encoding", "columns", 1, "buckets"): 5,
    ("encoding", "schema"): {"unknown": 1},
}


@pytest.mark.parametrize("path", INCONSISTENT, ids=str)
def test_preparations_that_contradict_themselves_are_refused(tables, path):
    content = saved(tables)
    Preparation.from_json(content)
    with pytest.raises(InputError, match="saved preparation"):
        Preparation.from_json(replaced(content, path, INCONSISTENT[path]))
