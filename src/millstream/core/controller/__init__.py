"""The controller's decisions: which brokers, topics, partitions, configurations and producer-id blocks exist, and what
may change.

Read ``commands`` (what can happen), ``state`` (what has happened), ``requests`` (what can be asked), then ``decide``.
Beside requests there are plans, which look at the state and say what should be done next: who is alive (``liveness``),
who votes on the cluster's metadata (``quorum``), where replicas go (``placement``), who should lead (``leaders``).
"""

from millstream.core.controller.leaders import plan_transfers
from millstream.core.controller.liveness import Liveness
from millstream.core.controller.quorum import plan_members

__all__ = ["Liveness", "plan_members", "plan_transfers"]
