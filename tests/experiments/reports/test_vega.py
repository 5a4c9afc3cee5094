"""The colours of figures, and the script that draws them."""

import itertools
import sys

import numpy as np
import pytest

from graft.errors import InputError, RunError
from graft.experiments.reports import vega
from graft.experiments.reports.charts import Point, curves
from graft.experiments.reports.colours import DARK, LIGHT, PALETTE

# How people without one kind of cone see linear RGB (Machado, Oliveira and Fernandes 2009).
SEEN = {
    "all cones": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
OKLAB = (
    np.array(
        [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.6299787]]
    ),
    np.array(
        [
            [0.21045426, 0.79361779, -0.00407205],
            [1.9779985, -2.42859221, 0.45059371],
            [0.02590404, 0.78277177, -0.80867577],
        ]
    ),
)


def linear(colour):
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def seen(colour, eyes):
    cones, lab = OKLAB
    return lab @ np.cbrt(cones @ np.clip(np.array(SEEN[eyes]) @ linear(colour), 0, 1))


def contrast(colour, ground):
    high, low = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (colour, ground)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("eyes", SEEN)
def test_colours_can_be_told_apart_by_everybody(eyes):
    closest = min(np.linalg.norm(seen(a, eyes) - seen(b, eyes)) for a, b in itertools.combinations(PALETTE, 2))
    assert len(set(PALETTE)) == 8
    assert closest > 0.07
    red, green = "#d62728", "#2ca02c"  # of a palette that was not made for everybody
    assert (np.linalg.norm(seen(red, eyes) - seen(green, eyes)) > 0.3) == (eyes in ("all cones", "no blue"))


@pytest.mark.parametrize("ground", [LIGHT["paper"], DARK["paper"]])
def test_colours_stand_out_from_light_and_dark_ground(ground):
    assert min(contrast(colour, ground) for colour in PALETTE) > 2.2
    assert contrast("#F0E442", LIGHT["paper"]) < 1.5  # the yellow that was left out


def test_the_script_is_made_once_and_a_cut_one_again(tmp_path, monkeypatch):
    made = []

    class Converter:
        get_vegalite_versions = staticmethod(lambda: ["5.8", "5.21", "6.1"])

        @staticmethod
        def javascript_bundle(vl_version):
            made.append(vl_version)
            return "draw();"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vega, "load_converter", lambda: Converter)
    monkeypatch.setattr(vega, "version", lambda _: "1.0")
    assert vega.javascript() == vega.javascript() == f"draw();{vega.END}"
    assert made == ["6.1"]
    (tmp_path / "graft" / "vega-1.0.js").write_text("dra")
    assert vega.javascript().startswith("draw();")
    assert len(made) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such-folder")  # which cannot be written to
    assert vega.javascript().startswith("draw();")


def test_without_vl_convert_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InputError, match="pip install vl-convert-python"):
        vega.to_svg({})


def test_figures_are_drawn_as_svg_in_the_theme():
    pytest.importorskip("vl_convert")
    svg = vega.to_svg(curves({"<b>": [Point(1, 2), Point(2, 3)], "other": [Point(1, 1)]}, "round", "accuracy"))
    assert svg.startswith("<svg")
    assert PALETTE[0].lower() in svg.lower()
    assert "&lt;b&gt;" in svg
    with pytest.raises(RunError, match="A figure could not be drawn"):
        vega.to_svg({"mark": "nonsense"})
