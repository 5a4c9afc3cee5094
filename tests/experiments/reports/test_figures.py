"""Figures: what is drawn can be told apart and is not cut off."""

import re
from xml.etree import ElementTree

import pytest

from graft.experiments.reports.figures import COLOURS, bars, curves, lines

NAMES = [f"method{number}" for number in range(len(COLOURS) + 3)]


@pytest.mark.parametrize(
    "figure",
    [
        lines([("Cora", {name: [(0.0, 80.0, 1.0), (1.0, 70.0, 1.0)] for name in NAMES})], "share"),
        curves([("Cora", {name: [(0.0, 80.0), (1.0, 70.0)] for name in NAMES})], "round"),
    ],
    ids=["lines", "curves"],
)
def test_no_two_curves_look_alike(figure):
    drawn = re.findall(r"<polyline [^>]*", figure)
    looks = [re.sub(r'points="[^"]*"', "", one).replace("/", "").strip() for one in drawn]
    assert len(looks) == len(set(looks)) == len(NAMES)
    assert ElementTree.fromstring(figure).tag.endswith("svg")


@pytest.mark.parametrize("letters", [5, 14, 40])
def test_labels_of_bars_end_within_the_picture(letters):
    figure = bars([("Cora", {"a" * letters: (80.0, 1.0), "b": (70.0, 1.0)})])
    height = float(ElementTree.fromstring(figure).attrib["height"])
    (foot,) = (float(y) for _, y, text in re.findall(r"translate\((\S+) (\S+)\) [^>]*>(a+)<", figure))
    assert foot + 0.87 * 6.5 * letters < height  # letters of 12 units are about 6.5 wide, at 60 degrees
