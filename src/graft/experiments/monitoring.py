"""How a server, a party or a peer is watched from outside: /health for whoever restarts it, /metrics for Prometheus.

It is plain HTTP and asks nobody who they are: bind it to loopback or to a private network. It tells how far a run is
and who takes part, and nothing that the record of the same run does not hold.
"""

from __future__ import annotations

import json
import logging
import math
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import graft
from graft.errors import InputError
from graft.experiments.callbacks import Callback, Record, RunStart
from graft.experiments.federation_rules import check_address
from graft.federation.evaluation import Best
from graft.federation.metric_names import METRICS, parse_metrics
from graft.files import explained
from graft.machine import peak_ram

if TYPE_CHECKING:
    from graft.experiments.monitor_endpoint import Reply

log = logging.getLogger(__name__)
Role = Literal["server", "party", "peer"]
WAYS = ("up", "down", "peer")  # of messages
SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)  # bounds that rounds are counted by
FAILED = "failed"


@contextmanager
def monitoring(address: str | None, role: Role, name: str) -> Iterator[Callback]:
    """Yields a callback that tells whoever asks at HOST:PORT how a run is; without an address, one that does nothing.

    Nobody is answered any more once this is left.
    """
    if address is None:
        yield Callback()
        return
    from graft.experiments.monitor_endpoint import Endpoint  # which brings http.server along

    where = locate(address)
    watch = RunWatch(role, name)
    with explained(f"No monitor can listen at {address}", InputError):
        endpoint = Endpoint(*where, watch.answer)
    thread = threading.Thread(target=endpoint.serve_forever, args=(0.1,), name="graft-monitor", daemon=True)
    thread.start()
    log.info("Health and metrics are at http://%s", address)
    try:
        yield watch
    except BaseException:
        watch.fail()
        raise
    finally:
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()


def locate(address: str) -> tuple[socket.AddressFamily, Any]:
    """Returns the kind of an address as HOST:PORT, and what a socket is bound to."""
    check_address("The address of a monitor", address)
    host, _, port = address.rpartition(":")
    with explained(f"No monitor can listen at {address}", InputError):
        family, _, _, _, bound_to = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    return family, bound_to


class RunWatch(Callback):
    """Keeps what is known of a run, as it is asked for; callbacks and requests may come from several threads."""

    def __init__(self, role: Role, name: str) -> None:
        self.role, self.name, self.phase = role, name, "starting"
        self.rounds: int | None = None  # that there will be; unknown before the start
        self.round = 0  # the last one on record
        self.present: list[str] = []  # in that round; as the next
        self.absent: list[str] = []
        self._metric, self._score, self._best = "accuracy", "personal", Best()
        self._ended: float | None = None  # when the last round of this process did
        self._lock = threading.Lock()
        self._numbers = Numbers(role, name)
        self._numbers.see_phase(self.phase)

    def on_phase(self, phase: str) -> None:
        with self._lock:
            self._enter(phase)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._numbers.see_phase(phase)

    def on_start(self, start: RunStart) -> None:
        with self._lock:
            experiment = start.experiment
            self.rounds, self._score = experiment.rounds, experiment.score
            self._metric = parse_metrics(experiment.metric)[0]
            self._numbers.planned.set(experiment.rounds)
            self._go_on_after(start.records)

    def on_recovery(self, reason: str, records: Sequence[Record]) -> None:  # noqa: ARG002
        with self._lock:
            self._go_on_after(records)

    def on_round(self, record: Record) -> None:
        with self._lock:
            self._ended = time.monotonic()
            self._see(record)
            self._numbers.count(record, self.absent)

    def fail(self) -> None:
        """Says from now on that the run has failed."""
        with self._lock:
            self._enter(FAILED)

    def _go_on_after(self, records: Sequence[Record]) -> None:
        """Takes in rounds of before: they are on record, but were not run by this process, which counts its own."""
        self.round, self.present, self.absent = 0, [], []
        self._best = Best(METRICS[self._metric].higher)
        for record in records:
            self._see(record)

    def _see(self, record: Record) -> None:
        self.round = record["round"]
        # In a party's own record there is nobody but itself, by a number.
        self.present = [self.name if self.role == "party" else str(who) for who in record.get("participants", ())]
        self.absent = [str(who) for who in record.get("absent", {})]
        scores: Mapping[str, Any] = record["metrics"].get(self._metric, {}) if "metrics" in record else record
        validation = scores.get("validation_global" if self._score == "global" else "validation")
        if isinstance(validation, int | float) and math.isfinite(validation):
            self._best.see(self.round, validation)
        self._numbers.see(self.round, self.present, self.absent, self._metric, self._best)

    def health(self) -> dict[str, Any]:
        """Returns how the run is."""
        with self._lock:
            since = None if self._ended is None else round(time.monotonic() - self._ended, 3)
            return {
                "role": self.role,
                "name": self.name,
                "version": graft.__version__,
                "phase": self.phase,
                "round": self.round,
                "rounds": self.rounds,
                "present": self.present,
                "absent": self.absent,
                "seconds_since_round": since,
            }

    def answer(self, path: str) -> Reply | None:
        """Returns what is replied to a request for a path: a status, a type of content and the content."""
        if path == "/health":
            health = self.health()
            status = 503 if health["phase"] == FAILED else 200
            return status, "application/json", json.dumps(health).encode() + b"\n"
        if path == "/metrics":
            with self._lock:
                return 200, self._numbers.content_type, self._numbers.text()
        return None


class Numbers:
    """The numbers of a run for Prometheus, in a registry of their own; counters are of this process alone."""

    def __init__(self, role: Role, name: str) -> None:
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise InputError(
                "A monitor needs the package prometheus-client: pip install 'graft-fgl[federation]'."
            ) from error
        registry = prometheus.CollectorRegistry()
        self._latest, self._registry = prometheus.generate_latest, registry
        self.content_type = prometheus.CONTENT_TYPE_LATEST
        about = prometheus.Info("graft", "Who this is.", registry=registry)
        about.info({"role": role, "name": name, "version": graft.__version__})

        def gauge(name: str, about: str, *labels: str) -> prometheus.Gauge:
            return prometheus.Gauge(f"graft_{name}", about, labels, registry=registry)

        def counter(name: str, about: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"graft_{name}", about, labels, registry=registry)

        self.phase = gauge("phase", "1 for the part of the run that it is in, 0 for those before.", "phase")
        self.failed = gauge("failed", "Whether the run has failed.")
        self.planned = gauge("rounds_planned", "Rounds that there will be, unless patience ends the run earlier.")
        self.round = gauge("round", "The last round on record.")
        self.finished = counter("rounds_finished", "Rounds that this process has finished.")
        self.seconds = prometheus.Histogram(
            "graft_round_seconds", "Seconds of a round.", buckets=SECONDS, registry=registry
        )
        self.ended = gauge("last_round_timestamp_seconds", "When the last round ended; before the first, the start.")
        self.bytes = counter("message_bytes", "Bytes of messages, as payload.", "way")
        self.participants = gauge("round_participants", "Who took part in the last round.")
        self.absences = gauge("round_absences", "Who was absent from the last round.")
        self.absences_by_party = counter("absences", "Rounds that a party was absent from.", "party")
        self.best = gauge("best_validation_score", "Validation score of the best round.", "metric")
        self.best_round = gauge("best_round", "The round with the best validation score; 0 where none is known.")
        gauge("peak_memory_bytes", "The most memory that the process has held.").set_function(peak_ram)
        prometheus.ProcessCollector(registry=registry)
        self.ended.set(time.time())
        for way in WAYS:
            self.bytes.labels(way)
        self._phases: set[str] = set()

    def see_phase(self, phase: str) -> None:
        """Notes which part of the run begins."""
        self._phases.add(phase)
        for known in self._phases:
            self.phase.labels(known).set(known == phase)
        self.failed.set(phase == FAILED)

    def see(self, round: int, present: Sequence[str], absent: Sequence[str], metric: str, best: Best) -> None:
        """Notes how far the record is."""
        self.round.set(round)
        self.participants.set(len(present))
        self.absences.set(len(absent))
        self.best_round.set(best.round)
        if best.validation is not None:
            self.best.labels(metric).set(best.validation)

    def count(self, record: Record, absent: Sequence[str]) -> None:
        """Counts a round of this process."""
        self.finished.inc()
        self.ended.set(time.time())
        if record.get("participants"):  # a party has rounds on record that were run without it
            self.seconds.observe(record.get("seconds", 0.0))
        for way in WAYS:
            self.bytes.labels(way).inc(record.get(f"{way}_bytes", 0))
        for name in absent:
            self.absences_by_party.labels(name).inc()

    def text(self) -> bytes:
        """Returns all of it as Prometheus reads it."""
        return self._latest(self._registry)
