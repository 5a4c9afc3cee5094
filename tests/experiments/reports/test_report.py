"""What the report says, by hand."""

import itertools
import re

import pytest

from graft.experiments.reports.client_sections import verdict_table
from graft.experiments.reports.data_sections import agreement_table
from graft.experiments.reports.links import arrow, link_networks, link_weights, network, weight_from_others
from graft.experiments.reports.method_sections import method_details
from graft.experiments.reports.pages import Page, Section, render
from graft.experiments.reports.run_page import best_round_of_each_client, busiest_peers
from graft.experiments.reports.summary_table import readable_bytes
from graft.experiments.verdicts import Verdict


def html_of(blocks):
    """Returns the HTML of some blocks, without what is around them."""
    text = render(Page("title", sections=[Section("section", blocks)]))
    return text[text.index("<main>") : text.index("</main>")]


def test_each_client_may_stop_at_its_own_best_validation_round():
    rounds = [
        {"per_client": {"validation": [0.9, 0.1, None], "test": [0.8, 0.2, 0.5]}},
        {"loss": 1.0},  # a round that was not evaluated
        {"per_client": {"validation": [0.5, 0.7, None], "test": [1.0, 0.6, 0.5]}},
    ]
    assert best_round_of_each_client(rounds) == pytest.approx((0.8 + 0.6) / 2)
    assert best_round_of_each_client([]) is None


def test_numbers_are_written_as_people_read_them():
    assert [readable_bytes(count) for count in (0, 999, 1000, 3_855_720, 5e9)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "3.9 MB",
        "5.0 GB",
    ]


def texts_of(table):
    return [[cell.text for cell in row] for row in table.cells]


def test_what_a_method_noted_is_shown_round_by_round_in_short():
    rounds = [
        {"details": {"moment_bytes": 1000, "discrepancy": [0.5, 1.5], "margin": None, "kept": True}},
        {"details": {"moment_bytes": 3000, "discrepancy": [[3.0], [float("nan")]], "words": "none"}},
        {"details": {}},
    ]
    (table,) = method_details(rounds)
    assert texts_of(table) == [
        ["moment bytes", "1.0 kB", "3.0 kB", "2.0 kB"],
        ["discrepancy", "1", "3", "2"],
        ["kept", "1", "1", "1"],
    ]
    assert method_details([{"details": {}}, {"round": 2}]) == []


LINKS = [[0, 0, 0.5], [0, 1, 0.5], [1, 1, 1.0], [2, 0, 0.25], [2, 1, 0.75]]


def test_weights_that_others_give_are_summed_without_the_own():
    weights = link_weights(LINKS)
    assert weights == {(0, 0): 0.5, (0, 1): 0.5, (1, 1): 1.0, (2, 0): 0.25, (2, 1): 0.75}
    assert weight_from_others(weights) == {0: 0.25, 1: 1.25}


def test_weights_of_parts_are_their_mean():
    parts = [[0, 1, 1.0, 0], [0, 0, 1.0, 1], [1, 1, 1.0, 0], [1, 1, 0.5, 1]]
    assert link_weights(parts) == {(0, 1): 0.5, (0, 0): 0.5, (1, 1): 0.75}


def attributes(picture, name):
    return [float(value) for value in re.findall(rf' {name}="([\d.]+)"', picture)]


def test_circles_grow_with_the_weight_others_give_and_arrows_with_the_weight_of_the_link():
    picture = network("round 1", link_weights(LINKS), range(3), [0, 1], thickest=0.75, largest=1.25)
    radii = attributes(picture, "r")
    assert len(radii) == 3
    assert radii[1] > radii[0] > radii[2]
    assert attributes(picture, "stroke-width") == sorted(attributes(picture, "stroke-width"))
    assert len(attributes(picture, "stroke-width")) == picture.count("<path") == 3
    assert picture.count("Q") == 3  # a bent line for each link, and none from a peer to itself
    assert picture.count('class="peer absent"') == 1  # peer 2 was not there
    assert "peer 2 hears 0 (0.25), 1 (0.75)" in picture
    assert 'aria-label="round 1"' in picture


@pytest.mark.parametrize("peers", [1, 2, 3, 100])
def test_peers_stand_inside_the_picture_and_apart(peers):
    picture = network("round 1", {}, range(peers), range(peers), thickest=1.0, largest=1.0)
    places = list(zip(attributes(picture, "cx"), attributes(picture, "cy"), strict=True))
    assert len(places) == peers
    assert all(20 < value < 300 for place in places for value in place)
    gaps = [abs(complex(*one) - complex(*other)) for one, other in itertools.pairwise(places)]
    assert all(space > 2 * max(attributes(picture, "r")) for space in gaps)


def test_an_arrow_ends_at_the_rim_and_one_back_takes_another_way():
    there, back = arrow(0j, 100 + 0j, 5, 10, 4), arrow(100 + 0j, 0j, 10, 5, 4)
    start, bend, tip = re.match(r"M(.+)Q(\S+ \S+) (\S+ \S+)M", there).groups()
    assert abs(complex(*map(float, start.split()))) == pytest.approx(5, abs=0.1)
    assert abs(100 - complex(*map(float, tip.split()))) == pytest.approx(10, abs=0.1)
    assert bend == "50.0 10.0"
    assert "Q50.0 -10.0" in back


def test_rounds_are_first_middle_and_last_unless_asked_for():
    rounds = [{"round": n, "links": {"mix": LINKS}, "participants": [0, 1, 2]} for n in range(1, 101)]

    def titles(pictures):
        return re.findall('aria-label="([^"]+)"', "".join(pictures[0].svg))

    assert titles(link_networks(rounds, range(3))) == ["round 1", "round 50", "round 100"]
    assert titles(link_networks(rounds[:1], range(3))) == ["round 1"]
    some = link_networks(rounds, range(3), [7, 200])
    assert titles(some) == ["round 7"]
    assert "No links are on record for round 200." in some[0].note
    rounds[0]["links"]["mix 2"] = LINKS
    assert titles(link_networks(rounds, range(3), [1])) == ["round 1, mix", "round 1, mix 2"]
    assert link_networks([{"round": 1}], range(3)) == []  # a method with a server


def test_one_scale_serves_all_rounds():
    strong, weak = ([[0, 1, weight], [1, 1, 1.0]] for weight in (1.0, 0.1))
    rounds = [{"round": n, "links": {"mix": links}, "participants": [0, 1]} for n, links in ((1, strong), (2, weak))]
    both = attributes("".join(link_networks(rounds, range(2))[0].svg), "stroke-width")
    assert both == [3.0, 0.7]


def test_the_busiest_peer_of_any_round_is_named():
    rounds = [{"details": {"busiest_sender_bytes": n, "busiest_receiver_bytes": 5000}} for n in (10, 2000, 30)]
    assert [value for _, value in busiest_peers(rounds)] == ["2.0 kB", "5.0 kB"]
    assert busiest_peers([{"details": {}}]) == []  # with a server


def test_verdicts_name_the_client_and_say_what_joining_changes():
    text = html_of(
        verdict_table([Verdict("<alpha>", "auprc", 40, 0.5, 0.625, 0.125, 0.01, 0.25, "joining helps", -0.02)])
    )
    for part in ("&lt;alpha&gt;", "50.0 %", "62.5 %", "+12.5", "+1.0 to +25.0", "joining helps", "-2.0"):
        assert part in text
    assert verdict_table([]) == []


def test_what_was_told_before_training_is_listed_with_what_it_reveals():
    sent = {"moments/mean": {"up_bytes": 48, "down_bytes": 96, "reveals": "mean of every numeric column"}}
    text = html_of(agreement_table(sent))
    for part in ("moments/mean", "48 bytes", "96 bytes", "mean of every numeric column"):
        assert part in text
    assert agreement_table({}) == []
