"""Messages between a shard and its helper processes: their types (``commands``) and the socket (``channel``).

The room promises: messages arrive whole and in order per channel; sending never blocks the reactor; payload travels as
places in the shared arena. What is absent: any work on files.
"""
