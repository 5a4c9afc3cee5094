"""A grid of Flower's that is none: messages of its own classes, handed to client apps in this process."""

from types import SimpleNamespace

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid

from graft.engines.flower import client_app

PARTIES = ["bank_a", "bank_b", "bank_c"]
COUNTING = "tests.engines.flower_parties:open_counting"


class FakeGrid(Grid):
    """A grid that hands messages of Flower's own class to client apps in this process."""

    def __init__(self, folder, names=PARTIES, registered=True, open_party=COUNTING):
        self.node_configs, self.registered, self.pushed, self.replies = {}, {}, [], {}
        self.online = set()
        for number, name in enumerate(names):
            node = 900 - number  # in another order than names
            (folder / name).mkdir(exist_ok=True)
            config = {"name": name, "folder": str(folder / name), "open-party": open_party}
            self.add(node, name if registered else "", config)
        self.instead = {}  # of nodes: what is done instead of asking the client app

    def add(self, node, registered, config):
        self.node_configs[node], self.registered[node] = config, registered
        self.online.add(node)

    def set_run(self, run):
        raise NotImplementedError

    run = None

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, name=self.registered[node]) for node in self.online]

    def get_node_ids(self):
        return list(self.online)

    def push_messages(self, messages):
        return [self.push(message) for message in messages]

    def push(self, message):
        node = message.metadata.dst_node_id
        if node not in self.online:
            return None
        number = f"message-{len(self.pushed)}"
        message.metadata.__dict__["_message_id"] = number  # as Flower's own grids do
        self.pushed.append(message)
        context = Context(1, node, self.node_configs[node], RecordDict(), {"server": "hub"})
        reply = self.instead[node](message) if node in self.instead else client_app(message, context)
        if reply is not None:
            self.replies[number] = reply
        return number

    def pull_messages(self, message_ids):
        return [self.replies.pop(number) for number in list(message_ids) if number in self.replies]


def let_messages_be_made(monkeypatch):
    """Messages can be made, as in an app that Flower has started."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
