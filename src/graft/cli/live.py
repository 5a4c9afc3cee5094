"""Rich's live display, made calm: few updates, nothing left behind when a terminal gets narrower."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType

if TYPE_CHECKING:
    from graft.cli.run_view import View


class CalmLive(Live):
    """A view that stays below whatever is printed, and is gone at the end."""

    def __init__(self, view: View, console: Console, per_second: float) -> None:
        # What is written to a standard error that goes elsewhere must arrive there.
        super().__init__(
            view, console=console, refresh_per_second=per_second, transient=True, redirect_stderr=sys.stderr.isatty()
        )
        self.view, self.drawn_width = view, console.width

    def refresh(self) -> None:
        """Draws the view anew."""
        with self._lock:
            width = self.console.width
            if width < self.drawn_width:
                self.erase_wrapped(width)
            self.drawn_width = width
            super().refresh()

    def erase_wrapped(self, width: int) -> None:
        """Erases the rows that a narrower terminal has made of long lines, which Rich would not count."""
        rows = sum(-(-cells // width) - 1 for cells in self.view.widths if cells > width)
        erase = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
        self.console.control(Control(*(erase * rows)))
