"""The file in which a job on whole topics says what it does: written once and synced, before the job does anything."""

import os
from typing import Final, TypeVar

import msgspec

from millstream.errors import Rejected

JOB_FILE: Final = "job.json"

_Job = TypeVar("_Job", bound=msgspec.Struct)


def job_of(directory: str, kind: type[_Job]) -> _Job | None:
    """The job that a directory belongs to; None if it belongs to none so far.

    Raises:
        Rejected: the job is of another kind.
    """
    try:
        with open(os.path.join(directory, JOB_FILE), "rb") as file:
            return msgspec.json.decode(file.read(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError:
        raise Rejected(f"{directory} belongs to a job of another kind: give this one another --id") from None


def begin_job(directory: str, job: msgspec.Struct) -> None:
    """Make the directory of a job, with its file."""
    path = os.path.join(directory, JOB_FILE)
    os.makedirs(directory, exist_ok=True)
    with open(path + ".new", "wb") as file:
        file.write(msgspec.json.encode(job))
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
