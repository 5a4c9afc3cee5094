"""How a run looks on terminals of all sizes, and what its state says after some rounds."""

import io

import pytest
from rich.console import Console

from graft.cli.many_view import ManyState, ManyView, outcome_of
from graft.cli.run_state import RunState, short_time, size_text
from graft.cli.run_view import ASCII, UNICODE, RunView, horizontal_bar, sparkline


def record_of(number, validation=0.5, test=0.5, clients=(0.5,), **changes):
    scores = {"validation": validation, "test": test, "per_client": {"test": list(clients)}}
    traffic = {"up_bytes": 1000, "down_bytes": 2000, "peer_bytes": 0}
    return {"round": number, "loss": 1.0, "seconds": 2.0, **traffic, **scores, **changes}


def state_of(rounds=8, total=10, clients=3, **fields):
    state = RunState("fedavg", total, about="digits · 3 clients · gcn", **fields)
    state.phase = "training"
    for number in range(1, rounds + 1):
        values = [0.1 + 0.8 * client / clients for client in range(clients)]
        state.see(record_of(number, 0.1 * number, 0.1 * number - 0.05, values), ended=100.0 + 2 * number)
    return state


def drawn(view, width=100, height=30, **options):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, **options)
    console.print(view)
    return console.file.getvalue().rstrip("\n").split("\n")


# The state.


def test_the_best_round_is_that_with_the_best_validation_score():
    state = RunState("fedavg", 5)
    for number, (validation, test) in enumerate([(0.5, 0.6), (0.7, 0.5), (0.7, 0.9), (0.6, 0.8)], 1):
        state.see(record_of(number, validation, test))
    assert (state.best_round, state.best_validation, state.best_test) == (2, 0.7, 0.5)
    assert (state.validation, state.test, state.round) == (0.6, 0.8, 4)


def test_less_is_better_where_the_metric_says_so_and_the_global_model_may_be_the_one_that_counts():
    state = RunState("fedavg", 5, metric="log_loss", score="global")
    for number, value in enumerate([0.5, 0.2, 0.4], 1):
        scores = {"validation": 1 - value, "validation_global": value, "test_global": value, "per_client": {"test": []}}
        state.see(record_of(number, metrics={"log_loss": scores}))
    assert (state.best_round, state.best_validation) == (2, 0.2)
    assert state.curve == [0.5, 0.2, 0.4]


def test_rounds_that_are_not_evaluated_leave_the_scores_as_they_were():
    state = state_of(rounds=2)
    state.see({"round": 3, "loss": None, "seconds": 1.0, "up_bytes": 5, "down_bytes": 0, "peer_bytes": 7})
    assert (state.round, state.validation, state.sent) == (3, 0.2, {"up": 2005, "down": 4000, "peer": 7})


def test_the_time_left_is_by_the_clock_where_rounds_were_watched_and_else_as_recorded():
    watched, read = state_of(rounds=4), RunState("fedavg", 10)
    read.see(record_of(1, seconds=3.0))
    assert (watched.seconds_a_round, watched.seconds_left) == (2.0, 12.0)
    assert (read.seconds_a_round, read.seconds_left) == (3.0, 27.0)
    assert RunState("fedavg", 10).seconds_left is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0042, "4.2 ms"),
        (0.08, "80 ms"),
        (0.25, "0.25 s"),
        (2.345, "2.3 s"),
        (3, "3 s"),
        (42.4, "42 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_times_are_said_as_people_say_them(seconds, text):
    assert short_time(seconds) == text


def test_sizes_have_units():
    assert [size_text(size) for size in (0, 999, 1000, 3_240_000, 5e18)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "3.2 MB",
        "5000.0 PB",
    ]


# The view.


def test_a_run_that_has_not_begun_shows_its_phase_by_name():
    [line] = drawn(RunView(RunState("fedavg", 10, phase="loading PyTorch")))
    assert line.startswith("fedavg ")
    assert "loading PyTorch" in line


def test_all_that_matters_is_there():
    text = "\n".join(drawn(RunView(state_of(clients=3))))
    for words in (
        "digits · 3 clients · gcn",
        "round 8/10",
        "2 s a round · 4 s left",
        "validation 80.0 %   test 75.0 %   best 80.0 % in round 8, test 75.0 %",
        "▁▂▃▄▅▆▇█  10.0 % to 80.0 %",
        "8.0 kB up   16.0 kB down   3.0 kB a round",
        "test accuracy of each client",
    ):
        assert words in text, words


@pytest.mark.parametrize("width", [20, 30, 50, 79, 80, 120, 300])
@pytest.mark.parametrize("clients", [1, 10, 500])
@pytest.mark.parametrize("height", [3, 12, 24])
def test_no_line_is_wider_nor_the_view_higher_than_the_terminal(width, clients, height):
    names = [f"the bank of number {client}" for client in range(clients)]
    state = state_of(clients=clients)
    state.clients = names
    lines = drawn(RunView(state), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_a_narrow_terminal_loses_columns_and_no_sense(width):
    text = " ".join(" ".join(drawn(RunView(state_of()), width)).split())
    for words in ("round 8/10", "validation 80.0 %", "test 75.0 %", "best 80.0 % in round 8", "left", "training"):
        assert words in text, words


def test_of_many_clients_the_worst_and_the_best_are_shown():
    lines = drawn(RunView(state_of(clients=100)), height=20)
    heading = next(line for line in lines if "worst" in line)
    assert "of 100" in heading
    shown = {line.split()[0] for line in lines[lines.index(heading) + 1 :]}
    assert "0" in shown
    assert any("99 " in line for line in lines)
    assert not any(line.startswith("50 ") for line in lines)


def test_the_choice_among_many_clients_stays_for_a_while():
    view = RunView(state_of(clients=100))
    before, _ = view.choose(100, 10)
    view.state.by_client.reverse()
    assert view.choose(100, 10)[0] == before
    assert RunView(view.state).choose(100, 10)[0] != before


def test_a_client_without_a_score_has_no_bar():
    state = state_of(clients=2)
    state.by_client = [None, 0.5]
    assert drawn(RunView(state))[-1].split() == ["0", "-", "1", "━" * 10 + "╸", "50.0", "%"]


def test_names_cannot_move_the_cursor():
    state = state_of(clients=2)
    state.clients, state.label = ["\x1b[2J", "b"], "\x1b[31mfed"
    assert "\x1b" not in "\n".join(drawn(RunView(state)))


def test_a_terminal_without_unicode_gets_plain_characters():
    console = Console(file=io.TextIOWrapper(io.BytesIO(), "ascii"), width=80, height=20, color_system=None)
    console.print(RunView(state_of()))
    console.file.flush()
    assert console.file.buffer.getvalue().decode("ascii").startswith("fedavg")


def test_no_color_is_respected(monkeypatch):
    def codes():
        console = Console(file=io.StringIO(), force_terminal=True, width=80, height=20, color_system="truecolor")
        console.print(RunView(state_of()))
        return console.file.getvalue()

    assert "\x1b[36m" in codes()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in codes()


def test_a_curve_goes_from_the_lowest_to_the_highest_mark():
    assert sparkline([0.0, 0.5, 1.0], 10, UNICODE) == "▁▅█"
    assert sparkline([1.0, 1.0], 10, UNICODE) == "▁▁"
    assert len(sparkline([k / 1000 for k in range(1000)], 40, UNICODE)) == 40
    assert sparkline([0.0, 1.0], 10, ASCII) == "_@"


def test_a_bar_is_as_long_as_its_share():
    assert [horizontal_bar(share, 4, UNICODE) for share in (0, 0.125, 0.5, 1)] == ["", "╸", "━━", "━━━━"]


# Many runs.


def test_many_runs_show_how_many_are_done_the_last_ones_and_failures():
    state = ManyState("study")
    state.see({"cell": "a", "done": 1, "total": 4, "test": 0.5, "seconds": 2.0})
    state.see({"cell": "b", "done": 2, "total": 4, "error": "no memory", "seconds": 1.0})
    text = "\n".join(drawn(ManyView(state)))
    for words in ("run 2/4", "a: 50.0 % in 2 s", "b: failed", "b: no memory", "1 of 2"):
        assert words in text, words
    for width in (20, 40):
        assert max(map(len, drawn(ManyView(state), width))) <= width


def test_the_pace_of_many_runs_is_of_those_that_ended_while_somebody_looked():
    state = ManyState("study", total=10, done=6, done_before=4)
    state.begun -= 8.0
    assert state.seconds_left == pytest.approx(16.0, abs=0.5)
    assert ManyState("study", total=10, done=4, done_before=4).seconds_left is None


def test_what_came_of_a_run_is_said_by_its_metric():
    message = {"cell": "a", "seconds": 1.0}
    assert outcome_of({**message, "test": None}) == "a: no score in 1 s"
    assert outcome_of({**message, "test": 0.25, "metric": "log_loss"}) == "a: 0.250 in 1 s"
    assert outcome_of({**message, "error": "why"}) == "a: failed"
