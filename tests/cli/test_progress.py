"""What a command shows of itself on a terminal, on a dumb one, and in a pipe."""

import os
import pty
import re
import subprocess
import sys
from functools import lru_cache

import pytest

from graft.cli.console import complain, out_console
from graft.cli.progress import PlainProgress, round_progress, study_progress

SCRIPT = """
import sys, time, warnings
from graft.cli.console import complain, guarded
from graft.cli.progress import phase_progress, round_progress, study_progress

def record(number):
    scores = {"validation": number / 10, "test": number / 20, "per_client": {"test": [0.5, 0.75]}}
    return {"round": number, "loss": 1.0, "seconds": 0.1, "up_bytes": 10, "down_bytes": 10, "peer_bytes": 0, **scores}

with phase_progress("fedavg", "loading PyTorch"):
    time.sleep(0.5)
try:
    with round_progress(4, "fedavg") as progress:
        progress.on_phase("training")
        for number in range(1, 5):
            progress.on_round(record(number))
            time.sleep(0.2)
            if number == 2:
                complain("graft: a warning")
                print("somebody printed this")
        progress.on_end(None)
        if "fail" in sys.argv:
            raise SystemExit(1)
finally:
    print("the end")
assert "torch" not in sys.modules
"""


@lru_cache
def on_terminal(*arguments, **variables):
    """Returns what a script writes to a terminal of 80 columns."""
    master, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **variables}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment):
        os.close(terminal)
        output = b""
        try:
            while part := os.read(master, 65_536):
                output += part
        except OSError:  # Linux says so at the end of a terminal
            pass
        os.close(master)
    return output.decode()


def test_a_terminal_shows_a_view_that_is_gone_at_the_end():
    output = on_terminal()
    for words in ("loading PyTorch", "training", "round 2/4", "validation", "20.0 %", "test accuracy of each client"):
        assert words in output, words
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 2  # the cursor is shown again
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output).split("\r\n")[-4:]
    assert re.match(r"fedavg: 4 rounds in \S+ s; best in round 4: validation 40.0 %, test 20.0 %$", last[-3].strip())
    assert last[-2] == "the end"


def test_what_is_printed_meanwhile_stands_above_the_view_on_lines_of_its_own():
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_terminal())
    lines = [line.strip() for line in re.split(r"[\r\n]+", plain)]
    assert "graft: a warning" in lines
    assert "somebody printed this" in lines


def test_the_view_is_calm():
    frames = on_terminal().count("round 1/4") + on_terminal().count("round 2/4")
    assert 1 <= frames <= 8  # 0.4 s of rounds at three a second, and what was printed meanwhile


def test_no_color_and_dumb_terminals_are_respected():
    assert "\x1b[36m" in on_terminal()
    assert "\x1b[36m" not in on_terminal(NO_COLOR="1")
    dumb = on_terminal(TERM="dumb")
    assert "\x1b[" not in dumb
    assert dumb.split("\r\n")[:4] == [
        "fedavg: loading PyTorch",
        "fedavg: training",
        "fedavg: round 1/4  validation 10.0  test 5.0",
        "fedavg: round 2/4  validation 20.0  test 10.0",
    ]


def test_a_pipe_gets_plain_lines_even_if_colours_are_forced():
    command = [sys.executable, "-c", SCRIPT]
    environment = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "\x1b[?25l" not in done.stdout
    assert "graft: a warning" in done.stderr
    assert "fedavg: round 4/4" in done.stdout


def test_a_run_that_ends_badly_leaves_a_line_and_the_cursor():
    output = on_terminal("fail")
    assert output.count("\x1b[?25h") == 2
    assert "the end" in output


def test_a_long_run_is_about_ten_plain_lines(capsys):
    with round_progress(1000, "fedavg") as progress:
        assert isinstance(progress, PlainProgress)
        progress.on_phase("training")
        for number in range(1, 1001):
            progress.on_round({"round": number, "validation": 0.5, "test": 0.25})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert lines[0] == "fedavg: training"
    assert lines[-1] == "fedavg: round 1000/1000  validation 50.0  test 25.0"


def test_many_runs_are_a_plain_line_each(capsys):
    with study_progress("study") as tell:
        tell({"cell": "a", "done": 1, "total": 2, "test": 0.5, "seconds": 1.5})
        tell({"cell": "b", "done": 2, "total": 2, "error": "why", "seconds": 1.0})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1/2 a: 50.0 % in 1.5 s, about ")
    assert second == "2/2 b: failed"


def test_complaints_go_to_standard_error(capsys):
    complain("graft: no")
    assert capsys.readouterr() == ("", "graft: no\n")
    assert not out_console.is_terminal


@pytest.mark.parametrize("record", [{"round": 1}, {"round": 1, "validation": None, "test": None}])
def test_a_round_without_scores_is_said_without(record, capsys):
    with round_progress(1, "fedavg") as progress:
        progress.on_round(record)
    assert capsys.readouterr().out == "fedavg: round 1/1\n"
