"""A server and parties for the tests of Flower: they are opened by name, in processes that Flower starts."""

import json
import os
import time
from pathlib import Path

from graft.engines.wire import Absent, Patience
from graft.errors import InputError


def open_counting(folder):
    """Returns a party that answers a request with its own bytes, and who asked how many times; counted on its disk."""
    path = Path(folder) / "count"

    def handle(sender, data):
        if data.startswith(b"fail"):
            raise RuntimeError("a secret of this party")
        if data.startswith(b"refuse"):
            raise InputError("refuses this step")
        if data.startswith(b"sleep"):
            time.sleep(float(data[5:]))
        if data.startswith(b"die"):
            os._exit(9)
        count = int(path.read_text()) + 1 if path.is_file() else 1
        path.write_text(str(count))
        return f"{sender} {count} ".encode() + data[:100] + len(data).to_bytes(8, "little")

    return handle


def serve_echo(node, federation, out):
    """Asks all parties the same a few times, and writes what was answered and how long that took."""
    parties = json.loads(os.environ["PARTIES"])
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    rounds = []
    for request in json.loads(os.environ["REQUESTS"]):
        data = bytes(request["size"]) if "size" in request else request["text"].encode()
        start = time.perf_counter()
        answers = node.ask(dict.fromkeys(parties, data), Patience(request.get("seconds", 120)))
        seconds = time.perf_counter() - start
        told = {
            party: answer.reason if isinstance(answer, Absent) else answer.hex() for party, answer in answers.items()
        }
        rounds.append({"seconds": seconds, "answers": told})
    result = {"name": node.name, "present": sorted(node.present()), "federation": federation, "rounds": rounds}
    (folder / "answers.json").write_text(json.dumps(result))


TOYS = {}  # by folder: what opens a party that a test has made


def open_toy(folder):
    """Returns what answers for a party of a test, made anew from its folder."""
    return TOYS[Path(folder)]().handle
