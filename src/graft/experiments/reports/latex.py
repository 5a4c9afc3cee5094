"""The tables of a comparison for a paper: LaTeX with booktabs, and a document that shows all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from graft.experiments.comparison.comparison import Comparison
from graft.experiments.comparison.conclusion import most_seeds, ranking_of
from graft.experiments.comparison.differences import (
    Difference,
    best_rows,
    compare_with,
    find_row,
    in_order,
    is_reference,
)
from graft.experiments.comparison.finished_runs import FinishedRun
from graft.experiments.comparison.statistics import NO_TEST, T_TEST, WILCOXON
from graft.experiments.reports.captions import cost_caption, differences_caption, scores_caption
from graft.experiments.reports.summary_table import total_bytes
from graft.federation.metric_names import METRICS
from graft.files import printable

MOST_COLUMNS = 6  # of data in one tabular; more go below
MOST_LINES = 44  # of a table on one page; more go into the next
LONGEST_NAME = 30  # of a row; longer ones are broken
ESCAPES = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "\N{NO-BREAK SPACE}": "~",
}
LATIN = re.compile(r"[ -~À-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿ]")  # letters that every LaTeX can set, with whatever fonts
TEST_LETTERS = {T_TEST: "$t$", WILCOXON: "$W$", NO_TEST: "--"}

Line = list[str]  # the cells of a line of a table
Group = tuple[str, list[Line]]  # a heading within a table, and the lines below it


def escape(text: str) -> str:
    """Returns a text that LaTeX prints as it is; letters that it may not have are named by their code."""
    return "".join(
        ESCAPES.get(letter) or (letter if LATIN.fullmatch(letter) else f"[U+{ord(letter):04X}]")
        for letter in printable(text)
    )


def to_latex(
    comparison: Comparison, baseline: str | None = None, *, caption: str | None = None, label: str = "tab:scores"
) -> str:
    """Returns the table of scores: a row a method, a column a data set, bold for the best and those not
    distinguishable from it, arrows for what differs from the baseline; needs booktabs alone."""
    columns = comparison.columns
    ranking = ranking_of(comparison)
    better = arrows(compare_with(comparison, baseline)) if baseline is not None else {}
    parts = [columns[start : start + MOST_COLUMNS] for start in range(0, len(columns), MOST_COLUMNS)]
    tabulars = []
    for part in parts:
        ranks = ranking.ranks if ranking and part is parts[-1] else {}
        head = ["", *map(escape, part), *(["Rank"] if ranks else [])]
        best = {column: best_rows(comparison, column) for column in part}
        rows = {
            row: [
                escape(row),
                *(score_cell(comparison, row, column, row in best[column], better) for column in part),
                *([rank_cell(row, ranks)] if ranks else []),
            ]
            for row in comparison.rows
        }
        competing = [line for row, line in rows.items() if not is_reference(comparison, row)]
        references = [line for row, line in rows.items() if is_reference(comparison, row)]
        tabulars.append(tabular(comparison.rows, head, [competing, references]))
    wide = min(len(columns), MOST_COLUMNS) > 3
    return floating(tabulars, escape(scores_caption(comparison, baseline) if caption is None else caption), label, wide)


def score_cell(comparison: Comparison, row: str, column: str, bold: bool, better: dict[tuple[str, str], str]) -> str:
    """Returns mean and deviation of a cell with its marks, and how many seeds there are where some are missing."""
    values = list(comparison.values(row, column).values())
    if not values:
        return "--"
    scale, decimals = units(comparison.metric)
    mean = number(scale * fmean(values), decimals)
    text = rf"\textbf{{{mean}}}" if bold else mean
    if len(values) > 1:
        text += rf"\,{{\scriptsize$\pm$\,{scale * stdev(values):.{decimals}f}}}"
    if len(values) < most_seeds(comparison):
        text += rf"\,{{\scriptsize({len(values)})}}"
    return text + better.get((row, column), "")


def arrows(differences: Iterable[Difference]) -> dict[tuple[str, str], str]:
    """Returns the marks of cells that differ from the baseline; they take no room, so that numbers stay in line."""
    directions = {
        (entry.row, entry.column): "uparrow" if entry.better else "downarrow"
        for entry in differences
        if entry.column is not None and entry.significant
    }
    return {key: rf"\rlap{{$^{{\{name}}}$}}" for key, name in directions.items()}


def rank_cell(row: str, ranks: dict[str, float]) -> str:
    """Returns an average rank, the best in bold; references have none."""
    if row not in ranks:
        return "--"
    text = f"{ranks[row]:.2f}"
    return rf"\textbf{{{text}}}" if ranks[row] == min(ranks.values()) else text


def differences_to_latex(comparison: Comparison, baseline: str, *, label: str = "tab:differences") -> str:
    """Returns the table of paired differences to a baseline: interval, test, p-values, and pairs won and lost."""
    baseline = find_row(comparison, baseline)
    scale, decimals = units(comparison.metric)
    groups: dict[str | None, list[Line]] = {}
    for entry in compare_with(comparison, baseline):
        paired = entry.paired
        mean = number(scale * paired.mean, decimals, plus=True)
        ends = [None if end is None else number(scale * end, decimals, plus=True) for end in (paired.low, paired.high)]
        line = [
            escape(entry.row),
            rf"\textbf{{{mean}}}" if entry.significant else mean,
            "--" if None in ends else f"[{ends[0]}, {ends[1]}]",
            TEST_LETTERS[paired.test],
            p_cell(paired.p),
            p_cell(entry.corrected_p),
            f"{paired.wins}/{paired.ties}/{paired.losses}",
        ]
        groups.setdefault(entry.column, []).append(line)
    several = len(comparison.columns) > 1
    named = [
        (escape("over all columns" if name is None else name) if several else "", lines)
        for name, lines in groups.items()
    ]
    head = ["", "Difference", r"95\,\% interval", "Test", "$p$", "Corrected", "W/T/L"]
    return grouped(comparison.rows, head, named, escape(differences_caption(comparison, baseline)), label)


def costs_to_latex(comparison: Comparison, *, label: str = "tab:cost") -> str:
    """Returns the table of what runs cost: megabytes, seconds, and at which round they were best."""
    several = len(comparison.columns) > 1
    groups = [
        (
            escape(column) if several else "",
            [
                [escape(row), *cost_cells(list(cell.values()))]
                for row in in_order(comparison)
                if (cell := comparison.cell(row, column))
            ],
        )
        for column in comparison.columns
    ]
    head = ["", "MB", "kB/round", "Seconds", "ms/round", "Rounds", "Best round"]
    return grouped(comparison.rows, head, groups, escape(cost_caption(comparison)), label)


def cost_cells(runs: Sequence[FinishedRun]) -> Line:
    """Returns the means over runs of what they cost."""
    summaries = [run.summary for run in runs]
    megabytes, rounds = (
        fmean(total_bytes(run.summary) for run in runs) / 1e6,
        fmean(summary["rounds"] for summary in summaries),
    )
    return [
        three_digits(megabytes),
        three_digits(1e3 * megabytes / max(rounds, 1)),
        three_digits(fmean(summary["seconds"]["total"] for summary in summaries)),
        three_digits(1e3 * fmean(summary["seconds"]["per_round"] for summary in summaries)),
        f"{rounds:.0f}",
        f"{fmean(summary['best_round'] for summary in summaries):.0f}",
    ]


# Parts of tables.


def grouped(rows: Sequence[str], head: Line, groups: Sequence[Group], caption: str, label: str) -> str:
    """Returns a table with headings between its lines; one that is too long goes on in others."""
    tables: list[list[Group]] = [[]]
    for title, lines in groups:
        for start in range(0, len(lines), MOST_LINES - 1):
            part = (title, lines[start : start + MOST_LINES - 1])
            if tables[-1] and sum(1 + len(below) for _, below in tables[-1]) + 1 + len(part[1]) > MOST_LINES:
                tables.append([])
            tables[-1].append(part)
    texts = []
    for index, table in enumerate(tables):
        blocks = [
            ([[rf"\multicolumn{{{len(head)}}}{{@{{}}l}}{{\textit{{{title}}}}}"]] if title else []) + lines
            for title, lines in table
        ]
        again = index > 0
        words, suffix = (r"(continued)", f"-{index + 1}") if again else (caption, "")
        texts.append(floating([tabular(rows, head, blocks, "r")], words, f"{label}{suffix}", wide=True))
    return "\n".join(texts)


def tabular(rows: Sequence[str], head: Line, blocks: Sequence[Sequence[Line]], align: str = "c") -> str:
    """Returns a tabular with a rule between blocks of lines; names that are very long are broken."""
    first = r"p{0.3\linewidth}" if max(map(len, rows), default=0) > LONGEST_NAME else "l"
    body = "\\midrule\n".join("".join(f"{' & '.join(line)} \\\\\n" for line in block) for block in blocks if block)
    return (
        f"\\begin{{tabular}}{{@{{}}{first}{align * (len(head) - 1)}@{{}}}}\n\\toprule\n{' & '.join(head)} \\\\\n"
        f"\\midrule\n{body}\\bottomrule\n\\end{{tabular}}"
    )


def floating(tabulars: Sequence[str], caption: str, label: str, wide: bool) -> str:
    """Returns a table with its caption above, over both columns of a page where it is wide."""
    name = "table*" if wide else "table"
    body = "\n\n\\medskip\n\n".join(tabulars)
    return (
        f"% needs \\usepackage{{booktabs}}\n\\begin{{{name}}}\n\\centering\n\\caption{{{caption}}}\n"
        f"\\label{{{label}}}\n\\smallskip\n\\small\n\\setlength{{\\tabcolsep}}{{5pt}}\n{body}\n\\end{{{name}}}\n"
    )


def document(tables: Sequence[str], figures: Mapping[str, str]) -> str:
    """Returns a document that shows tables, by their files, and figures, by names with captions: to be looked at."""
    shown = [rf"\input{{{name}}}" for name in tables]
    shown += [
        f"\\begin{{figure}}\n\\centering\n\\includegraphics{{{name}}}\n\\caption{{{caption}}}\n\\label{{fig:{name}}}\n"
        "\\end{figure}"
        for name, caption in figures.items()
    ]
    start = (
        "\\documentclass{article}\n\\usepackage[utf8]{inputenc}\n"
        "\\usepackage[margin=2cm]{geometry}\n\\usepackage{booktabs}\n\\usepackage{graphicx}\n"
    )
    return f"{start}\\begin{{document}}\n" + "\n\n".join(shown) + "\n\\end{document}\n"


def units(metric: str) -> tuple[float, int]:
    """Returns by what values of a metric are multiplied, and how many decimals they are shown with."""
    return (100.0, 2) if METRICS[metric].percent else (1.0, 3)


def number(value: float, decimals: int, plus: bool = False) -> str:
    """Returns a number with a minus sign and not a hyphen, and, of a difference, a plus sign."""
    text = f"{abs(value):.{decimals}f}"
    sign = "" if float(text) == 0 else "$-$" if value < 0 else "$+$" if plus else ""
    return sign + text


def p_cell(p: float | None) -> str:
    """Returns a p-value as papers print it."""
    return "--" if p is None else "$<$0.001" if p < 0.001 else f"{p:.3f}"


def three_digits(value: float) -> str:
    """Returns a number with three digits that count, and no exponent."""
    decimals = next((places for places, least in enumerate((100, 10, 1, 0.1)) if value >= least), 4) if value else 0
    return f"{value:,.{decimals}f}"
