"""The HTTP of a monitor: GET and nothing else, one request a connection, bounded in size, in time and in number."""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

log = logging.getLogger(__name__)
MOST_BYTES = 8192  # of a request
MOST_SECONDS = 5.0  # for a request to come, and for a reply to go
MOST_AT_ONCE = 16  # requests; who comes while so many are under way is hung up on

Reply = tuple[int, str, bytes]  # status, type of content, content
Answer = Callable[[str], Reply | None]  # to a request for a path; None where there is none of that name


class Endpoint(ThreadingTCPServer):
    """Answers requests at an address until it is shut down."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 2 * MOST_AT_ONCE

    def __init__(self, family: socket.AddressFamily, bound_to: Any, answer: Answer) -> None:
        self.address_family, self.answer = family, answer
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(bound_to, OneRequest)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Leaves a connection that broke alone: nobody is there to be told."""
        log.debug("A request to the monitor was not answered", exc_info=True)


class OneRequest(BaseHTTPRequestHandler):
    """Reads the head of one request, replies and hangs up."""

    server: Endpoint
    server_version, sys_version = "graft", ""
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain; charset=utf-8"
    timeout = MOST_SECONDS

    def handle(self) -> None:
        self.command, self.requestline, self.request_version = "", "", "HTTP/1.0"  # where nothing can be read
        self.close_connection = True
        head = self._read_head()
        if len(head) > MOST_BYTES:
            self.send_error(431, "The request is too large")
            return
        if b"\n" not in head:  # it never came
            return
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if self.parse_request():
            self._reply()

    def _read_head(self) -> bytes:
        """Returns the request up to its empty line, or as much of it as came in time; at most a byte too many."""
        head, end = b"", time.monotonic() + MOST_SECONDS
        while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) <= MOST_BYTES:
            left = end - time.monotonic()
            if left <= 0:
                return b""
            self.connection.settimeout(left)
            try:
                received = self.connection.recv(MOST_BYTES + 1 - len(head))
            except TimeoutError:
                return b""
            if not received:
                break
            head += received
        self.connection.settimeout(MOST_SECONDS)
        return head

    def _reply(self) -> None:
        if self.command != "GET":
            status, kind, content = 405, "text/plain; charset=utf-8", b"405 Only GET is answered\n"
        else:
            nothing = 404, "text/plain; charset=utf-8", b"404 There are /health and /metrics\n"
            status, kind, content = self.server.answer(self.path.partition("?")[0]) or nothing
        self.send_response(status)
        if status == 405:
            self.send_header("Allow", "GET")
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(content))), ("Connection", "close")):
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing: a monitor is asked every few seconds."""
