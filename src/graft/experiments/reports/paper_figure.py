"""A Matplotlib figure that keeps its style when it is saved. Imports Matplotlib, so it is imported where one draws."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from graft.experiments.reports.paper_style import STYLE


class PaperFigure(Figure):
    """A figure whose files embed their fonts, whoever saves it, and that a notebook shows without pyplot."""

    def savefig(self, *arguments: Any, **options: Any) -> None:
        """Saves the figure as Matplotlib does, with fonts of Type 42."""
        with matplotlib.rc_context(STYLE):
            super().savefig(*arguments, **options)

    def _repr_png_(self) -> bytes:
        """Returns the picture for a notebook."""
        content = BytesIO()
        self.savefig(content, format="png", dpi=150)
        return content.getvalue()
