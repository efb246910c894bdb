"""Backups of a cluster in an object store: made, listed, verified, restored into a new cluster, and drilled.

::

    cluster ──Kafka's API──► create ──► records/…   batches as the log has them, by range
                                   └──► backups/NAME.json   the root: what there is, written last
    records/…, backups/NAME.json ──► verify           every byte is read
                                 └─► restore ──► an empty cluster, with the offsets of before
                                        └── drill: into a broker of its own, and compared

Everything is read as the caller and through Kafka's API (``source``), from the leaders, so the layout of the brokers,
of their cores and of their disks does not matter. What Kafka's API does not show or take has APIs of its own: events
with their data, verifiers of passwords, batches with their offsets (``wire.messages.restore_batches``).

**What a backup has**: topics with their settings, the committed records of each partition, offsets of consumer groups,
start offsets of share groups, users, ACLs, quotas, dynamic settings of brokers, of groups and of client metrics, and
``_schemas`` as the topic that it is. It is complete alone: records of tiered and shared topics are copied, and not
referred to. It does not have transactional ids, passwords among settings (``create`` notes them), and what a share
group has done from its start on.

**Promises.** A backup is there when its root is; the root is written last, under a free name. Offsets of groups
and starts of share groups are read first, so none lies beyond the records. An object is named by its content: it is
never changed, and what one backup has written the next ones refer to. A restored cluster has the same records at the
same offsets.

**Bad input.** A damaged object or root is named, and nothing is made of it. **Crash.** A run of ``create`` that dies
leaves objects without a root; the next run uses those that it would write itself. A run of ``restore`` that dies is
continued by the same command, and by no other (``restore``). **Overload.** One request is outstanding at a time, and
one object is in memory.

What is absent: schedules, removal of old backups but by ``create --keep``, encryption (that of the bucket).
"""
