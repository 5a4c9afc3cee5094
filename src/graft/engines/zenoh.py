"""A wire between organisations: the one file that knows zenoh.

Everybody is known by the common name of its certificate. TLS with certificates on both sides is always on, and the
rules that zenoh holds at both ends of every connection name what each may send: a request from SENDER to RECIPIENT,
and its answer, have the key NAMESPACE/to/RECIPIENT/INSTANCE/from/SENDER, which passes between these two alone, and so
a key that arrives says who asks. Nobody forwards for others: in a star, parties reach the server and nobody else.

Every address that is called has a zenoh session of its own, and those who call have one together: in one session,
links that claim the same session number are joined, whatever their certificates say, and the first one's rights hold
for all of them. So no session has more than one link to anybody.

An instance is one start of a node. Of somebody whose machine vanished in the middle of a message the old connection
may stay for minutes, until the system gives it up; whoever started last is the one that is asked.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from graft.engines.asking import NOT_CONNECTED, Asking, Attempt, Connection
from graft.engines.wire import MOST_BYTES, Absent, Handler, Patience
from graft.engines.zenoh_settings import check_addresses, configure, key_of
from graft.errors import InputError, RunError
from graft.files import printable
from graft.keys import KeyFiles, check_name

if TYPE_CHECKING:
    import zenoh

log = logging.getLogger(__name__)

MOST_PENDING = 8  # requests of one sender that are handled or wait for it; more are dropped
MOST_THREADS = 64
CLOSE_SECONDS = 5.0  # that handlers under way have when a node is closed
MOST_CONNECTIONS = 16  # of one name that are remembered
FAILED, TOO_LARGE = b"failed", b"too large"  # marks of an answer that is none
REFUSALS = {
    FAILED: Absent("could not answer; its own log says why"),
    TOO_LARGE: Absent("could not answer, as the request or the answer is larger than it allows"),
}


def import_zenoh() -> Any:
    """Returns zenoh, or says how to get it."""
    try:
        import zenoh
    except ImportError as error:
        raise InputError(
            "Federations between organisations need the package zenoh: pip install 'graft-fgl[federation]'."
        ) from error
    return zenoh


class ZenohNode:
    """One end of a wire with mutual TLS: the server or a party of a star, or a peer of a mesh."""

    def __init__(
        self,
        name: str,
        keys: KeyFiles,
        handler: Handler,
        *,
        others: Collection[str],
        listen: Sequence[str] = (),
        connect: Sequence[str] = (),
        namespace: str,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Listens and connects, at addresses as HOST:PORT, without waiting for anybody to be there.

        `others` are all with whom requests are exchanged: the parties for a server, the server for a party.
        """
        self._zenoh = import_zenoh()
        for each in (name, namespace, *others):
            check_name(each)
        if name in others or not others:
            raise InputError(f"{name} needs others to exchange messages with, and is not one of them itself.")
        check_addresses(name, listen, connect)
        self.name, self.most_bytes = name, most_bytes
        self._handler, self._namespace = handler, namespace
        self._changed = threading.Condition()
        # By name: session and instance of each connection, and the how manyth it was to come.
        self._connections: dict[str, dict[tuple[int, str], int]] = {other: {} for other in others}
        self._arrivals = 0
        self._pending: Counter[str] = Counter()
        # One message at a time to each: several that one who reads nothing holds up would hold up zenoh's own threads.
        self._ways = {other: threading.Lock() for other in others}
        self._closed = False
        threads = min(MOST_THREADS, 2 * len(others) + 2)
        self._handlers = ThreadPoolExecutor(threads, thread_name_prefix=f"{name}-answers")
        self._senders = ThreadPoolExecutor(threads, thread_name_prefix=f"{name}-asks")
        self._instance = secrets.token_hex(8)
        self._senders_by_key = {key_of(namespace, name, self._instance, other): other for other in others}
        self._sessions: list[Any] = []
        self._tokens: list[Any] = []
        places: list[tuple[Sequence[str], Sequence[str]]] = [((), [address]) for address in dict.fromkeys(connect)]
        for listens, connects in [(listen, ()), *places] if listen else places:
            settings = configure(name, keys, others, listens, connects, namespace, most_bytes)
            try:
                self._sessions.append(open_session(self._zenoh, settings))
                self._declare(len(self._sessions) - 1)
            except self._zenoh.ZError as error:
                self.close()
                raise InputError(f"{name} cannot {failed_to(listens, connects)}: {reason_of(error)}.") from error

    def _declare(self, number: int) -> None:
        """Says in one session that requests are answered here, and then that somebody is here."""
        callback, space, session = self._zenoh.handlers.Callback, self._namespace, self._sessions[number]
        see = callback(partial(self._see, number), indirect=False)
        session.liveliness().declare_subscriber(f"{space}/alive/*/*", see, history=True)
        requests = key_of(space, self.name, self._instance, "*")
        session.declare_queryable(requests, callback(self._receive, indirect=False))
        self._tokens.append(session.liveliness().declare_token(f"{space}/alive/{self.name}/{self._instance}"))

    def present(self) -> set[str]:
        """Returns who is connected now, oneself left out."""
        with self._changed:
            return {name for name, connections in self._connections.items() if connections}

    def ask(self, requests: Mapping[str, bytes], patience: Patience) -> dict[str, bytes | Absent]:
        """Sends each its request, all at once, and returns what each answers or why it does not."""
        for name, request in requests.items():
            if len(request) > self.most_bytes:
                raise RunError(
                    f"The request to {name} has {len(request)} bytes, more than the {self.most_bytes} allowed: "
                    f"most_bytes in [limits] of the federation's file can be {MOST_BYTES}, or take a smaller model."
                )
        if self._closed:
            raise RunError(f"The connections of {self.name} are closed; nobody can be asked any more.")
        cancellation = self._zenoh.CancellationToken()

        def send(name: str, request: bytes, seconds: float, attempt: Attempt) -> None:
            # In a thread of its own, since one who reads no more blocks whoever sends to it.
            with suppress(RuntimeError):  # closed meanwhile
                self._senders.submit(self._send, name, request, time.monotonic() + seconds, attempt, cancellation)

        try:
            return Asking(self._changed, self._locate, send, requests, patience).collect()
        finally:
            cancellation.cancel()

    def _locate(self, name: str) -> Connection | Absent:
        """Returns a connection of somebody: the oldest of the newest instance, as others may not be given up yet."""
        if self._closed:
            return Absent("cannot be asked, as this end was closed")
        if name not in self._connections:
            return Absent("is not one of those who can be asked from here")
        oldest: dict[str, Connection] = {}
        for connection in sorted(self._connections[name].items(), key=itemgetter(1)):
            oldest.setdefault(connection[0][1], connection)
        return max(oldest.values(), key=itemgetter(1), default=NOT_CONNECTED)

    def _send(self, name: str, request: bytes, until: float, attempt: Attempt, cancellation: Any) -> None:
        number, instance = attempt.connection[0]
        key = key_of(self._namespace, name, instance, self.name)

        def receive(reply: zenoh.Reply) -> None:
            if attempt.is_open and reply.ok is not None:  # an error is that time is over, or that somebody is gone
                attempt.receive(self._read(reply.ok, key))

        if not self._ways[name].acquire(timeout=max(0.0, until - time.monotonic())):
            return
        try:
            seconds = until - time.monotonic()
            if attempt.is_open and seconds > 0:
                self._sessions[number].get(
                    key,
                    self._zenoh.handlers.Callback(receive, attempt.end, indirect=False),
                    payload=request,
                    timeout=seconds,
                    target=self._zenoh.QueryTarget.ALL,
                    consolidation=self._zenoh.ConsolidationMode.NONE,  # a second answer is to be seen
                    congestion_control=self._zenoh.CongestionControl.BLOCK,
                    cancellation_token=cancellation,
                )
        except self._zenoh.ZError as error:
            if attempt.is_open:
                log.warning("A request to %s could not be sent: %s", name, reason_of(error))
            attempt.end()
        finally:
            self._ways[name].release()

    def _read(self, sample: zenoh.Sample, key: str) -> bytes | Absent:
        """Returns an answer, or what is wrong with it."""
        if len(sample.payload) > self.most_bytes:
            return Absent(f"answered with {len(sample.payload)} bytes, more than the {self.most_bytes} allowed")
        if str(sample.key_expr) != key or sample.kind != self._zenoh.SampleKind.PUT:
            return Absent("answered something else than it was asked")
        if sample.attachment is None:
            return sample.payload.to_bytes()
        mark = sample.attachment.to_bytes() if len(sample.attachment) <= len(TOO_LARGE) else b""
        return REFUSALS.get(mark, Absent("marked its answer in a way that is not known"))

    def _see(self, number: int, sample: zenoh.Sample) -> None:
        """Notes who comes and goes; runs in zenoh's own thread."""
        _, _, name, instance = str(sample.key_expr).split("/")
        with self._changed:
            connections = self._connections.get(name)
            if connections is None:
                return
            if sample.kind == self._zenoh.SampleKind.DELETE:
                connections.pop((number, instance), None)
            else:
                self._arrivals += 1
                connections[number, instance] = self._arrivals
                for oldest in sorted(connections, key=connections.__getitem__)[:-MOST_CONNECTIONS]:
                    del connections[oldest]
            self._changed.notify_all()
        log.info("%s: %s %s", self.name, name, "is here" if connections else "is gone")

    def _receive(self, query: zenoh.Query) -> None:
        """Hands a request on to a thread of ours; runs in zenoh's own, which must not wait."""
        sender = self._senders_by_key.get(str(query.key_expr))
        if sender is None or query.payload is None:
            log.warning("%s dropped a request with the key %s", self.name, printable(query.key_expr)[:200])
            return
        with self._changed:
            if self._closed or self._pending[sender] >= MOST_PENDING:
                log.warning("%s dropped a request of %s: %d wait already", self.name, sender, self._pending[sender])
                return
            self._pending[sender] += 1
            self._handlers.submit(self._answer, sender, query)

    def _answer(self, sender: str, query: zenoh.Query) -> None:
        """Answers one request; what goes wrong is told in the log here, and to the sender only that it did."""
        try:
            with query:  # leaving it says that nothing more comes
                answer, mark = self._handle(sender, query.payload)
                with self._ways[sender]:
                    query.reply(query.key_expr, answer, attachment=mark)
        except self._zenoh.ZError as error:  # who asked is gone, or this end is closed
            log.warning("%s could not send an answer to %s: %s", self.name, sender, reason_of(error))
        finally:
            with self._changed:
                self._pending[sender] -= 1

    def _handle(self, sender: str, payload: Any) -> tuple[bytes, bytes | None]:
        """Returns the handler's answer, or nothing and the mark of a refusal."""
        if len(payload) > self.most_bytes:
            log.warning("%s refused %d bytes of %s: %d are allowed", self.name, len(payload), sender, self.most_bytes)
            return b"", TOO_LARGE
        try:
            answer = self._handler(sender, payload.to_bytes())
        except Exception:
            log.exception("%s could not answer a request of %s", self.name, sender)
            return b"", FAILED
        if len(answer) > self.most_bytes:
            log.warning("%s kept %d bytes for %s: %d are allowed", self.name, len(answer), sender, self.most_bytes)
            return b"", TOO_LARGE
        return answer, None

    def close(self) -> None:
        """Leaves: says so to the others, gives the port back and ends the threads."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()

        def stop() -> None:
            for session in self._sessions:
                with suppress(self._zenoh.ZError):  # somebody who reads nothing was not told in time
                    session.close()
            for pool in (self._handlers, self._senders):
                pool.shutdown(wait=True, cancel_futures=True)

        stopping = threading.Thread(target=stop, daemon=True)
        stopping.start()
        stopping.join(CLOSE_SECONDS)
        if stopping.is_alive():
            log.warning("%s was closed with a request or a connection still under way", self.name)


def open_session(zenoh: Any, settings: Mapping[str, Any]) -> Any:
    config = zenoh.Config()
    for path, value in settings.items():
        config.insert_json5(path, json.dumps(value))
    return zenoh.open(config)


def failed_to(listen: Sequence[str], connect: Sequence[str]) -> str:
    return f"listen on {', '.join(listen)}" if listen else f"connect to {', '.join(connect)}"


def reason_of(error: Exception) -> str:
    """Returns zenoh's reason in one line, without the places in its source."""
    return re.sub(r" at \S+\.rs:\d+\.?", "", printable(error).replace("\n", " ")).strip(" .")[:300]
