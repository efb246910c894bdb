"""Tiers: history in an object store, and what a broker keeps of it.

::

    archiver          closed segments go to the store, their local copies go; retention of the whole log
    partition_archive what the group of one partition has committed of its archive; lookups, reads
    link              the reactor's side of the archive process: memory for reads, answers
    messages          what both say to each other
    process           the archive process: lanes, the store
    hot_tier          blocks kept on a disk or in memory, in front of the store
    shared_uploads    many partitions in one object: backlog, packs, commits in order, producers that wait
    shared_joins      small ranges of shared objects become larger objects of one partition
    shared_manifest   when the manifest object of a shared partition is written
    shared_sweeps     when unused shared objects are removed
    packing │ joining │ sweeping       the archive process's part of these; what objects say of themselves
    uploading │ reading                one segment up; batches and records back, through blocks
    part_files        old parts of manifests on the disk
    manifest          which segments are archived: packed, with old parts in objects. Pure

What the room promises. A local copy goes only when its object is durable, checked, and committed by the partition's own
group. What was committed is found again after a crash at any point. A reader gets the same batches, byte for byte, from
either place; bytes that do not match their checksum never leave. A store that does not answer costs readers of old
offsets a storage error, which they repeat, and producers nothing; those of shared topics wait once too much is not
uploaded.

What is absent: what an object store is (``objects``), who may read (``partition``).
"""

from millstream.tiers.manifest import Archive, Freed, Spill

__all__ = ["Archive", "Freed", "Spill"]
