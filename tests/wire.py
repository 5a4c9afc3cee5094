"""A wire in memory: nodes that hand bytes to each other's handlers, for tests of what is built on wires."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from graft.engines.wire import Absent, Handler, Patience


class MemoryWire:
    """Where nodes find each other by name."""

    def __init__(self):
        self.handlers: dict[str, Handler] = {}
        self.away: set[str] = set()  # who does not answer
        self.passed: list[tuple[str, str, bytes, bytes]] = []  # sender, recipient, request and answer

    def node(self, name: str, handler: Handler) -> "MemoryNode":
        self.handlers[name] = handler
        return MemoryNode(self, name)


class MemoryNode:
    """One end of it; answers arrive as they were given, unless `change` says otherwise."""

    def __init__(self, wire, name):
        self.wire, self.name = wire, name
        self.change = lambda sender, answer: answer  # noqa: ARG005

    def present(self) -> set[str]:
        return set(self.wire.handlers) - self.wire.away - {self.name}

    def ask(self, requests: Mapping[str, bytes], patience: Patience) -> dict[str, bytes | Absent]:  # noqa: ARG002
        def exchange(name, data):
            if name not in self.present():
                return Absent("is not connected")
            try:
                answer = self.change(name, self.wire.handlers[name](self.name, data))
            except Exception:  # its own log would say why
                return Absent("could not answer")
            self.wire.passed.append((self.name, name, data, answer))
            return answer

        with ThreadPoolExecutor(len(requests) or 1) as pool:
            answers = pool.map(exchange, requests.keys(), requests.values())
            return dict(zip(requests, answers, strict=True))

    def close(self) -> None:
        pass
