"""Names that a shell completes: topics, groups and settings. They are asked of the broker that the command would ask.

A shell waits for the answer while a person looks at it, so a broker has ``_ASK_S``, and nothing is proposed where none
answers. Never raises: an error would be printed into the line that is being typed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.cli.options import BOOTSTRAP_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click

_ASK_S: Final = 2.0


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Topics that start with what was typed; internal ones only if that starts with ``__``."""
    try:
        from millstream.cli.connect import admin_client

        found = admin_client(_bootstrap(ctx)).list_topics(timeout=_ASK_S).topics
    except Exception:  # noqa: BLE001 - there is nothing to propose
        return []
    return _fitting(
        (name for name in found if incomplete.startswith("__") or not name.startswith("__")), ctx, param, incomplete
    )


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Consumer groups that start with what was typed."""
    try:
        from millstream.cli.connect import admin_client
        from millstream.cli.share_group import list_groups_of
        from millstream.cli.streams_group import STREAMS_GROUP_DESCRIBE
        from millstream.cli.transaction import transaction_cluster
        from millstream.client.share_groups import SHARE_GROUP_DESCRIBE

        listed = admin_client(_bootstrap(ctx)).list_consumer_groups(request_timeout=_ASK_S).result(_ASK_S + 1)
        found = [group.group_id for group in listed.valid]
        with transaction_cluster(_bootstrap(ctx), _ASK_S) as cluster:
            for kind, api in (("share", SHARE_GROUP_DESCRIBE), ("streams", STREAMS_GROUP_DESCRIBE)):
                found += [group.group_id for group in list_groups_of(cluster, kind, api, ())]
    except Exception:  # noqa: BLE001 - there is nothing to propose
        return []
    return _fitting(found, ctx, param, incomplete)


def complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Settings of the broker that start with what was typed."""
    from millstream.config.node_properties import NODE_PROPERTIES

    names = (name for name, declaration in NODE_PROPERTIES.items() if not declaration.hidden)
    return _fitting(names, ctx, param, incomplete)


def _fitting(names: Iterable[str], ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names that start with what was typed and do not stand there already, and that a line can hold."""
    given = ctx.params.get(param.name or "")
    there = set(given) if isinstance(given, tuple) else set()
    return sorted(name for name in names if name.startswith(incomplete) and name not in there and name.isprintable())


def _bootstrap(ctx: click.Context) -> str:
    return str(ctx.params.get("bootstrap") or BOOTSTRAP_DEFAULT)
