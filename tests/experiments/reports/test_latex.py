"""Tables for LaTeX: what is bold, what is marked, what is escaped, and that they compile."""

import re
import shutil
import subprocess

import pytest

from graft.experiments.comparison.comparison import Comparison
from graft.experiments.reports.latex import (
    costs_to_latex,
    differences_to_latex,
    document,
    escape,
    number,
    p_cell,
    three_digits,
    to_latex,
)
from tests.experiments.comparison.made_up import made_up, made_up_run

CLOSE = {
    ("fedavg", "cora"): [0.50, 0.60, 0.70, 0.80, 0.90],
    ("fedprox", "cora"): [0.55, 0.55, 0.75, 0.75, 0.95],
    ("local", "cora"): [0.20, 0.31, 0.40, 0.52, 0.60],
    ("centralised", "cora"): [0.97, 0.98, 0.97, 0.98, 0.99],
}
HOSTILE = r"50%_of {a} & b\c$#~^ <x> naïve Ðü 図 \input{passwords}"


def line_of(table, name):
    """The cells of the line of a row."""
    (line,) = (line for line in table.splitlines() if line.startswith(f"{name} &"))
    return [cell.strip() for cell in line.removesuffix(r"\\").split("&")]


def test_bold_follows_the_statistics_and_not_the_highest_mean():
    table = to_latex(made_up(CLOSE), "local")
    assert line_of(table, "fedprox")[1].startswith(r"\textbf{71.00}")  # the highest mean
    assert line_of(table, "fedavg")[1].startswith(r"\textbf{70.00}")  # cannot be told from it
    assert "textbf" not in line_of(table, "local")[1]
    assert "textbf" not in line_of(table, "centralised")[1]  # better, and no competitor
    apart = {**CLOSE, ("fedavg", "cora"): [0.50, 0.51, 0.70, 0.71, 0.90]}
    assert "textbf" not in line_of(to_latex(made_up(apart)), "fedavg")[1]


def test_deviations_arrows_and_references_are_where_they_belong():
    table = to_latex(made_up(CLOSE), "local", label="tab:mine")
    assert line_of(table, "fedavg")[1] == r"\textbf{70.00}\,{\scriptsize$\pm$\,15.81}\rlap{$^{\uparrow}$}"
    assert "arrow" not in line_of(table, "local")[1]
    assert "arrow" not in line_of(to_latex(made_up(CLOSE)), "fedavg")[1]  # without a baseline
    assert re.search(r"local &.*\\\\\n\\midrule\ncentralised &", table)
    assert r"\label{tab:mine}" in table
    assert r"\begin{table}" in table
    assert line_of(to_latex(made_up(CLOSE), "fedprox"), "local")[1].endswith(r"\rlap{$^{\downarrow}$}")


def test_the_caption_says_what_everything_means():
    table = to_latex(made_up(CLOSE), "local")
    for words in (
        r"over 5 seeds",
        r"cannot tell from it",
        "significantly better and worse than local",
        "centralised (it sees",
    ):
        assert words in table
    assert "Rank" not in table  # of one column
    assert to_latex(made_up(CLOSE), caption="Mine & yours").count(r"\caption{Mine \& yours}") == 1
    single = to_latex(made_up({key: values[:1] for key, values in CLOSE.items()}), "local")
    assert "by one seed, which proves nothing" in single
    assert "pm" not in single.split(r"\toprule")[1]
    assert single.count(r"\textbf") == 1


def test_gaps_and_missing_seeds_are_shown():
    table = {**CLOSE, ("fedavg", "cs"): [0.5, 0.6, None], ("local", "cs"): [0.1, 0.2, 0.3]}
    text = to_latex(made_up(table))
    assert line_of(text, "fedprox")[2] == "--"
    assert line_of(text, "fedavg")[2].endswith(r"{\scriptsize(2)}")
    assert "There is no accuracy of" in text
    assert "as many as the brackets say" in text
    assert "brackets" not in to_latex(made_up(CLOSE))


def test_ranks_stand_beside_several_columns():
    data = ("cora", "cs", "photo")
    scores = {"fedavg": 0.8, "fedprox": 0.7, "local": 0.6, "majority": 0.1}
    table = {(method, name): [score, score + 0.01] for name in data for method, score in scores.items()}
    text = to_latex(made_up(table))
    assert line_of(text, "fedavg")[-1] == r"\textbf{1.00}"
    assert line_of(text, "local")[-1] == "3.00"
    assert line_of(text, "majority")[-1] == "--"
    assert r"average over the 3 columns" in text


def test_many_columns_are_broken_into_several_tabulars():
    table = {(method, f"data{number}"): [0.5, 0.6] for method in ("local", "fedavg") for number in range(8)}
    text = to_latex(made_up(table))
    assert text.count(r"\begin{tabular}") == 2
    assert text.count(r"\begin{table*}") == text.count("Rank &") + 1 == 1
    assert all(f"data{number}" in text for number in range(8))


def test_differences_have_intervals_tests_and_counts():
    text = differences_to_latex(made_up(CLOSE), "local")
    cells = line_of(text, "fedavg")
    assert cells[1] == r"\textbf{$+$29.40}"
    assert re.fullmatch(r"\[\$\+\$2\d\.\d\d, \$\+\$3\d\.\d\d\]", cells[2])
    assert cells[3:] == ["$t$", "$<$0.001", "$<$0.001", "5/0/0"]
    assert "paired t-test, two-sided" in text
    worse = line_of(differences_to_latex(made_up(CLOSE), "fedavg"), "local")
    assert worse[1] == r"\textbf{$-$29.40}"
    single = line_of(
        differences_to_latex(made_up({key: values[:1] for key, values in CLOSE.items()}), "local"), "fedavg"
    )
    assert single[1:] == ["$+$30.00", "--", "--", "--", "--", "1/0/0"]


def test_long_tables_go_on_in_others():
    table = {(method, f"data{number}"): [0.5, 0.6] for method in ("local", "fedavg", "moon") for number in range(30)}
    text = costs_to_latex(made_up(table))
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == 3
    assert text.count("(continued)") == 2
    assert len(set(re.findall(r"\\label\{(.*?)\}", text))) == 3


def test_costs_are_counted():
    text = costs_to_latex(made_up(CLOSE, megabytes=2.0))
    assert line_of(text, "fedavg")[1:] == ["8.00", "2,000", "0.400", "100", "4", "3"]
    assert [three_digits(value) for value in (0, 0.01234, 0.5, 1.234, 12.34, 1234.5)] == [
        *("0", "0.0123", "0.500", "1.23", "12.3", "1,234"),
    ]


def test_numbers_have_minus_signs():
    assert [number(value, 2) for value in (1.005, -1.5, -0.001)] == ["1.00", "$-$1.50", "0.00"]
    assert number(1.5, 1, plus=True) == "$+$1.5"
    assert [p_cell(p) for p in (None, 0.0001, 0.25)] == ["--", "$<$0.001", "0.250"]


def test_hostile_names_are_printed_and_not_obeyed():
    text = escape(HOSTILE)
    assert text.startswith(r"50\%\_of \{a\} \& b\textbackslash{}c\$\#\textasciitilde{}\textasciicircum{} $<$x$>$ naïve")
    assert "[U+00D0]" in text
    assert "[U+56F3]" in text
    assert r"\input" not in text
    assert escape("a\nb\x1b[0m").isprintable()


def test_tables_with_hostile_names_compile(tmp_path):
    compilers = {"pdflatex": ["-interaction=nonstopmode", "-halt-on-error"], "tectonic": []}
    compiler = next((name for name in compilers if shutil.which(name)), None)
    if compiler is None:
        pytest.skip("neither pdflatex nor tectonic is installed: LaTeX cannot be compiled here")
    runs = [
        made_up_run(method, f"{HOSTILE} {data}", seed, 0.5 + 0.1 * seed)
        for method in ("local", "fedavg")
        for data in "ab"
        for seed in range(3)
    ]
    comparison = Comparison(runs)
    texts = {
        "scores.tex": to_latex(comparison, "local"),
        "differences.tex": differences_to_latex(comparison, "local"),
        "cost.tex": costs_to_latex(comparison),
    }
    texts["preview.tex"] = document(list(texts), {})
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = [compiler, *compilers[compiler], "preview.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "preview.pdf").stat().st_size > 10_000
    (tmp_path / "scores.tex").write_text(texts["scores.tex"].replace(r"\_", "_"), encoding="utf-8")
    broken = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert broken.returncode != 0  # a name that is not escaped does break it
