"""The colours of all figures: eight that people with any kind of colour vision can tell apart, on white and on dark."""

from __future__ import annotations

# Six of Okabe and Ito's; their black and yellow vanish on dark or on white, so violet and grey stand in for them.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#9C6BF0", "#706464")

# What pages and figures are drawn with, on either ground; `low` and `high` are the ends of maps.
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1d242c",
    "soft": "#5a6572",
    "rule": "#e4e8ec",
    "low": "#edf3f8",
    "high": "#00568c",
}
DARK = {
    "paper": "#14181d",
    "ink": "#e4e8ec",
    "soft": "#9aa5b1",
    "rule": "#2b323a",
    "low": "#1c252e",
    "high": "#78c4f4",
}
