"""Who hears whom: the graphs, the weights of their links, and links from a file."""

import itertools
import json

import numpy as np
import pytest
import torch

from graft.errors import InputError
from graft.federation import OPTIONS, TOPOLOGIES
from graft.federation.topologies import CHANGING, Topology, renormalise

MIXINGS = ("uniform", "metropolis", "push")
UNDIRECTED = ("none", "complete", "ring", "star", "regular", "random-undirected", "small-world", "matching")

every_topology = pytest.mark.parametrize("name", sorted(TOPOLOGIES))


def links(topology, peers, round=1, members=None, seed=0, **settings):
    return topology.links(round, list(range(peers)) if members is None else members, peers, seed, **settings)


def heard(name, peers, round=1, seed=0, **options):
    """Who hears whom, as a matrix of 0 and 1 without a diagonal."""
    graph = (links(Topology(name, options), peers, round, seed=seed) != 0).int()
    return graph - torch.eye(peers, dtype=torch.int32)


def degrees(name, peers, **options):
    return heard(name, peers, **options).sum(1).tolist()


@every_topology
@pytest.mark.parametrize("mixing", MIXINGS)
def test_every_topology_has_sound_weights_for_any_number_of_peers(name, mixing):
    for peers, round in itertools.product((1, 2, 3, 4, 7, 10), (1, 2, 3, 50)):
        weights = links(Topology(name, mixing=mixing), peers, round)
        assert weights.shape == (peers, peers)
        assert (weights >= 0).all()
        assert (weights.diagonal() > 0).all()
        ones = torch.ones(peers).double()
        if mixing != "push":
            assert torch.allclose(weights.sum(1), ones, atol=1e-12)
        if mixing != "uniform":
            assert torch.allclose(weights.sum(0), ones, atol=1e-12)
        if mixing == "metropolis":
            assert torch.equal(weights, weights.T)


def test_weights_of_different_mixings_differ():
    uniform, metropolis, push = (links(Topology("star", mixing=mixing), 4) for mixing in MIXINGS)
    assert not torch.equal(uniform, uniform.T)
    assert not torch.allclose(uniform.sum(0), torch.ones(4).double())
    assert not torch.allclose(push.sum(1), torch.ones(4).double())
    assert not torch.equal(metropolis, uniform)


@every_topology
def test_one_peer_is_alone(name):
    assert links(Topology(name), 1).tolist() == [[1.0]]


@every_topology
@pytest.mark.parametrize("peers", [2, 3])
def test_two_and_three_peers_meet(name, peers):
    """Whoever asks for more neighbours than there are gets all of them; with three in pairs one rests."""
    degree = heard(name, peers).sum(1)
    if name == "none":
        assert (degree == 0).all()
    elif name in ("matching", "tournament"):
        assert degree.sum() == 2
    elif peers == 2:
        assert degree.tolist() == [1, 1]
    elif name == "star":
        assert degree.tolist() == [2, 1, 1]
    elif name in ("random", "exponential"):
        assert degree.tolist() == [1, 1, 1]
    elif name != "random-undirected":
        assert degree.tolist() == [2, 2, 2]


def test_random_peers_are_half_of_all_and_one_of_two():
    assert degrees("random", 10) == [5] * 10
    assert degrees("random", 11) == [5] * 11
    assert degrees("random", 2) == [1, 1]
    assert degrees("random", 10, k=3) == [3] * 10
    assert degrees("random", 10, k=0) == [0] * 10
    assert degrees("random", 4, k=9) == [3] * 4


def test_degrees_are_as_their_names_say():
    assert degrees("none", 5) == [0] * 5
    assert degrees("complete", 5) == [4] * 5
    assert degrees("ring", 5) == [2] * 5
    assert heard("ring", 5)[0].tolist() == [0, 1, 0, 0, 1]
    assert degrees("star", 5) == [4, 1, 1, 1, 1]
    assert degrees("star", 5, centre=3) == [1, 1, 1, 4, 1]
    assert degrees("matching", 6) == [1] * 6


@pytest.mark.parametrize(("peers", "k"), [(10, 4), (10, 3), (9, 4), (7, 6), (8, 7), (6, 1), (20, 2)])
def test_a_regular_graph_gives_everybody_as_many_neighbours(peers, k):
    assert degrees("regular", peers, k=k) == [k] * peers


@pytest.mark.parametrize(("peers", "k"), [(9, 3), (5, 1), (7, 5)])
def test_where_a_regular_graph_is_impossible_one_peer_has_one_neighbour_less(peers, k):
    assert sorted(degrees("regular", peers, k=k)) == [k - 1, *[k] * (peers - 1)]


def test_a_regular_graph_is_random_and_no_circle():
    circle = ((links(Topology("small-world", {"p": 0.0}), 20) != 0).int() - torch.eye(20)).int()
    graph = heard("regular", 20)
    assert circle.sum() == graph.sum() == 80
    assert not torch.equal(graph, circle)
    assert not torch.equal(graph, heard("regular", 20, seed=1))


def test_a_small_world_is_a_circle_with_some_links_moved():
    circle, moved = heard("small-world", 30, p=0.0), heard("small-world", 30, p=0.3)
    assert (circle.sum(1) == 4).all()
    assert circle[0].nonzero().flatten().tolist() == [1, 2, 28, 29]
    assert moved.sum() == circle.sum() == 120
    kept = int((moved * circle).sum()) / 120
    assert 0.5 < kept < 0.9
    assert int((heard("small-world", 30, p=1.0) * circle).sum()) / 120 < 0.4


def test_exponential_is_heard_at_powers_of_two_in_turn():
    def reached(peers, round):
        return heard("exponential", peers, round)[:, 0].nonzero().flatten().tolist()  # who hears peer 0

    assert [reached(10, round) for round in (1, 2, 3, 4, 5)] == [[1], [2], [4], [8], [1]]
    assert [reached(9, round) for round in (1, 2, 3, 4, 5)] == [[1], [2], [4], [8], [1]]  # K' = log2(8) + 1 = 4
    assert [reached(8, round) for round in (1, 2, 3, 4)] == [[1], [2], [4], [1]]
    assert [reached(3, round) for round in (1, 2, 3)] == [[1], [2], [1]]
    assert [reached(2, round) for round in (1, 2)] == [[1], [1]]
    graph = heard("exponential", 10, round=3)
    assert (graph.sum(0) == 1).all()
    assert (graph.sum(1) == 1).all()
    assert graph[2, 8] == 1  # 8 + 4 = 12 = 2 modulo 10


def test_in_a_matching_of_an_odd_number_the_idle_peer_rotates():
    idle = [heard("matching", 5, round).sum(1).eq(0).nonzero().flatten().tolist() for round in range(1, 7)]
    assert idle == [[1], [2], [3], [4], [0], [1]]


@pytest.mark.parametrize("name", UNDIRECTED)
def test_undirected_graphs_are_mutual(name):
    graph = heard(name, 9, round=4)
    assert torch.equal(graph, graph.T)


def test_directed_graphs_are_not_mutual():
    for name in ("random", "exponential"):
        graph = heard(name, 9, round=2)
        assert not torch.equal(graph, graph.T)


def test_random_undirected_links_whoever_drew_either():
    graph = heard("random-undirected", 12, k=2)
    assert (graph.sum(1) >= 2).all()
    assert graph.sum() > 24


@every_topology
def test_every_topology_is_seeded_and_changes_with_the_rounds_only_where_stated(name):
    rounds = [heard(name, 12, round, seed=3) for round in range(1, 5)]
    again = [heard(name, 12, round, seed=3) for round in range(1, 5)]
    assert all(torch.equal(one, other) for one, other in zip(rounds, again, strict=True))
    changes = any(not torch.equal(rounds[0], other) for other in rounds[1:])
    assert changes == (name in CHANGING)
    drawn = name in ("regular", "random", "random-undirected", "small-world", "matching", "tournament")
    assert torch.equal(rounds[0], heard(name, 12, seed=4)) == (not drawn)


def test_metropolis_by_hand():
    """A path 1 - 0 - 2 is a star: degrees 2, 1, 1, so both links weigh 1 / 3."""
    weights = links(Topology("star", mixing="metropolis"), 3)
    third = 1 / 3
    assert torch.allclose(
        weights, torch.tensor([[third, third, third], [third, 2 * third, 0], [third, 0, 2 * third]]).double()
    )


def test_push_by_hand():
    """The centre sends to three, itself included; the others to the centre and themselves."""
    weights = links(Topology("star", mixing="push"), 3)
    third = 1 / 3
    assert torch.allclose(weights, torch.tensor([[third, 0.5, 0.5], [third, 0.5, 0], [third, 0, 0.5]]).double())


@pytest.mark.parametrize("mixing", MIXINGS)
def test_weights_are_among_those_who_are_there(mixing):
    members = [0, 3, 4, 8]
    weights = links(Topology("random", mixing=mixing), 10, members=members)
    assert weights.shape == (4, 4)
    whole = links(Topology("random"), 10) != 0
    if mixing != "metropolis":  # which makes links mutual
        assert torch.equal(weights != 0, whole[members][:, members])
    assert torch.allclose(weights.sum(0 if mixing == "push" else 1), torch.ones(4).double())


def test_a_star_whose_centre_is_away_is_silent():
    assert torch.equal(links(Topology("star"), 5, members=[1, 2, 4]), torch.eye(3).double())


def test_those_who_are_there_take_over_the_weight_of_those_who_are_not():
    wanted = torch.tensor([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert torch.equal(renormalise(wanted, [0, 1, 2])[:2], wanted[:2])
    assert renormalise(wanted, [0, 1, 2])[2].tolist() == [0, 0, 1]  # hears nobody, so itself
    present = renormalise(wanted[[0, 2]], [0, 2])
    assert torch.allclose(present, torch.tensor([[0.2 / 0.7, 0.5 / 0.7], [0, 1]]))
    unequal = renormalise(torch.tensor([[0.1, 0.4, 0.5], [0.0, 1.0, 0.2]]), [0, 1])  # rows that sum to something else
    assert torch.allclose(unequal, torch.tensor([[0.2, 0.8], [0.0, 1.2]]))
    by_part = renormalise(torch.stack([wanted[[0, 2]], wanted[[1, 1]]], 1), [0, 2])
    assert torch.allclose(by_part[:, 0], present)
    assert torch.equal(by_part[:, 1], torch.eye(2))  # the one it wants is away


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("torus", {}, "no topology 'torus'.*ring.*or a file"),
        ("ring", {"k": 3}, "has no option 'k': it has none"),
        ("random", {"neighbours": 3}, "no option 'neighbours': it has k"),
        ("random", {"k": -1}, "k of topology 'random' is -1.*whole number of at least 0"),
        ("random", {"k": 1.5}, "whole number"),
        ("random", {"k": "many"}, "'many'"),
        ("random", {"k": True}, "True"),
        ("regular", {"k": 0}, "at least 1"),
        ("small-world", {"p": 1.5}, "from 0 to 1"),
        ("small-world", {"p": "often"}, "from 0 to 1"),
        ("small-world", {"k": 3}, "even number"),
        ("star", {"centre": -1}, "at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(name, options, words):
    with pytest.raises(InputError, match=words):
        Topology(name, options)


def test_every_option_is_known_to_its_graph():
    for name, options in OPTIONS.items():
        for option, least in options.items():
            assert links(Topology(name, {option: least}), 6).shape == (6, 6)


def test_a_centre_beyond_the_peers_is_refused_before_the_run():
    Topology("star", {"centre": 4}).check(5, rounds=1)
    with pytest.raises(InputError, match="star of 5 peers cannot be peer 5"):
        Topology("star", {"centre": 5}).check(5, rounds=1)


# Links from a file.


@pytest.fixture
def write(tmp_path):
    def write(text, name="links.csv"):
        (tmp_path / name).write_text(text) if isinstance(text, str) else (tmp_path / name).write_bytes(text)
        return Topology(str(tmp_path / name))

    return write


def test_a_table_of_links_is_weighted_as_the_method_says(write):
    topology = write("to,from\n0,1\n1,2\n1,1\n")
    for round in (1, 7):
        weights = links(topology, 3, round)
        assert weights.tolist() == [[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]]
    pushed = links(topology, 3, mixing="push")
    assert pushed.tolist() == [[1, 0.5, 0], [0, 0.5, 0.5], [0, 0, 0.5]]
    mutual = links(topology, 3, mixing="metropolis")
    assert torch.allclose(mutual.sum(0), torch.ones(3).double())


def test_a_table_may_tell_rounds_apart(write):
    topology = write("round,to,from\n1,0,1\n2,1,0\n,0,2\n")
    assert (links(topology, 3, 1) != 0).int().tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert (links(topology, 3, 2) != 0).int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert (links(topology, 3, 3) != 0).int().tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]


def test_weights_of_a_table_are_relative(write):
    topology = write("to,from,weight\n0,0,1\n0,1,3\n1,0,2\n")
    assert links(topology, 3).tolist() == [[0.25, 0.75, 0], [1, 0, 0], [0, 0, 1]]
    assert links(topology, 3, members=[0, 2]).tolist() == [[1, 0], [0, 1]]
    pushed = links(topology, 3, mixing="push")
    assert torch.allclose(pushed, torch.tensor([[1 / 3, 1, 0], [2 / 3, 0, 0], [0, 0, 1]]).double())


def test_recorded_weights_are_taken_as_they_are(write):
    lines = [
        {"round": 1, "links": {"mix": [[0, 0, 0.1], [0, 1, 0.3], [1, 1, 1.5]]}},
        {"round": 2, "links": {"mix": [[0, 0, 1.0]], "mix 2": [[0, 1, 1.0]]}},
    ]
    topology = write("\n".join(map(json.dumps, lines)), "rounds.jsonl")
    assert links(topology, 2, exchange="mix").tolist() == [[0.1, 0.3], [0, 1.5]]
    assert links(topology, 2, exchange="another").tolist() == [[0.1, 0.3], [0, 1.5]]  # there is only one
    assert links(topology, 2, 2, exchange="mix 2").tolist() == [[0, 1], [0, 1]]
    with pytest.raises(InputError, match="no links of exchange 'another' for round 2: it has mix, mix 2"):
        links(topology, 2, 2, exchange="another")


def test_recorded_parts_come_back_apart(write):
    lines = {
        "round": 1,
        "links": {"mix": [[0, 0, 1.0, 0], [0, 1, 1.0, 1], [1, 1, 0.5, 0], [1, 0, 0.5, 0], [1, 1, 1.0, 1]]},
    }
    weights = links(write(json.dumps(lines), "rounds.jsonl"), 2, exchange="mix")
    assert weights.tolist() == [[[1, 0], [0, 1]], [[0.5, 0.5], [0, 1]]]


BAD_TABLES = {
    "": "columns to, from.*its columns are none",
    "a,b\n1,2\n": "its columns are a, b",
    "to,from\n": "holds no links",
    "to,from\n0,one\n": "'one'",
    "to,from\n0\n": "not a file of links",
    "to,from,weight\n0,1,nan\n": "from 1 to 0 has the weight nan",
    "to,from,weight\n0,1,-2\n": "weight -2",
    "to,from,weight\n0,1,\n": "not a file of links",
    b"to,from\n\xff\xfe,1\n": "not a file of links",
    b"to,from\n0,\x001\n": "not a file of links",
}
BAD_RECORDS = {
    "{}\n": "holds no links",
    "[1, 2]\n": "rounds.jsonl of a run",
    '{"round": 1, "links"': "not a file of links",
    '{"round": 1, "links": {"mix": [[0, 1]]}}': "not a file of links",
    '{"round": 1, "links": {"mix": [[0, 1, Infinity]]}}': "weight inf",
    '{"round": 1, "links": {"mix": [[0, Infinity, 1]]}}': "not a file of links",
    '{"round": 1, "links": {"mix": [[0, 1, 1, 9999999999]]}}': "part 9999999999",
    '{"round": 1, "links": [3]}': "not a file of links",
    '{"links": {"mix": [[0, 1, 1]]}}': "not a file of links",
}


@pytest.mark.parametrize(("name", "contents"), [("links.csv", BAD_TABLES), ("rounds.jsonl", BAD_RECORDS)])
def test_files_with_bad_content_get_one_sentence(name, contents, write):
    for content, words in contents.items():
        with pytest.raises(InputError, match=words) as refused:
            write(content, name).check(5, rounds=1)
        assert "\n" not in str(refused.value)


def test_a_file_must_fit_the_run(write, tmp_path):
    topology = write("to,from,round\n0,4,1\n3,0,2\n")
    topology.check(5, rounds=2)
    with pytest.raises(InputError, match="no links for round 3, but there are to be 4 rounds"):
        topology.check(5, rounds=4)
    with pytest.raises(InputError, match="names peer 4, but there are peers 0 to 3 only"):
        topology.check(4, rounds=2)
    with pytest.raises(InputError, match="takes no options"):
        Topology(str(tmp_path / "links.csv"), {"k": 1})


def test_a_file_is_read_once_a_topology_and_anew_for_the_next(write):
    first = write("to,from\n0,1\n")
    first.check(3, rounds=1)
    second = write("to,from\n0,2\n")
    assert links(first, 3)[0].tolist() == [0.5, 0.5, 0]
    assert links(second, 3)[0].tolist() == [0.5, 0, 0.5]


def test_no_caller_can_spoil_a_graph_for_the_next():
    weights = links(Topology("ring"), 5)
    weights.fill_(7)
    assert float(np.asarray(links(Topology("ring"), 5)).max()) == pytest.approx(1 / 3)
