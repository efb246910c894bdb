"""Topics, users, rights, quotas and schemas as a file: ``millstream apply``.

::

    file ──model──► Wanted ──┐
                             plan (pure) ──► steps ──carrying_out──► requests of Kafka's API, as the caller
    cluster ──state──► Present ┘

**Promise.** After a run the cluster has what the file says. A second run finds nothing to do. What the file does not
name stays, unless pruning is asked for; pruning reaches only the kinds that the file has.

**Bad input.** Every complaint names file, line, field and the valid words, and nothing has changed. So does what the
cluster cannot become: fewer partitions, other replicas, an incompatible schema.

**A crash, a refusal or a lost connection** between two steps leaves the steps before it done. Each step is one request,
and each run compares the file with the cluster again, so the next run finishes the rest.

**A password** is in a file of its own, never in the file that is applied. It is used when its user is created; what it
is cannot be compared afterwards, so a user that exists keeps its password.

Absent: pipelines, settings of brokers, records.
"""
