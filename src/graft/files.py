"""Files that are replaced whole and read within bounds, checksums of what they hold, and text that is safe to show."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from graft.errors import InputError, RunError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Schema = TypeVar("Schema")
LARGEST_TEXT = 2**30  # bytes of a text file that is read at all
PART = ".part"  # ends the name of a file that is being written


@contextmanager
def explained(what: str, error_type: type[InputError] | type[RunError]) -> Iterator[None]:
    """Turns a full disk, a missing permission, a deleted folder or too little memory into one sentence."""
    try:
        yield
    except MemoryError as error:
        raise error_type(f"{what}: there is not enough memory.") from error
    except UnicodeEncodeError as error:
        text = printable(error.object[error.start : error.end])
        raise error_type(f"{what}: {text!r} cannot be written as UTF-8.") from error
    except OSError as error:
        raise error_type(f"{what}: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Replaces a file in one go: after a crash it is the old one or the new one."""
    with explained(f"{path} cannot be written", RunError):
        write_bytes(path, text.encode())


def write_bytes(path: Path, *content: bytes) -> None:
    """Replaces a file in one go, and returns when it is on the disk; an error is the system's own."""
    part = path.with_name(path.name + PART)
    with part.open("wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def replace_bytes(path: Path, *content: bytes) -> None:
    """Replaces a file in one go: whoever kills this process leaves the old one or the new one, but a power failure may
    leave anything of the new one."""
    part = path.with_name(path.name + PART)
    with part.open("wb") as file:
        file.writelines(content)
    part.replace(path)


def sync_file(path: Path) -> None:
    """Returns when what was appended to a file is on the disk."""
    _sync(path, os.O_RDWR)


def sync_folder(path: Path) -> None:
    """Returns when the names in a folder are on the disk."""
    _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """Returns the text of a plain file; a pipe or an absurdly large file is an `OSError`, as is a missing one."""
    size = path.stat().st_size
    if not path.is_file():
        raise OSError(f"{path} is not a plain file")
    if size > LARGEST_TEXT:
        raise OSError(f"{path} has {size} bytes, more than the {LARGEST_TEXT} that are read")
    return path.read_text(encoding="utf-8")


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text; all that can be wrong with it is a `ValueError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from error


def checksum(*parts: bytes | str) -> str:
    """Returns a short checksum of some texts, each of which counts with its length."""
    return repeated_checksum(parts, len(parts))


def repeated_checksum(parts: Sequence[bytes | str], count: int) -> str:
    """Returns the `checksum` of so many texts, of which entry k is part k modulo their number."""
    digest = hashlib.blake2b(digest_size=16)
    contents = [part.encode() if isinstance(part, str) else part for part in parts]
    framed = [len(content).to_bytes(8, "little") + content for content in contents]
    once = b"".join(framed)
    times, more = divmod(count, max(len(framed), 1))
    block = max(1, min(times, 2**20 // max(len(once), 1)))  # about a megabyte at a time
    for _ in range(times // block):
        digest.update(once * block)
    digest.update(once * (times % block) + b"".join(framed[:more]))
    return digest.hexdigest()


def canonical(value: Any) -> str:
    """Returns the one text of a JSON value, whatever the order of its keys was."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def seal(content: Mapping[str, Any], *bound_to: str) -> dict[str, Any]:
    """Returns the content with a checksum of itself and of what it belongs to."""
    return {**content, "checksum": checksum(canonical(content), *bound_to)}


def unseal(sealed: Any, *bound_to: str) -> dict[str, Any]:
    """Returns content without its checksum; a `ValueError` where it is not what was sealed."""
    if not isinstance(sealed, dict):
        raise ValueError(f"it holds a {type(sealed).__name__} instead of named values")
    if "checksum" not in sealed:
        raise ValueError("it has no checksum, like files of earlier versions of Graft")
    content = {name: value for name, value in sealed.items() if name != "checksum"}
    if sealed["checksum"] != checksum(canonical(content), *bound_to):
        raise ValueError("its checksum does not match what it holds")
    return content


def parse_sealed(sealed: Any, schema: TypeAdapter[Schema], format: str, where: str, *bound_to: str) -> Schema:
    """Returns what a sealed JSON value holds, checked against its checksum, its format and its schema."""
    from pydantic import ValidationError

    written = sealed.get("format") if isinstance(sealed, dict) else None
    if isinstance(written, str) and written.startswith(format.rstrip("0123456789")) and written != format:
        raise InputError(
            f"{where} has the format {printable(written)[:40]} of another version of Graft; this one reads {format}, "
            f"so go on with that version."
        )
    values = unseal(sealed, *bound_to)
    try:
        contents = schema.validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if written != format:
        raise ValueError(f"its format is {written!r}, not {format!r}")
    return contents


class Lock:
    """A lock on a folder that the system gives up with the process that holds it."""

    def __init__(self, folder: Path) -> None:
        """Takes the lock, or refuses where another process has it."""
        path = folder / ".lock"
        with explained(f"{folder} cannot be written to", InputError):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._take()
            except BlockingIOError:
                os.close(self._descriptor)
                raise InputError(f"Another run or resume is writing into {folder}; wait for its end.") from None
            except OSError:
                os.close(self._descriptor)
                raise

    def _take(self) -> None:
        for _ in range(200):
            with suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            # Those who just look, as `is_locked` does, let others look as well; one who writes does not, and ends this.
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            time.sleep(0.005)
        raise BlockingIOError

    def release(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_locked(path: Path) -> bool:
    """Returns whether a process holds a lock on a file or folder; no if it is not there, or cannot be locked at all."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment; others who look do not mind
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def printable(text: object) -> str:
    """Returns text from outside as it can be shown: control characters, as of terminals, are spelled out."""
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in str(text)
    )
