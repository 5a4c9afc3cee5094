"""What a monitor tells over HTTP of a server, a party or a peer, and what it does not; and what they log."""

import json
import logging
import re
import socket
import sys
import threading
import urllib.error
import urllib.request

import pytest

import graft
from graft.errors import InputError
from graft.experiments.callbacks import Callback, RunStart
from graft.experiments.experiment import make_experiment
from graft.experiments.json_logs import logging_to
from graft.experiments.monitor_endpoint import MOST_AT_ONCE, MOST_BYTES
from graft.experiments.monitoring import monitoring

pytest.importorskip("prometheus_client")

PEM = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----"


@pytest.fixture
def address():
    """An address on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def get(address, path, method="GET"):
    """Returns status, headers and text of a reply."""
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.headers, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def health(address):
    return json.loads(get(address, "/health")[2])


def numbers(address):
    """Returns the value of every series that Prometheus would read."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(get(address, "/metrics")[2])
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def start(records=(), **settings):
    return RunStart(make_experiment({"rounds": 5, **settings}), ["alpha", "beta", "gamma"], None, records)


def record(number, validation=None, absent=(), **values):
    """Returns the record of a round of three banks."""
    present = [name for name in ("alpha", "beta", "gamma") if name not in absent]
    scores = {} if validation is None else {"validation": validation, "test": 0.987654}
    reasons = {"absent": dict.fromkeys(absent, "did not answer within 60 s")} if absent else {}
    counts = {"up_bytes": 100, "down_bytes": 20, "peer_bytes": 3, "seconds": 2.0, "loss": 0.123456}
    return {"round": number, "participants": present, **reasons, **counts, **scores, **values}


def raw(address, request):
    """Returns the first line of what is replied to some bytes; empty where the connection is closed without a word."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        return connection.makefile("rb").readline().decode()


def test_health_tells_who_it_is_and_how_far_the_run_is(address):
    with monitoring(address, "server", "coordinator") as watched:
        before = health(address)
        watched.on_phase("waiting for parties")
        watched.on_start(start())
        watched.on_phase("training")
        watched.on_round(record(1))
        watched.on_round(record(2, absent=("gamma",)))
        status, headers, text = get(address, "/health")
    assert before["phase"] == "starting"
    assert (before["round"], before["rounds"], before["seconds_since_round"]) == (0, None, None)
    told = json.loads(text)
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert told.pop("seconds_since_round") >= 0
    assert told == {
        "role": "server",
        "name": "coordinator",
        "version": graft.__version__,
        "phase": "training",
        "round": 2,
        "rounds": 5,
        "present": ["alpha", "beta"],
        "absent": ["gamma"],
    }


def test_metrics_count_rounds_bytes_and_absences(address):
    with monitoring(address, "server", "coordinator") as watched:
        watched.on_phase("rehearsing")
        watched.on_phase("training")
        watched.on_start(start())
        for entry in (record(1, 0.5), record(2, 0.75, absent=("gamma",)), record(3, 0.6, absent=("gamma", "beta"))):
            watched.on_round(entry)
        told = numbers(address)
    assert told["graft_info", "coordinator", "server", graft.__version__] == 1
    assert told["graft_rounds_finished_total",] == told["graft_round",] == told["graft_round_seconds_count",] == 3
    assert told["graft_rounds_planned",] == 5
    assert told["graft_round_seconds_sum",] == 6
    assert told["graft_round_seconds_bucket", "1.0"] == 0
    assert told["graft_round_seconds_bucket", "3.0"] == 3
    assert [told["graft_message_bytes_total", way] for way in ("up", "down", "peer")] == [300, 60, 9]
    assert (told["graft_round_participants",], told["graft_round_absences",]) == (1, 2)
    assert (told["graft_absences_total", "gamma"], told["graft_absences_total", "beta"]) == (2, 1)
    assert ("graft_absences_total", "alpha") not in told
    assert (told["graft_best_validation_score", "accuracy"], told["graft_best_round",]) == (0.75, 2)
    assert (told["graft_phase", "rehearsing"], told["graft_phase", "training"]) == (0, 1)
    assert told["graft_failed",] == 0
    assert told["graft_peak_memory_bytes",] >= told["process_resident_memory_bytes",] > 0


def test_losses_test_scores_and_reasons_are_not_told(address):
    with monitoring(address, "server", "coordinator") as watched:
        watched.on_start(start())
        watched.on_round(record(1, 0.5, absent=("gamma",), details={"class_counts": [17, 4]}))
        pages = get(address, "/health")[2] + get(address, "/metrics")[2]
    assert "gamma" in pages
    for kept in ("0.123456", "0.987654", "did not answer", "class_counts"):
        assert kept not in pages


def test_a_run_that_is_resumed_tells_its_record_but_counts_its_own_rounds(address):
    with monitoring(address, "server", "coordinator") as watched:
        watched.on_start(start([record(1, 0.9), record(2, 0.4, absent=("beta",))]))
        resumed, told = health(address), numbers(address)
        watched.on_round(record(3, 0.5))
        later = numbers(address)
    assert (resumed["round"], resumed["absent"], resumed["seconds_since_round"]) == (2, ["beta"], None)
    assert (told["graft_rounds_finished_total",], told["graft_message_bytes_total", "up"]) == (0, 0)
    assert (later["graft_rounds_finished_total",], later["graft_round",]) == (1, 3)
    assert later["graft_best_validation_score", "accuracy"] == 0.9


def test_the_best_score_is_of_the_metric_that_picks_the_round(address):
    settings = dict(metric="log_loss,accuracy", score="global")
    scores = [{"validation": 0.1, "validation_global": value} for value in (0.3, 0.2, float("nan"))]
    with monitoring(address, "party", "alpha") as watched:
        watched.on_start(start(**settings))
        for number, values in enumerate(scores, 1):
            watched.on_round(record(number, 0.9, metrics={"log_loss": values, "accuracy": {"validation_global": 0.99}}))
        told = numbers(address)
    assert (told["graft_best_validation_score", "log_loss"], told["graft_best_round",]) == (0.2, 2)  # lower is better
    assert ("graft_best_validation_score", "accuracy") not in told


def test_rounds_that_nobody_scored_have_no_best(address):
    with monitoring(address, "server", "coordinator") as watched:
        watched.on_start(start())
        watched.on_round(record(1))
        text = get(address, "/metrics")[2]
    assert "graft_best_validation_score{" not in text
    assert "graft_best_round 0.0" in text


def test_a_round_without_the_party_itself_took_it_no_time(address):
    with monitoring(address, "party", "alpha") as watched:
        watched.on_start(start())
        watched.on_round(record(1, participants=[]))
        assert health(address)["present"] == []
        watched.on_round(record(2, participants=[0]))  # itself, the only one in its own record
        assert health(address)["present"] == ["alpha"]
        told = numbers(address)
    assert (told["graft_rounds_finished_total",], told["graft_round_seconds_count",]) == (2, 1)


def test_a_run_that_failed_is_unhealthy(address):
    with monitoring(address, "peer", "alpha") as watched:
        assert get(address, "/health")[0] == 200
        watched.fail()
        status, _, text = get(address, "/health")
        failed = numbers(address)["graft_failed",]
    assert (status, json.loads(text)["phase"], failed) == (503, "failed", 1)


def test_an_error_passes_through_and_nobody_is_answered_any_more(address):
    with pytest.raises(ZeroDivisionError), monitoring(address, "peer", "alpha") as watched:
        raise ZeroDivisionError
    assert watched.health()["phase"] == "failed"
    with pytest.raises(urllib.error.URLError):
        get(address, "/health")
    assert not [thread for thread in threading.enumerate() if thread.name == "graft-monitor"]
    with monitoring(address, "peer", "alpha"):  # the address is free again
        assert get(address, "/health")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW"])
def test_only_get_is_answered(address, method):
    with monitoring(address, "server", "coordinator"):
        status, headers, text = get(address, "/health", method)
    assert (status, headers["Allow"]) == (405, "GET")
    assert "role" not in text


def test_other_paths_are_not_there(address):
    with monitoring(address, "server", "coordinator"):
        assert [get(address, path)[0] for path in ("/", "/healthy", "/metrics/", "/../health")] == [404] * 4
        assert get(address, "/health?verbose=1")[0] == 200


def test_requests_are_bounded_in_size(address):
    head = b"GET /health HTTP/1.1\r\nX: "
    with monitoring(address, "server", "coordinator"):
        largest = head + b"a" * (MOST_BYTES - len(head) - 4) + b"\r\n\r\n"
        assert raw(address, largest).startswith("HTTP/1.0 200")
        assert raw(address, head + b"a" * (MOST_BYTES + 1 - len(head))).startswith("HTTP/1.0 431")
        assert raw(address, b"\x16\x03\x01 nonsense that is no HTTP\r\n\r\n").startswith("400")
        assert get(address, "/health")[0] == 200


def test_those_who_say_nothing_keep_nobody_else_from_being_answered(address):
    host, port = address.split(":")
    with monitoring(address, "server", "coordinator"):
        silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(MOST_AT_ONCE - 2)]
        assert get(address, "/health")[0] == 200
        for connection in silent:
            connection.close()


def test_without_an_address_nobody_listens():
    before = threading.active_count()
    with monitoring(None, "server", "coordinator") as watched:
        assert type(watched) is Callback
        assert threading.active_count() == before


def test_a_port_that_is_taken_is_one_sentence(address):
    host, port = address.split(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        with pytest.raises(InputError, match=f"No monitor can listen at {address}: Address already in use"):  # noqa: SIM117
            with monitoring(address, "server", "coordinator"):
                pass


@pytest.mark.parametrize("wrong", ["9100", "127.0.0.1", ":9100", "127.0.0.1:0", "127.0.0.1:99999", "http://a:1/", ""])
def test_an_address_that_is_none_is_one_sentence(wrong):
    with pytest.raises(InputError, match=r"The address of a monitor is .*HOST:PORT"), monitoring(wrong, "peer", "a"):
        pass


def test_without_the_package_a_sentence_says_what_to_install(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InputError, match=r"pip install 'graft-fgl\[federation\]'"), monitoring(address, "peer", "a"):
        pass
    with monitoring(None, "peer", "a"):
        pass


def test_numbers_of_two_monitors_do_not_mix_nor_reach_the_global_registry(address):
    from prometheus_client import REGISTRY

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        other = f"127.0.0.1:{probe.getsockname()[1]}"
    with monitoring(address, "party", "alpha") as alpha, monitoring(other, "party", "beta"):
        alpha.on_round(record(1))
        assert [numbers(where)["graft_rounds_finished_total",] for where in (address, other)] == [1, 0]
        assert not [family.name for family in REGISTRY.collect() if family.name.startswith("graft")]


def test_a_run_is_watched_to_its_end(address):
    asked = []
    settings = dict(dataset="synthetic:nodes=60,degree=4,classes=3,features=6", clients=3, width=4, rounds=2)
    with monitoring(address, "server", "here") as watched:
        graft.run("fedavg", callbacks=[watched, lambda _: asked.append(health(address))], **settings)
        told = numbers(address)
    assert [entry["round"] for entry in asked] == [1, 2]
    assert asked[0]["phase"] == "training"
    assert (told["graft_rounds_finished_total",], told["graft_rounds_planned",]) == (2, 2)
    assert 0 <= told["graft_best_validation_score", "accuracy"] <= 1


def read_log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_log_as_json_has_an_object_a_line(tmp_path):
    path = tmp_path / "logs" / "server.log"
    with logging_to(path, True, "server", "coordinator") as logged:
        logging.getLogger("graft.engines.zenoh").warning("gamma said %s", "two\nlines \x1b[31m")
        logged.on_phase("training")
        logged.on_round(record(4, 0.5, absent=("gamma",)))
        try:
            raise ZeroDivisionError("by hand")
        except ZeroDivisionError:
            logging.getLogger("graft").exception("It failed")
        logging.getLogger("elsewhere").error("not ours")
    logging.getLogger("graft").error("too late")
    said, phase, round_ended, failed = read_log(path)
    assert {"time", "level", "logger", "message", "role", "name"} == set(said)
    assert (said["role"], said["name"], said["level"]) == ("server", "coordinator", "WARNING")
    assert said["message"] == "gamma said two\nlines \\x1b[31m"
    assert said["time"].endswith("+00:00")
    assert (phase["phase"], phase["level"]) == ("training", "INFO")
    assert round_ended["message"] == "Round 4 took 2.0 s with 2; absent: gamma"
    assert (round_ended["round"], round_ended["present"]) == (4, ["alpha", "beta"])
    assert "0.123456" not in path.read_text()  # its loss
    assert failed["exception"].endswith("ZeroDivisionError: by hand")
    assert path.stat().st_mode & 0o077 == 0


def test_a_party_logs_its_own_rounds_under_its_name(tmp_path):
    with logging_to(tmp_path / "log", True, "party", "alpha") as logged:
        logged.on_round(record(1, participants=[0]))
    (entry,) = read_log(tmp_path / "log")
    assert (entry["present"], entry["absent"], entry["level"]) == (["alpha"], {}, "INFO")


def test_a_log_for_people_has_a_line_for_each_event_and_is_gone_on_with(tmp_path):
    path = tmp_path / "server.log"
    for text in ("first", "second\nof two lines"):
        with logging_to(path, False, "server", "coordinator"):
            logging.getLogger("graft.experiments.serving").warning(text)
    first, second = path.read_text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00 WARNING server coordinator: first", first)
    assert second.endswith("second\\nof two lines")


@pytest.mark.parametrize("json_lines", [False, True])
def test_private_keys_are_not_logged(tmp_path, json_lines):
    path = tmp_path / "party.log"
    with logging_to(path, json_lines, "party", "alpha"):
        logging.getLogger("graft").warning("read %s and went on", PEM)
        try:
            raise ValueError(PEM)
        except ValueError:
            logging.getLogger("graft").exception("cut off: %s", PEM[:40])
    text = path.read_text()
    assert "MIGH" not in text
    assert "read [a private key] and went on" in text
    assert "ValueError: [a private key]" in text


def test_json_without_a_file_goes_to_standard_error(capsys):
    with logging_to(None, True, "peer", "alpha"):
        logging.getLogger("graft").info("here")
    told = capsys.readouterr()
    assert told.out == ""
    assert json.loads(told.err)["message"] == "here"


def test_nothing_is_logged_unless_asked_for_and_all_is_as_it_was(tmp_path):
    logger = logging.getLogger("graft")
    before = logger.level, list(logger.handlers)
    with logging_to(None, False, "peer", "alpha") as logged:
        assert type(logged) is Callback
        assert (logger.level, logger.handlers) == before
    with logging_to(tmp_path / "log", True, "peer", "alpha"):
        assert (logger.level, logger.handlers) != before
    with pytest.raises(ZeroDivisionError), logging_to(tmp_path / "log", True, "peer", "alpha"):
        raise ZeroDivisionError
    assert (logger.level, logger.handlers) == before


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"The log .* cannot be written"),
        logging_to(tmp_path / "file" / "log", False, "peer", "alpha"),
    ):
        pass
