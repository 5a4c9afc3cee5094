"""Vega-Lite for all figures: one theme, figures as SVG for files, and the JavaScript that draws them in a page."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.errors import InputError, RunError
from graft.experiments.reports.colours import LIGHT, PALETTE
from graft.files import read_text, write_text

if TYPE_CHECKING:
    from types import ModuleType

Spec = dict[str, Any]  # a Vega-Lite specification

MISSING = "Figures need vl-convert, which is not installed: pip install vl-convert-python."
END = "\n// end of the bundle\n"  # tells a whole script from one that a full disk cut off
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_AXIS = {
    "domain": False,
    "ticks": False,
    "grid": True,
    "gridColor": LIGHT["rule"],
    "labelColor": LIGHT["soft"],
    "labelFontSize": 11,
    "labelPadding": 6,
    "titleColor": LIGHT["soft"],
    "titleFontSize": 11,
    "titleFontWeight": "normal",
    "titlePadding": 8,
}
_SHADES = [LIGHT["low"], LIGHT["high"]]
THEME: Spec = {
    "background": LIGHT["paper"],
    "font": FONT,
    "padding": 4,
    "range": {"category": list(PALETTE), "heatmap": _SHADES, "ramp": _SHADES},
    "view": {"stroke": None},
    "axis": _AXIS,
    "axisX": {"grid": False, "domain": True, "domainColor": LIGHT["rule"]},
    "legend": {
        "title": None,
        "titleColor": LIGHT["soft"],
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "orient": "top",
        "labelColor": LIGHT["ink"],
        "labelFontSize": 11.5,
        "labelLimit": 260,
        "symbolType": "stroke",
        "symbolStrokeWidth": 3,
        "columnPadding": 16,
        "offset": 4,
    },
    "title": {"anchor": "start", "color": LIGHT["ink"], "fontSize": 12.5, "fontWeight": 600, "offset": 10},
    "header": {"labelColor": LIGHT["ink"], "labelFontSize": 12, "labelFontWeight": 600, "title": None},
    "text": {"color": LIGHT["ink"], "fontSize": 11},
    "line": {"strokeWidth": 2, "strokeCap": "round", "strokeJoin": "round"},
    "bar": {"cornerRadiusEnd": 2},
    "rule": {"color": LIGHT["soft"]},
    "style": {  # colours of the ground and of what is written on it, by name: pages change them in the dark
        "soft": {"color": LIGHT["soft"]},
        "ink": {"color": LIGHT["ink"]},
        "paper": {"color": LIGHT["paper"]},
        "soft-line": {"stroke": LIGHT["soft"]},
        "paper-line": {"stroke": LIGHT["paper"], "strokeWidth": 1.5},
    },
}


def to_svg(spec: Spec) -> str:
    """Returns a figure as SVG, in Graft's theme; what its own `config` says wins."""
    converter = load_converter()
    try:
        svg: str = converter.vegalite_to_svg(spec, vl_version=newest(converter), config=THEME)
    except ValueError as error:
        raise RunError(f"A figure could not be drawn: {' '.join(str(error).split())[:300]}") from error
    return svg


def javascript() -> str:
    """Returns Vega, Vega-Lite and Vega-Embed as one script; made once for each version, then read from the cache."""
    try:
        file = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    except PackageNotFoundError:
        raise InputError(MISSING) from None
    with suppress(OSError, UnicodeDecodeError):
        script = read_text(file)
        if script.endswith(END):
            return script
    converter = load_converter()
    script = str(converter.javascript_bundle(vl_version=newest(converter))) + END
    with suppress(OSError, RunError):  # a home that cannot be written to makes pages slow, not impossible
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, script)
    return script


def cache_folder() -> Path:
    """Returns Graft's folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "graft"


def load_converter() -> ModuleType:
    """Returns vl_convert; without it there is one sentence."""
    try:
        import vl_convert
    except ImportError:
        raise InputError(MISSING) from None
    return vl_convert


def newest(converter: ModuleType) -> str:
    """Returns the newest Vega-Lite that this vl_convert knows."""
    versions: list[str] = converter.get_vegalite_versions()
    return max(versions, key=lambda text: [int(part) for part in text.split(".")])
