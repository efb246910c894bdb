"""``millstream group``: list, describe, reset and delete groups of consumers, share groups and streams groups included.

``reset`` shows what it would do; only ``--execute`` does it, and only while the group has no members, because running
consumers would overwrite it. ``delete`` does it at once; the broker refuses it while the group has members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from millstream.cli.completion import complete_groups
from millstream.cli.connect import admin_client, answer, explained, fates, offsets_at, partition_numbers, report_fates
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import as_json_option, bootstrap_option, timeout_option
from millstream.cli.output import emit, print_facts, print_json, print_table, remark
from millstream.cli.positions import EXPECTED, parse_position, resolve
from millstream.model.marks import is_mark

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.cli.confluent import AdminClient, ConsumerGroupDescription
    from millstream.cli.epochs import Epochs
    from millstream.cli.streams_group import StreamsGroup
    from millstream.client.share_groups import ShareGroup


name_argument = click.argument(
    "name", metavar="GROUP", shell_complete=complete_groups, help="Name of the consumer group."
)
names_argument = click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="GROUP...",
    help="Names of consumer groups.",
    shell_complete=complete_groups,
)

SHARE: Final = "SHARE"
STREAMS: Final = "STREAMS"
STATES: Final = {
    "empty": "EMPTY",
    "stable": "STABLE",
    "preparing-rebalance": "PREPARING_REBALANCING",
    "completing-rebalance": "COMPLETING_REBALANCING",
}
"""Accepted spellings of a group state → its name in confluent-kafka."""
TYPES: Final = {"classic": "CLASSIC", "consumer": "CONSUMER", "share": SHARE, "streams": STREAMS}


class PartitionLag(NamedTuple):
    """The position of a group in one partition. ``committed`` is None where it has no offset, ``end_offset`` where the
    partition is not served, or the offset is a writer's mark, after which there is no lag (``model.marks``).
    """

    topic: str
    partition: int
    committed: int | None
    end_offset: int | None
    member: str | None
    client: str | None
    host: str | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        if self.committed is None or self.end_offset is None:
            return None
        return max(self.end_offset - self.committed, 0)


@click.command("list")
@click.option(
    "--state", multiple=True, metavar="STATE", help=f"Only groups in this state: {', '.join(STATES)}; may be repeated."
)
@click.option(
    "--type",
    "kind",
    multiple=True,
    metavar="TYPE",
    help="Only groups of this type: classic, consumer, share, streams; may be repeated.",
)
@as_json_option
@bootstrap_option
@timeout_option
def list_groups(state: tuple[str, ...], kind: tuple[str, ...], as_json: bool, bootstrap: str, timeout: float) -> None:
    """List consumer groups and their states."""
    from millstream.cli.confluent import ConsumerGroupState, ConsumerGroupType

    wanted: dict[str, Any] = {}
    kinds = _meant("--type", kind, TYPES)
    if state:
        wanted["states"] = {ConsumerGroupState[name] for name in _meant("--state", state, STATES)}
    if kind:
        wanted["types"] = {ConsumerGroupType[name] for name in kinds if name not in (SHARE, STREAMS)}
    rows: list[tuple[str, str, str]] = []
    if not kinds or set(kinds) - {SHARE, STREAMS}:
        client = admin_client(bootstrap)  # kept until the response arrives, because it closes with its last reference
        with explained("groups", bootstrap):
            future = client.list_consumer_groups(request_timeout=timeout, **wanted)
        listing = answer(future, "groups", bootstrap, timeout + 1)
        if listing.errors and not listing.valid:
            with explained("groups", bootstrap):
                raise listing.errors[0]
        rows += [(group.group_id, group.state.name.lower(), _kind(group)) for group in listing.valid]
    rows += _newer_groups(kinds or [SHARE, STREAMS], state, bootstrap, timeout)
    rows.sort()
    if as_json:
        print_json([{"group": name, "state": state, "type": kind} for name, state, kind in rows])
    else:
        print_table(
            ["GROUP", "STATE", "TYPE"],
            rows,
            empty="there are no such consumer groups"
            if wanted
            else "there are no consumer groups; 'millstream consume --group NAME' makes one",
        )


@click.command("describe")
@name_argument
@as_json_option
@bootstrap_option
@timeout_option
def describe(name: str, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Show a group's members, committed offsets and lag, and the epochs of a consumer group."""
    if _describe_share_group(name, bootstrap, timeout, as_json=as_json):
        return
    if _describe_streams_group(name, bootstrap, timeout, as_json=as_json):
        return
    client = admin_client(bootstrap)
    group = _description(client, name, bootstrap, timeout)
    committed, marks = _committed(name, bootstrap, timeout)
    if group.state.name in ("DEAD", "UNKNOWN") and not committed:
        raise CommandFailed(f"there is no group '{name}'; 'millstream group list' shows those that exist")
    owners = {
        (entry.topic, entry.partition): (member.member_id, member.client_id, member.host)
        for member in group.members
        for entry in (member.assignment.topic_partitions if member.assignment else None) or ()
    }
    lags = _lags(client, name, owners, committed, marks, bootstrap, timeout)
    total = sum(lag.lag or 0 for lag in lags)
    state = group.state.name.lower()
    coordinator = group.coordinator.id if group.coordinator else None
    epochs = _epochs(group, timeout)
    if as_json:
        document: dict[str, object] = {"group": name, "state": state, "type": _kind(group)}
        document |= {"assignor": group.partition_assignor, "coordinator": coordinator}
        if epochs is not None:
            document |= {"epoch": epochs.group, "assignment_epoch": epochs.assignment, "member_epochs": epochs.members}
        partitions = [lag._asdict() | {"lag": lag.lag} for lag in lags]
        print_json({**document, "members": len(group.members), "lag": total, "partitions": partitions})
        return
    facts: list[tuple[str, object]] = [("group", name), ("state", state), ("type", _kind(group))]
    facts.append(("assignor", group.partition_assignor))
    if epochs is not None:
        facts += [("epoch", epochs.group), ("assignment epoch", epochs.assignment)]
    print_facts([*facts, ("coordinator", coordinator), ("members", len(group.members)), ("lag", f"{total:,}")])
    _print_lags(lags)


def _print_lags(lags: Sequence[PartitionLag]) -> None:
    emit("\n")
    columns = ["TOPIC", "#PARTITION", "#COMMITTED", "#END", "#LAG", "MEMBER", "CLIENT", "HOST"]
    rows = [(lag.topic, lag.partition, lag.committed, lag.end_offset, lag.lag, *lag[4:]) for lag in lags]
    print_table(columns, rows, empty="the group has committed nothing and has no partitions")


@click.command("reset")
@name_argument
@click.option(
    "--to", required=True, metavar="WHERE", help=f"Where the group shall stand: earliest, latest, or {EXPECTED}."
)
@click.option(
    "--topic",
    "-t",
    multiple=True,
    metavar="TOPIC[:PARTITION,…]",
    help="Only this topic, or some of its partitions; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="Every topic that the group has offsets in.")
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@as_json_option
@bootstrap_option
@timeout_option
def reset(
    name: str,
    to: str,
    topic: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    as_json: bool,
    bootstrap: str,
    timeout: float,
) -> None:
    """Move a group's committed offsets. Only shows the change without --execute."""
    if bool(topic) == all_topics:
        raise WrongUsage("give either --topic TOPIC or --all-topics, to say which offsets are to be moved")
    position = parse_position(to, "--to")
    client = admin_client(bootstrap)
    shares = _share_group(name, bootstrap, timeout)
    streams = _streams_group(name, bootstrap, timeout) if shares is None else None
    newer = shares or streams
    if newer is None:
        members = len(_description(client, name, bootstrap, timeout).members)
    else:
        members = len(newer.described.members)
    if members and execute:
        raise CommandFailed(
            f"group '{name}' is active with {members} member{'s' if members > 1 else ''}, which would overwrite the "
            "new offsets; stop its consumers first"
        )
    if shares is None:
        committed, _ = _committed(name, bootstrap, timeout)
    else:
        committed = {(one.topic, one.partition): one.start for one in shares.positions if one.start is not None}
    chosen = _chosen(client, topic, committed, bootstrap, timeout)
    if not chosen:
        raise CommandFailed(f"group '{name}' has no committed offsets; name what to set with --topic TOPIC")
    target = resolve(client, chosen, position, bootstrap, timeout)
    if execute and shares is None:
        _commit(client, name, target, bootstrap, timeout)
    elif execute:
        _reset_share_group(name, target, bootstrap, timeout)
    rows = [(*place, committed.get(place), offset) for place, offset in sorted(target.items())]
    if as_json:
        names = ("topic", "partition", "committed", "new")
        print_json(
            {"group": name, "executed": execute, "partitions": [dict(zip(names, row, strict=True)) for row in rows]}
        )
        return
    print_table(["TOPIC", "#PARTITION", "#COMMITTED", "#NEW"], rows)
    warning = f"; the group has {members} active members, stop them first" if members else ""
    remark(f"moved group '{name}'" if execute else f"nothing was changed, --execute does it{warning}")


@click.command("delete")
@names_argument
@click.option("--if-exists", is_flag=True, help="Do not complain about groups that do not exist.")
@as_json_option
@bootstrap_option
@timeout_option
def delete(names: tuple[str, ...], if_exists: bool, as_json: bool, bootstrap: str, timeout: float) -> None:
    """Delete groups that have no members, with their committed offsets. This cannot be undone."""
    client = admin_client(bootstrap)
    with explained(f"group '{names[0]}'", bootstrap):
        futures = client.delete_consumer_groups(list(dict.fromkeys(names)), request_timeout=timeout)
    tolerated = "GROUP_ID_NOT_FOUND" if if_exists else ""
    found = fates(futures, "group", tolerated, bootstrap, timeout + 1)
    report_fates(found, "group", "deleted", "there was no", as_json=as_json)


def _newer_groups(
    kinds: Sequence[str], states: tuple[str, ...], bootstrap: str, timeout: float
) -> list[tuple[str, str, str]]:
    """Share groups and streams groups in one of these states, as rows of a list: confluent-kafka leaves them out."""
    from millstream.cli.share_group import list_groups_of
    from millstream.cli.streams_group import STREAMS_GROUP_DESCRIBE
    from millstream.cli.transaction import transaction_cluster
    from millstream.client.share_groups import SHARE_GROUP_DESCRIBE

    apis = {SHARE: SHARE_GROUP_DESCRIBE, STREAMS: STREAMS_GROUP_DESCRIBE}
    wanted = [(kind.lower(), api) for kind, api in apis.items() if kind in kinds]
    if not wanted:
        return []
    with transaction_cluster(bootstrap, timeout) as cluster:
        return [
            (group.group_id, group.group_state.lower(), kind)
            for kind, api in wanted
            for group in list_groups_of(cluster, kind, api, states)
        ]


def _share_group(name: str, bootstrap: str, timeout: float) -> ShareGroup | None:
    """A share group; None if the group is of another type."""
    from millstream.cli.transaction import transaction_cluster
    from millstream.client.share_groups import share_group

    with transaction_cluster(bootstrap, timeout) as cluster:
        return share_group(cluster, name)


def _reset_share_group(name: str, target: dict[tuple[str, int], int], bootstrap: str, timeout: float) -> None:
    from millstream.cli.transaction import transaction_cluster
    from millstream.client.share_groups import set_starts

    with transaction_cluster(bootstrap, timeout) as cluster:
        set_starts(cluster, name, target)


def _describe_share_group(name: str, bootstrap: str, timeout: float, *, as_json: bool) -> bool:
    """Show a share group: where it starts in each partition, and how many records it has to finish. False: it is
    none.
    """
    found = _share_group(name, bootstrap, timeout)
    if found is None:
        return False
    group, positions = found.described, found.positions
    known = [one.lag for one in positions if one.lag is not None]
    total = sum(known) if known else None
    facts: list[tuple[str, object]] = [("group", name), ("state", group.group_state.lower()), ("type", "share")]
    facts += [("assignor", group.assignor_name), ("epoch", group.group_epoch)]
    facts += [("assignment epoch", group.assignment_epoch), ("coordinator", found.coordinator)]
    facts += [("members", len(group.members)), ("lag", total if as_json or total is None else f"{total:,}")]
    if as_json:
        document = {fact.replace(" ", "_"): value for fact, value in facts}
        print_json(document | {"partitions": [one._asdict() for one in positions]})
        return True
    print_facts(facts)
    emit("\n")
    print_table(["TOPIC", "#PARTITION", "#START", "#LAG", "#MEMBERS"], positions, empty="the group has read nothing")
    return True


def _streams_group(name: str, bootstrap: str, timeout: float) -> StreamsGroup | None:
    """A streams group; None if the group is of another type."""
    from millstream.cli.streams_group import streams_group
    from millstream.cli.transaction import transaction_cluster

    with transaction_cluster(bootstrap, timeout) as cluster:
        return streams_group(cluster, name)


def _describe_streams_group(name: str, bootstrap: str, timeout: float, *, as_json: bool) -> bool:
    """Show a streams group: its epochs, its tasks, and how far it has read. False: it is another kind of group."""
    found = _streams_group(name, bootstrap, timeout)
    if found is None:
        return False
    group, topology = found.described, found.described.topology
    committed, marks = _committed(name, bootstrap, timeout)
    lags = _lags(admin_client(bootstrap), name, found.owners, committed, marks, bootstrap, timeout)
    total = sum(lag.lag or 0 for lag in lags)
    facts: list[tuple[str, object]] = [("group", name), ("state", group.group_state.lower()), ("type", "streams")]
    facts += [("epoch", group.group_epoch), ("assignment epoch", group.assignment_epoch)]
    facts += [("topology epoch", None if topology is None else topology.epoch), ("coordinator", found.coordinator)]
    facts += [("members", len(group.members)), ("lag", total if as_json else f"{total:,}")]
    kinds = ("active", "standby", "warmup")
    tasks = [
        (f"{one.subtopology_id}_{partition}", kind, member.member_id, member.process_id)
        for member in group.members
        for kind in kinds
        for one in getattr(member.assignment, f"{kind}_tasks")
        for partition in one.partitions
    ]
    if as_json:
        document = {fact.replace(" ", "_"): value for fact, value in facts}
        shown = [dict(zip(("task", "kind", "member", "process"), task, strict=True)) for task in sorted(tasks)]
        print_json(document | {"tasks": shown, "partitions": [one._asdict() | {"lag": one.lag} for one in lags]})
        return True
    print_facts(facts)
    emit("\n")
    print_table(["TASK", "KIND", "MEMBER", "PROCESS"], sorted(tasks), empty="no member runs a task")
    _print_lags(lags)
    return True


def _meant(option: str, texts: Sequence[str], known: dict[str, str]) -> list[str]:
    """The state names for the given words, in any letter case and with any kind of dash."""
    names: list[str] = []
    for text in texts:
        name = known.get(text.strip().lower().replace("_", "-"))
        if name is None:
            raise WrongUsage(f"{option}: {text!r} is not valid, expected one of {', '.join(known)}")
        names.append(name)
    return names


def _epochs(group: ConsumerGroupDescription, timeout: float) -> Epochs | None:
    """None for a group that has no epochs."""
    if _kind(group) != "consumer":
        return None
    from millstream.cli.epochs import group_epochs

    coordinator = group.coordinator
    return group_epochs(group.group_id, coordinator.host, coordinator.port, timeout)


def _description(client: AdminClient, name: str, bootstrap: str, timeout: float) -> ConsumerGroupDescription:
    what = f"group '{name}'"
    with explained(what, bootstrap):
        futures = client.describe_consumer_groups([name], request_timeout=timeout)
    return answer(futures[name], what, bootstrap, timeout + 1)


def _committed(name: str, bootstrap: str, timeout: float) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
    """The committed offsets of a group, and the partitions of which they are a writer's marks.

    By our own client: confluent-kafka reads past the end of an offset's metadata, because librdkafka does not end it.
    """
    from millstream.cli.transaction import transaction_cluster
    from millstream.client.coordinators import Coordinators
    from millstream.client.transactional import committed_offsets

    with transaction_cluster(bootstrap, timeout) as cluster:
        found = committed_offsets(Coordinators(cluster), name, stable=False)
    entries = {place: entry for place, entry in found.items() if entry.offset >= 0}
    marks = {place for place, entry in entries.items() if is_mark(entry.metadata)}
    return {place: entry.offset for place, entry in entries.items()}, marks


def _lags(
    client: AdminClient,
    name: str,
    owners: Mapping[tuple[str, int], tuple[str, str, str]],
    committed: dict[tuple[str, int], int],
    marks: set[tuple[str, int]],
    bootstrap: str,
    timeout: float,
) -> list[PartitionLag]:
    from millstream.cli.confluent import OffsetSpec, TopicPartition

    named_partitions = sorted(committed.keys() | owners.keys())
    specs = {TopicPartition(*place): OffsetSpec.latest() for place in named_partitions}
    ends = offsets_at(client, specs, f"group '{name}'", bootstrap, timeout, served_only=True)
    lags: list[PartitionLag] = []
    for place in named_partitions:
        who = owners.get(place, (None, None, None))
        lags.append(PartitionLag(*place, committed.get(place), None if place in marks else ends.get(place), *who))
    return lags


def _chosen(
    client: AdminClient, topics: Sequence[str], committed: dict[tuple[str, int], int], bootstrap: str, timeout: float
) -> list[tuple[str, int]]:
    """The partitions that a reset is about: those named, or all that the group has offsets in."""
    if not topics:
        return sorted(committed)
    chosen: list[tuple[str, int]] = []
    for text in topics:
        topic, separator, numbers = text.partition(":")
        known = partition_numbers(client, topic, bootstrap, timeout)
        try:
            wanted = [int(number) for number in numbers.split(",")] if separator else known
        except ValueError:
            raise WrongUsage(f"--topic: {text!r} is not valid, expected TOPIC or TOPIC:0,1,2") from None
        for number in wanted:
            if number not in known:
                raise WrongUsage(f"--topic: topic '{topic}' has no partition {number}, its last one is {known[-1]}")
        chosen += [(topic, number) for number in wanted]
    return sorted(set(chosen))


def _commit(client: AdminClient, name: str, target: dict[tuple[str, int], int], bootstrap: str, timeout: float) -> None:
    from millstream.cli.confluent import ConsumerGroupTopicPartitions, TopicPartition

    what = f"group '{name}'"
    offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in target.items()]
    with explained(what, bootstrap):
        futures = client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name, offsets)], request_timeout=timeout
        )
    done = answer(futures[name], what, bootstrap, timeout + 1)
    for entry in done.topic_partitions or ():
        if entry.error is not None:
            raise CommandFailed(
                f"{what} was not moved in {entry.topic} partition {entry.partition}: {entry.error.str()}"
            )


def _kind(group: Any) -> str:
    return "simple" if group.is_simple_consumer_group else group.type.name.lower()
