"""Figures for papers: fonts embed, nothing is cut off, series can be told apart, and they show what was measured."""

import re

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from graft.errors import InputError
from graft.experiments.comparison.comparison import Comparison
from graft.experiments.reports.colours import PALETTE
from graft.experiments.reports.paper_figures import (
    client_gains,
    curve_of,
    plot_cost,
    plot_curves,
    plot_gains,
    plot_ranks,
    plot_scores,
    save_figure,
)
from graft.experiments.reports.paper_style import ONE_COLUMN, STYLE, TWO_COLUMNS, looks
from tests.experiments.comparison.made_up import made_up, made_up_run

DATA = ("cora", "a citation graph with a long name", "photo", "cs")


def scores(methods=("local", "fedavg", "fedprox"), data=DATA, seeds=3):
    return {
        (method, name): [0.5 + 0.05 * index + 0.013 * seed * (index + 1) for seed in range(seeds)]
        for index, method in enumerate(methods)
        for name in data
    }


def many_rows(rows=12):
    """A comparison with more rows than colours, one of them with a long name."""
    runs = [
        made_up_run("fedprox", name, seed, 0.5 + 0.01 * row + 0.001 * seed, settings={"mu": row, "nothing": "x" * 20})
        for row in range(rows)
        for name in DATA
        for seed in range(2)
    ]
    return Comparison([*runs, *(made_up_run("local", name, seed, 0.4) for name in DATA for seed in range(2))])


FIGURES = {
    "scores": plot_scores,
    "curves": plot_curves,
    "cost": plot_cost,
    "ranks": plot_ranks,
    "gains": lambda comparison: plot_gains(comparison, "local"),
}


def texts_of(figure):
    """The texts that are seen; ticks beyond the ends of an axis are not."""
    beyond = set()
    for axis in (axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)):
        low, high = sorted(axis.get_view_interval())
        labels = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        beyond |= {label for place, label in labels if not low <= place <= high or not axis.axes.axison}
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in beyond]


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
@pytest.mark.parametrize("make", [lambda: made_up(scores()), many_rows], ids=["few rows", "many rows"])
def test_nothing_is_cut_off_and_no_names_overlap(draw, make):
    figure = draw(make())
    figure.draw_without_rendering()
    edges = figure.bbox
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
    assert len(boxes) > 5
    for text, box in boxes:
        assert edges.x0 - 0.5 <= box.x0 <= box.x1 <= edges.x1 + 0.5, text
        assert edges.y0 - 0.5 <= box.y0 <= box.y1 <= edges.y1 + 0.5, text
    names = [box for text, box in boxes if re.search("fedprox|local|fedavg", text)]
    assert not any(first.overlaps(second) for index, first in enumerate(names) for second in names[index + 1 :])


def test_a_label_outside_would_be_seen():
    figure = plot_ranks(made_up(scores()))
    figure.axes[0].text(10, 0, "outside")
    figure.draw_without_rendering()
    assert any(text.get_window_extent().x1 > figure.bbox.x1 for text in texts_of(figure))


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_fonts_are_embedded(draw, tmp_path):
    content = save_figure(draw(made_up(scores(data=DATA[:2], seeds=2))), tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in content  # TrueType, Type 42
    assert b"/Type3" not in content


def test_fonts_would_be_of_type_3_without_the_style(tmp_path):
    figure = plot_ranks(made_up(scores()))
    figure.savefig(tmp_path / "ours.pdf")  # by anybody
    assert b"/Type3" not in (tmp_path / "ours.pdf").read_bytes()
    Figure.savefig(figure, tmp_path / "plain.pdf")
    assert b"/Type3" in (tmp_path / "plain.pdf").read_bytes()


def test_a_notebook_shows_a_figure_without_pyplot():
    assert plot_ranks(made_up(scores()))._repr_png_().startswith(b"\x89PNG")


def test_the_same_figure_gives_the_same_file(tmp_path):
    for ending in ("pdf", "png"):
        first, second = (save_figure(plot_ranks(made_up(scores())), tmp_path / f"{name}.{ending}") for name in "ab")
        assert first.read_bytes() == second.read_bytes()
    other = save_figure(plot_ranks(made_up(scores(("local", "fedavg")))), tmp_path / "other.png")
    assert other.read_bytes() != first.read_bytes()


def test_pyplot_and_its_settings_are_left_alone():
    before = dict(matplotlib.rcParams)
    plot_scores(made_up(scores()))
    assert dict(matplotlib.rcParams) == before
    assert before["pdf.fonttype"] != STYLE["pdf.fonttype"]


def test_no_two_series_look_alike_and_at_most_eight_are_solid():
    drawn = looks([f"method {number}" for number in range(20)], ["centralised", "majority"])
    assert len(set(drawn.values())) == 22
    assert sum(look.dash == "solid" for look in drawn.values()) == len(PALETTE) == 8
    lines = [line for line in plot_curves(many_rows()).axes[0].lines if len(line.get_xdata()) > 2]
    assert len({(line.get_color(), line.get_linestyle(), str(line._dash_pattern)) for line in lines}) == 13


def test_one_panel_fits_a_column_and_several_the_page():
    assert plot_scores(made_up(scores(data=DATA[:1]))).get_figwidth() == ONE_COLUMN
    assert plot_curves(made_up(scores())).get_figwidth() == TWO_COLUMNS
    assert plot_curves(made_up(scores()), width=5).get_figwidth() == 5


def test_filled_dots_are_best_or_not_distinguishable():
    table = {
        ("fedavg", "cora"): [0.50, 0.60, 0.70, 0.80, 0.90],
        ("fedprox", "cora"): [0.55, 0.55, 0.75, 0.75, 0.95],
        ("local", "cora"): [0.20, 0.31, 0.40, 0.52, 0.60],
        ("majority", "cora"): [0.1] * 5,
    }
    (panel,) = plot_scores(made_up(table)).axes
    means = [line for line in panel.lines if line.get_marker() in ("o", "D")]
    assert [line.get_markerfacecolor() != "white" for line in means] == [True, True, False, False]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["fedavg", "fedprox", "local", "majority"]


def test_a_curve_is_the_mean_of_the_rounds_that_all_seeds_have():
    runs = [made_up_run("fedavg", "cora", 0, 0.6), made_up_run("fedavg", "cora", 1, 0.9)]
    curve = curve_of(Comparison(runs), "fedavg", "cora")
    assert curve.rounds == [1, 2, 3, 4]
    assert curve.means == pytest.approx([25, 50, 75, 75])
    assert curve.deviations[-1] == pytest.approx(21.21, abs=0.01)
    assert curve.megabytes == [1, 2, 3, 4]
    assert curve.best == 3
    del runs[0].rounds[2:]  # as if it had been stopped early
    assert curve_of(Comparison(runs), "fedavg", "cora").rounds == [1, 2]
    assert curve_of(Comparison(runs), "fedavg", "cora").best == 2  # the last that all have


def test_what_sends_nothing_is_a_line_across():
    runs = [made_up_run(method, "cora", 0, 0.6, megabytes=size) for method, size in (("local", 0), ("fedavg", 2))]
    (panel,) = plot_cost(Comparison(runs)).axes
    assert [list(line.get_xdata()) for line in panel.lines] == [[0, 1], [2, 4, 6, 8]]
    assert panel.get_xscale() == "log"
    (panel,) = plot_cost(Comparison(runs[:1])).axes
    assert panel.get_xscale() == "linear"


def test_gains_are_of_the_same_client_seed_and_partition():
    comparison = made_up({("local", "cora"): [0.5, 0.6], ("fedavg", "cora"): [0.6, 0.5]})
    assert client_gains(comparison, "fedavg", "local", "cora") == pytest.approx([0.1] * 3 + [-0.1] * 3)
    runs = [made_up_run("local", "cora", 0, 0.5), made_up_run("fedavg", "cora", 0, 0.6, partition="f" * 64)]
    with pytest.raises(InputError, match="No run has scores of clients"):
        plot_gains(Comparison(runs), "local")


def test_figures_without_anything_to_draw_are_refused():
    with pytest.raises(InputError, match="compare on several"):
        plot_ranks(made_up(scores(data=DATA[:1])))
    with pytest.raises(InputError, match="round by round"):
        plot_curves(Comparison(made_up(scores()).runs, "auroc"))
