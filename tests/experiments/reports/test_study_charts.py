"""Figures of studies: what is drawn can be told apart, says what it shows and is not cut off."""

import re
from xml.etree import ElementTree

import pytest

from graft.experiments.reports.colours import PALETTE
from graft.experiments.reports.study_charts import (
    CurvePoint,
    Heat,
    Score,
    heat_panels,
    round_panels,
    score_panels,
    setting_panels,
    sheet,
)
from graft.experiments.reports.vega import to_svg

NAMES = [f"method{number}" for number in range(len(PALETTE) + 3)]
COLUMNS = {"cora-5": ["local", "fedavg"], "cora-10": ["local", "fedavg"]}
# A shift, or a turn too, of a group of the picture.
MOVE = re.compile(r"translate\(([-\d.]+),([-\d.]+)\)(?: rotate\(([-\d.]+)\))?")


def texts(svg):
    """The texts of a picture with the point where they are anchored, in pixels from its corner."""
    anchored = []

    def walk(element, x, y, turned):
        if move := MOVE.match(element.get("transform", "")):
            x, y, turned = x + float(move[1]), y + float(move[2]), turned or bool(move[3])
        if element.tag.endswith("text") and element.text:
            anchored.append((element.text, x, y, element.get("text-anchor", "start"), turned))
        for child in element:
            walk(child, x, y, turned)

    walk(ElementTree.fromstring(svg), 0.0, 0.0, False)
    return anchored


def words(svg):
    return [text for text, *_ in texts(svg)]


def outside(svg):
    """The texts that leave the picture: letters of 11 pixels are about 5.5 wide."""
    picture = ElementTree.fromstring(svg)
    width, height = float(picture.get("width")), float(picture.get("height"))
    cut = []
    for text, x, y, anchor, turned in texts(svg):
        length = 5.5 * len(text)
        left = x - {"start": 0, "middle": length / 2, "end": length}[anchor]
        if not turned and not (left >= -1 and left + length <= width + 1 and 0 <= y <= height):
            cut.append(text)
    return cut


def strokes(svg):
    """The colours and dashes of all curves."""
    groups = [group for group in ElementTree.fromstring(svg).iter() if "mark-line role-mark" in group.get("class", "")]
    return {(path.get("stroke"), path.get("stroke-dasharray", "")) for group in groups for path in group}


def curves(names=NAMES):
    return {name: [CurvePoint(1, 70 + i, 1.0), CurvePoint(2, 75 + i, 1.0)] for i, name in enumerate(names)}


@pytest.mark.parametrize(
    "panels",
    [setting_panels({"cora": curves()}, "share", "accuracy"), round_panels({"cora": curves()}, "accuracy")],
    ids=["settings", "rounds"],
)
def test_no_two_curves_look_alike_and_none_is_solid_after_the_eighth(panels):
    svg = to_svg(sheet(panels))
    looks = strokes(svg)
    assert len(looks) == len(NAMES)
    solid = [colour for colour, dashes in looks if dashes in ("", "1,0")]
    assert {colour.lower() for colour in solid} == {colour.lower() for colour in PALETTE}
    assert [text for text in words(svg) if text in NAMES] == NAMES  # the legend has them in their order


def test_the_same_method_has_one_colour_in_all_panels_and_one_legend():
    svg = to_svg(sheet(round_panels({"cora": curves(["a", "b"]), "photo": curves(["b"])}, "accuracy")))
    assert len(strokes(svg)) == 2
    assert words(svg).count("b") == 1


def test_scores_show_every_row_in_order_with_the_papers_number():
    scores = {"local": Score(70, 1.5), "fedavg": Score(80, 0.0, paper=82.5)}
    [panel] = score_panels({"cora-10": scores}, "test accuracy, %")
    assert panel.body["data"]["values"] == [
        {"row": "local", "series": "ours", "x": 70, "deviation": 1.5, "low": 68.5, "high": 71.5},
        {"row": "fedavg", "series": "ours", "x": 80},
        {"row": "fedavg", "series": "paper", "x": 82.5},
    ]
    svg = to_svg(sheet([panel]))
    shown = words(svg)
    assert [text for text in shown if text in scores] == ["local", "fedavg"]
    assert {"cora-10", "ours", "paper", "test accuracy, %"} <= set(shown)
    without = to_svg(sheet(score_panels({"cora-10": {"local": Score(70, 1.5)}}, "test accuracy, %")))
    assert not {"ours", "paper"} & set(words(without))


def test_a_later_version_of_the_paper_has_a_mark_of_its_own():
    [panel] = score_panels({"cora-5": {"local": Score(80.0), "fedavg": Score(81.0, 0.5, 79.0, 78.0)}}, "accuracy")
    marks = [(value["series"], value["x"]) for value in panel.body["data"]["values"] if value["row"] == "fedavg"]
    assert marks == [("ours", 81), ("paper", 79), ("paper, later version", 78)]
    assert {"paper", "paper, later version"} <= set(words(to_svg(sheet([panel]))))


@pytest.mark.parametrize("letters", [1, 14, 30])
def test_nothing_is_cut_off(letters):
    names = [f"{'m' * letters}{number}" for number in range(12)]
    pictures = [
        score_panels({column: {name: Score(50, 2, 51) for name in names} for column in COLUMNS}, "test accuracy, %"),
        setting_panels({column: curves(names) for column in COLUMNS}, "lambda", "test accuracy, %"),
        round_panels({column: curves(names) for column in COLUMNS}, "test accuracy, %"),
        heat_panels([Heat("map", names, names[:3], [[0.5] * 3] * 12)]),
    ]
    for panels in pictures:
        assert outside(to_svg(sheet(panels))) == []


def test_a_text_that_leaves_the_picture_is_seen():
    svg = '<svg width="50" height="20"><g transform="translate(10,5)"><text>{}</text></g></svg>'
    assert outside(svg.format("short")) == []
    assert outside(svg.format("much too long")) == ["much too long"]


def test_panels_stand_in_columns_with_their_axes_in_line():
    panels = round_panels({f"data{number}": curves(["a"]) for number in range(5)}, "accuracy")
    positions = {text: (x, y) for text, x, y, *_ in texts(to_svg(sheet(panels, columns=3))) if text.startswith("data")}
    across, down = ([positions[f"data{number}"][axis] for number in range(5)] for axis in (0, 1))
    assert down[0] == down[1] == down[2] < down[3] == down[4]
    assert across[0] == across[3] < across[1] == across[4] < across[2]


def test_values_of_a_setting_are_evenly_spaced_and_sorted():
    curve = [CurvePoint(10, 70, 1), CurvePoint(0, 60, 1), CurvePoint(0.1, 65, 1)]
    svg = to_svg(sheet(setting_panels({"cora": {"mu": curve}}, "mu", "accuracy")))
    x = {text: x for text, x, *_ in texts(svg) if text in ("0", "0.1", "10")}
    assert x["0.1"] - x["0"] == pytest.approx(x["10"] - x["0.1"])


def test_bands_are_drawn_for_a_few_curves_only():
    few, many = (round_panels({"cora": curves(NAMES[:count])}, "accuracy")[0] for count in (4, 5))
    kinds = [[layer["mark"]["type"] for layer in panel.body["layer"]] for panel in (few, many)]
    assert kinds == [["area", "line"], ["line"]]


def test_a_map_leaves_what_is_unknown_blank_and_prints_labels():
    heat = Heat("a < b", ["0", "1"], ["x"], [[0.25], [None]])
    [panel] = heat_panels([heat])
    assert [value["label"] for value in panel.body["data"]["values"]] == ["0.25"]
    svg = to_svg(sheet([panel]))
    assert "a &lt; b" in svg
    assert words(svg).count("0.25") == 1
    labelled = Heat("nodes", ["0"], ["x"], [[1.0]], [[2708]])
    assert "2708" in words(to_svg(sheet(heat_panels([labelled]))))
