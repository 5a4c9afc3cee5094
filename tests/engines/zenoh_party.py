"""A party in a process of its own, which tests kill, freeze and start again: NAME KEYS ADDRESS MARK [slow].

It answers with what it is asked; a slow one makes a file, its mark, and never answers.
"""

import sys
import time
from pathlib import Path

from graft.engines.zenoh import ZenohNode
from graft.keys import load_keys


def main(name, keys, address, mark, pace="quick"):
    def answer(_, request):
        if pace == "slow":
            Path(mark).touch()
            time.sleep(300)
        return request

    folder = Path(keys)
    ZenohNode(name, load_keys(folder, name), answer, others=["server"], connect=[address], namespace="trial")
    time.sleep(300)


if __name__ == "__main__":
    main(*sys.argv[1:])
