"""A hook of MkDocs: equations become MathML, which browsers draw by themselves; lines do not break within a result."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

# What pymdownx.arithmatex makes of $...$ and $$...$$.
EQUATION = re.compile(r'<(span|div) class="arithmatex">(\\\(|\\\[)(.*?)(\\\)|\\\])</\1>', re.DOTALL)
RESULT = re.compile(r"\d ± (?=\d)|\([\d.]+, [+-][\d.]+\)")  # as 80.12 ± 0.64 (80.71, -0.59)
NORM = ("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')  # both bars of a norm are of one height
UNKNOWN = re.compile(r"\\[A-Za-z]+")  # a command that was not understood is left as it is
DISPLAY = {"span": "inline", "div": "block"}


def on_page_content(content: str, page: Page, **_: object) -> str:
    """Replace the equations of a page, and keep numbers with their deviations."""

    def to_mathml(match: re.Match[str]) -> str:
        latex = html.unescape(match[3]).strip()
        try:
            mathml = convert(latex, display=DISPLAY[match[1]]).replace(*NORM)
        except Exception as error:
            raise PluginError(f"{page.file.src_uri}: the equation {latex!r} cannot be read: {error!r}") from error
        unknown = UNKNOWN.search(mathml)
        if unknown:
            raise PluginError(f"{page.file.src_uri}: {unknown[0]} in the equation {latex!r} is not known.")
        return mathml

    return RESULT.sub(lambda match: match[0].replace(" ", "\u00a0"), EQUATION.sub(to_mathml, content))
