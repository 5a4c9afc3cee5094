"""Files as users have them, good and bad: functions that write them into a folder."""

import io
import zipfile

import numpy as np


def write(**texts):
    """A function that writes texts into files; __ stands for / and _ before the suffix for a dot."""

    def files(folder):
        for name, text in texts.items():
            path = folder / ".".join(name.replace("__", "/").rsplit("_", 1))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return files


def together(*parts):
    def files(folder):
        for part in parts:
            part(folder)

    return files


# Tables: a bank of forty accounts, and what can be wrong with it.

HEADER = "account_id,fraud,amount,branch"
ROWS = [f"n{row},{'yes' if row % 4 == 0 else 'no'},{row}.5,{'ab'[row % 2]}" for row in range(40)]
PAYMENTS = "sender,receiver\n" + "".join(f"n{row},n{row + 1}\n" for row in range(39))


def accounts(changes=None, header=HEADER):
    """The table of accounts with some of its rows replaced."""
    rows = [(changes or {}).get(number, row) for number, row in enumerate(ROWS)]
    return "\n".join([header, *rows]) + "\n"


def bank(name="alpha", nodes=None, edges=PAYMENTS):
    return write(**{f"{name}__accounts_csv": accounts() if nodes is None else nodes, f"{name}__payments_csv": edges})


def data_file(text, *banks):
    return together(write(data_toml=text), *map(bank, banks))


ALPHA = '[clients]\nalpha = "alpha"\n'

# Archives of numpy.


def arrays(**changes):
    random = np.random.default_rng(0)
    graph = {"x": random.normal(size=(30, 4)), "edges": random.integers(0, 30, (2, 80)), "y": np.arange(30) % 3}
    return {name: values for name, values in (graph | changes).items() if values is not None}


def npz(name="a", **changes):
    return lambda folder: np.savez(folder / f"{name}.npz", **arrays(**changes))


def archive():
    """The bytes of a good archive."""
    stream = io.BytesIO()
    np.savez(stream, **arrays())
    return stream.getvalue()


def truncated(folder):
    content = archive()
    (folder / "a.npz").write_bytes(content[: len(content) // 2])


def bomb(folder):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**20, 2**9)})
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as file, file.open("x.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(300):  # of the 4,096 megabytes that it declares
            member.write(bytes(2**20))


def encrypted(folder):
    content = bytearray(archive())
    for start in (content.find(b"PK\x03\x04") + 6, content.find(b"PK\x01\x02") + 8):
        content[start] |= 1
    (folder / "a.npz").write_bytes(content)


def pyg(x, shape_of_edges, y):
    """A function of a user that makes a PyG Data."""
    lines = ["import torch", "from torch_geometric.data import Data", "def load():"]
    edges = f"torch.zeros({shape_of_edges}, dtype=torch.long)"
    return write(own_py="\n".join([*lines, f"    return Data(x={x}, edge_index={edges}, y={y})\n"]))
