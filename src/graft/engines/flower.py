"""Flower carries the messages: its grid at the server, its client app at a party. The one file that knows Flower.

No code of a federation travels: both apps are here, installed, and hand bytes to what is named in their settings.
Flower starts a process for every message, so a party is opened from its folder each time.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from graft.engines.wire import Absent, Handler, Patience
from graft.errors import GraftError, InputError
from graft.files import explained, printable

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise InputError("Flower is not installed: pip install 'graft-fgl[flower]'.") from error

ASK, NAME = "ask", "name"  # what a party can be asked: a request of the engine, or who it is
OPEN_PARTY = "graft.experiments.flower_run:open_party"  # of a party that names no other
RAW = "raw"  # how the bytes of a message are written: as they are
LOOK_SECONDS = (0.01, 0.2)  # between two looks for answers, at first and at most; Flower itself would wait 3
TRANSIT_SECONDS = 5.0  # that Flower keeps a message after its answer is of no use: late is not the same as lost
ASK_AGAIN_SECONDS = 10.0  # before a node that could not say its name is asked for it once more
LONGEST_REASON = 300  # letters of somebody else's text that are passed on
IN_A_SIMULATION = {"partition-id", "num-partitions"}  # all that a node of Flower's simulation is told of itself
NOT_CONNECTED = Absent("is not connected")
NODE_UNAVAILABLE = 5
ERRORS = {  # Flower's codes of errors
    1: "cannot load Graft's app",
    2: "failed in Graft's app",
    3: "did not answer before the message expired",
    4: "answered, but the answer was lost",
    NODE_UNAVAILABLE: NOT_CONNECTED.reason,
    6: "has a mod that refused the message",
    7: "was sent an app that it does not accept",
    8: "lost the process that worked on it",
}

log = logging.getLogger(__name__)


class NotAnAnswer(ValueError):
    """Says why a message cannot be read or answered, as what follows a name in a sentence."""


def wrap(data: bytes, **head: str) -> RecordDict:
    """Returns bytes and a few words about them as Flower's records, which cuts large ones into pieces on the way."""
    body = Array("uint8", (len(data),), RAW, data)
    return RecordDict({"head": ConfigRecord({**head}), "body": ArrayRecord({"bytes": body})})


def unwrap(content: RecordDict) -> tuple[dict[str, str], bytes]:
    """Returns the head and the bytes of records that `wrap` made; anything else is `NotAnAnswer`."""
    head, body = content.get("head"), content.get("body")
    if not isinstance(head, ConfigRecord) or not isinstance(body, ArrayRecord) or set(body) != {"bytes"}:
        raise NotAnAnswer("sent something that is no message of Graft")
    array = body["bytes"]
    words = {name: value for name, value in head.items() if isinstance(value, str)}
    if array.stype != RAW or not isinstance(array.data, bytes) or len(words) != len(head):
        raise NotAnAnswer("sent something that is no message of Graft")
    return words, array.data


# The server's side.


class Directory:
    """Which of Flower's nodes is which party: by the name it was registered with, or by what it says itself."""

    def __init__(self, grid: Grid, parties: Collection[str], registered: bool) -> None:
        self._grid, self._parties, self._registered = grid, parties, registered
        self._names: dict[int, str] = {}  # of nodes, as far as they are known
        self._asked: dict[str, int] = {}  # questions for a name that are open, by message
        self._ask_again: dict[int, float] = {}  # nodes that could not say their name, and when they are asked again
        self._online: set[int] = set()

    def look(self) -> None:
        """Sees which nodes are there, asks those who are new for their name, and hears those who answered."""
        nodes = {node.node_id: node.name for node in self._grid.get_nodes()}
        self._online = set(nodes)
        for node in self._online - set(self._names) - set(self._asked.values()):
            if self._registered:
                self._note(node, nodes[node])
            elif time.monotonic() >= self._ask_again.get(node, 0) and (
                question := push(self._grid, Message(wrap(b""), node, f"query.{NAME}"))
            ):
                self._asked[question] = node
        for message in self._grid.pull_messages(list(self._asked)) if self._asked else ():
            self._hear(message)

    def _hear(self, message: Message) -> None:
        node = self._asked.pop(message.metadata.reply_to_message_id, None)
        if node is None:
            return
        try:
            if message.has_error():
                raise NotAnAnswer(reason_of(message))
            head, _ = unwrap(message.content)
            if "failed" in head:
                raise NotAnAnswer(brief(head["failed"]))
        except NotAnAnswer as error:
            log.warning("Flower's node %d does not say its name: it %s.", node, error)
            self._ask_again[node] = time.monotonic() + ASK_AGAIN_SECONDS
        else:
            self._note(node, head.get("party", ""))

    def _note(self, node: int, name: str) -> None:
        self._names[node] = name
        if name not in self._parties:
            says = f"'{brief(name)}'" if name else "nobody by name"
            log.warning("Flower's node %d is %s, not a party of this federation, and is left alone.", node, says)

    def of(self, party: str) -> int | Absent:
        """Returns the node of a party, or why there is none."""
        nodes = [node for node in self._online if self._names.get(node) == party]
        if len(nodes) > 1:
            return Absent(f"is the name of {len(nodes)} nodes at once")
        return nodes[0] if nodes else NOT_CONNECTED

    def present(self) -> set[str]:
        return {party for party in self._parties if not isinstance(self.of(party), Absent)}


class FlowerNode:
    """The server, which asks parties through Flower's grid."""

    def __init__(self, grid: Grid, name: str, parties: Collection[str], *, registered: bool = True) -> None:
        """Takes nodes for the parties that they were registered as, or, unless `registered`, say themselves to be."""
        self.name = name
        self._grid = grid
        self._directory = Directory(grid, parties, registered)
        self._asked = 0  # how many times

    def present(self) -> set[str]:
        self._directory.look()
        return self._directory.present()

    def meet(self, parties: Collection[str], seconds: float) -> set[str]:
        """Waits until all these parties are there, or so long, and returns who is."""
        end = time.monotonic() + seconds
        for pause in pauses():
            present = self.present()
            if present >= set(parties) or time.monotonic() >= end:
                return present
            time.sleep(pause)
        raise AssertionError("pauses never end")

    def ask(self, requests: Mapping[str, bytes], patience: Patience) -> dict[str, bytes | Absent]:
        self._asked += 1
        return Asking(self._grid, self._directory, requests, patience, str(self._asked)).answers()

    def close(self) -> None:
        """Leaves the grid as it is: Flower closes it when the app ends."""


class Sent(NamedTuple):
    """A message that waits for its reply."""

    party: str
    node: int


class Asking:
    """One exchange: a message a party, until all have answered or it is time."""

    def __init__(
        self, grid: Grid, directory: Directory, requests: Mapping[str, bytes], patience: Patience, group: str
    ) -> None:
        self._grid, self._directory, self._requests, self._patience = grid, directory, requests, patience
        self._group = group
        self._answers: dict[str, bytes | Absent] = {}
        self._sent: dict[str, Sent] = {}  # by message
        self._lost: dict[str, float] = {}  # since when parties are not connected
        self._start = time.monotonic()
        self._end = self._start + patience.seconds

    def answers(self) -> dict[str, bytes | Absent]:
        """Returns what each answers, or why it does not."""
        for pause in pauses():
            self._send()
            self._receive()
            self._count()
            left = self._end - time.monotonic()
            if len(self._answers) == len(self._requests) or left <= 0:
                break
            time.sleep(min(pause, left))
        late = Absent(f"did not answer within {time.monotonic() - self._start:.3g} s")
        lost = dict.fromkeys(self._lost, NOT_CONNECTED)
        return {party: self._answers.get(party, lost.get(party, late)) for party in self._requests}

    def _send(self) -> None:
        waiting = {sent.party for sent in self._sent.values()}
        open_parties = [party for party in self._requests if party not in self._answers and party not in waiting]
        if open_parties:
            self._directory.look()
        for party in open_parties:
            node = self._directory.of(party)
            if node == NOT_CONNECTED:
                self._lose(party)
            elif isinstance(node, Absent):
                self._answers[party] = node
            else:
                self._send_to(party, node)

    def _send_to(self, party: str, node: int) -> None:
        # What is not delivered by then is dropped by Flower.
        useful = max(self._end - time.monotonic(), 0) + TRANSIT_SECONDS
        content = wrap(self._requests[party], party=party)
        message = push(self._grid, Message(content, node, f"query.{ASK}", ttl=useful, group_id=self._group))
        if message is None:
            self._lose(party)
        else:
            self._sent[message] = Sent(party, node)
            self._lost.pop(party, None)

    def _lose(self, party: str) -> None:
        since = self._lost.setdefault(party, time.monotonic())
        if time.monotonic() - since >= self._patience.comeback:
            self._answers[party] = NOT_CONNECTED

    def _receive(self) -> None:
        for message in self._grid.pull_messages(list(self._sent)) if self._sent else ():
            sent = self._sent.pop(message.metadata.reply_to_message_id, None)
            if sent is None:  # nobody was asked that
                continue
            if message.has_error() and message.error.code == NODE_UNAVAILABLE:
                self._lose(sent.party)
            else:
                self._answers[sent.party] = answer_of(message, sent)

    def _count(self) -> None:
        answered = sum(isinstance(answer, bytes) for answer in self._answers.values())
        if self._patience.quorum is not None and answered >= self._patience.quorum:
            self._end = min(self._end, time.monotonic() + self._patience.grace)
            self._patience = self._patience._replace(quorum=None)  # the others' time runs from now on


def pauses() -> Iterator[float]:
    """Returns how long to wait between looks, longer each time: an exchange may take milliseconds or minutes."""
    shortest, longest = LOOK_SECONDS
    for number in itertools.count():
        yield min(shortest * 1.2 ** min(number, 50), longest)


def push(grid: Grid, message: Message) -> str | None:
    """Returns the number that Flower gives a message, or None where it does not take it."""
    # One by one: of several that are pushed together it is not always said which one was not taken.
    return next(iter(grid.push_messages([message])), None) or None


def answer_of(message: Message, sent: Sent) -> bytes | Absent:
    """Returns the bytes of a reply, if it is one of the very party that was asked."""
    if message.has_error():
        return Absent(reason_of(message))
    if message.metadata.src_node_id != sent.node:
        return Absent("was answered for by another node")
    try:
        head, data = unwrap(message.content)
    except NotAnAnswer as error:
        return Absent(str(error))
    if "failed" in head:
        return Absent(brief(head["failed"]))
    if head.get("party") != sent.party:
        return Absent(f"answered as '{brief(head.get('party', ''))}'")
    return data


def reason_of(message: Message) -> str:
    """Returns why a reply is an error, as the end of a sentence."""
    code, reason = message.error.code, message.error.reason
    known = ERRORS.get(code, f"failed with Flower's error {code}")
    return f"{known}: {brief(reason)}" if reason and code in (1, 2, 6) else known


def brief(text: str) -> str:
    """Returns somebody else's text in one line that is not too long and moves no cursor."""
    return printable(" ".join(text.split()))[:LONGEST_REASON]


# A party's side.


class Place(NamedTuple):
    """Where a party is kept, and who it is."""

    name: str
    folder: Path
    server: str  # whom it answers
    open_party: str  # module:function that returns the handler of a folder


def place_of(context: Context) -> Place:
    """Returns the place of this node's party: in a deployment as the party itself has it, in a simulation by number."""
    own, run = context.node_config, context.run_config
    if set(own) == IN_A_SIMULATION:
        parties, number = str(run["parties"]).split(","), int(own["partition-id"])
        if number >= len(parties):
            raise InputError(f"This federation has {len(parties)} parties; Flower simulates more nodes than that.")
        folder = Path(str(run["folders"])) / parties[number]
        return Place(parties[number], folder, str(run["server"]), str(run["open-party"]))
    missing = [name for name in ("name", "folder") if name not in own]
    if missing:
        raise InputError(f'This node\'s --node-config has no {missing[0]}, as in \'name="bank_a" folder="bank_a"\'.')
    server, open_party = own.get("server", run["server"]), own.get("open-party", OPEN_PARTY)
    return Place(str(own["name"]), Path(str(own["folder"])), str(server), str(open_party))


client_app = ClientApp()


@client_app.query(NAME)
def tell_name(message: Message, context: Context) -> Message:
    """Replies with the party's name."""
    return reply(message, lambda: wrap(b"", party=place_of(context).name))


@client_app.query(ASK)
def answer(message: Message, context: Context) -> Message:
    """Replies with what the party answers to a request."""
    return reply(message, lambda: answered(message, place_of(context)))


def answered(message: Message, place: Place) -> RecordDict:
    """Returns what the party of a place answers, opened from its folder and left closed."""
    head, data = unwrap(message.content)
    if head.get("party") != place.name:
        raise NotAnAnswer(f"was asked as '{brief(head.get('party', ''))}', but is {place.name}")
    open_party: Callable[[str], Handler] = load(place.open_party)
    with one_at_a_time(place.folder):
        return wrap(open_party(str(place.folder))(place.server, data), party=place.name)


def reply(message: Message, act: Callable[[], RecordDict]) -> Message:
    """Returns the reply to a message; what went wrong stays in this party's log, since it may hold private values."""
    try:
        content = act()
    except NotAnAnswer as error:
        content = wrap(b"", failed=str(error))
    except Exception as error:
        log.error("A message was not answered: %s", error, exc_info=not isinstance(error, GraftError))
        content = wrap(b"", failed=f"failed with {type(error).__name__}: its own log says why")
    return Message(content, reply_to=message)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Waits until no other process works on a message to this party: one that the server gave up may go on here."""
    with explained(f"{folder} cannot be used", InputError):
        file = (folder / ".answering").open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def load(target: str) -> Any:
    """Returns the function that `module:function` names."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"'{target}' cannot be loaded: {error}.") from error


# The server's app.

server_app = ServerApp()


@server_app.main()
def conduct(grid: Grid, context: Context) -> None:
    """Meets the parties and has the function that the settings name serve them: it is given the server's node, the
    text of the federation's file and the folder for its run."""
    run = context.run_config
    parties = str(run["parties"]).split(",")
    # A simulation has no registered nodes, and all its parties are on one machine.
    node = FlowerNode(grid, str(run["server"]), parties, registered=not run["folders"])
    node.meet(parties, float(run["meeting-seconds"]))
    load(str(run["serve"]))(node, str(run["federation"]), str(run["out"]))
