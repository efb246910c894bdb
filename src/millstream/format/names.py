"""How the files of a partition are called: twenty digits of the first offset, as Kafka does, so that names sort as
offsets do.

::

    topics/<topic id>/topic                          the topic's name, for people and for tools
    topics/<topic id>/<partition>/epochs             where the log starts, leader epochs
                                 /00000000000000000000.log  .index  .producers
                                 /fault              why this log may not be served (only after corruption was found)
    controller/log/…                                 the controller's log, the same files
    wal/<shard>/00000000.wal  state                  write-ahead log
    wal/opened                                       what an orderly stop knew of all logs
"""

SEGMENT_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
PRODUCERS_SUFFIX = ".producers"
RESCUED_SUFFIX = ".rescued"
TOPICS_DIRECTORY = "topics"
WAL_DIRECTORY = "wal"
EPOCHS_FILE = "epochs"
FAULT_FILE = "fault"
TOPIC_FILE = "topic"
WAL_SUFFIX = ".wal"
STATE_FILE = "state"
OPENED_FILE = "opened"
DELETED_SUFFIX = ".deleted"
TEMPORARY_SUFFIX = ".tmp"

_OFFSET_DIGITS = 20
_WAL_DIGITS = 8


def offset_name(offset: int, suffix: str) -> str:
    """The file name for something that starts at `offset`."""
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_offset(name: str, suffix: str) -> int | None:
    """The offset in a file name with this suffix; None for any other name."""
    digits = name.removesuffix(suffix)
    if len(digits) != _OFFSET_DIGITS or digits == name or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def wal_name(index: int) -> str:
    """The file name of a shard's write-ahead log file number `index`."""
    return f"{index:0{_WAL_DIGITS}d}{WAL_SUFFIX}"


def parse_wal_name(name: str) -> int | None:
    """The number in a write-ahead log file's name; None for any other name."""
    digits = name.removesuffix(WAL_SUFFIX)
    if len(digits) != _WAL_DIGITS or digits == name or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits)


def partition_directory(data_dir: str, topic_id: bytes, partition: int) -> str:
    """Where a partition's files are."""
    return f"{data_dir}/{TOPICS_DIRECTORY}/{topic_id.hex()}/{partition}"


def controller_directory(data_dir: str) -> str:
    """Where the files of the controller's log (group 0) are."""
    return f"{data_dir}/controller/log"


def wal_directory(data_dir: str, shard: int) -> str:
    """Where a shard's write-ahead log is."""
    return f"{data_dir}/{WAL_DIRECTORY}/{shard}"
