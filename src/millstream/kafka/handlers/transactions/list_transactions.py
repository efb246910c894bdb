"""ListTransactions: every transactional id that this broker coordinates, on all shards.

Filters by state, producer id, time that the transaction has been open (it is for transactions that are running only),
and a pattern in RE2's syntax, which must match the whole id. States that do not exist are named in the response.
"""

from millstream.coordinator.transactions import Listed
from millstream.core.group.regex import check_expression, matcher
from millstream.core.txn.state import BY_NAME
from millstream.errors import Rejected
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.list_transactions import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)


def handle(node: Node, ctx: RequestContext, request: ListTransactionsRequest) -> None:
    """Answer when every shard has listed its ids."""
    unknown = [state for state in request.state_filters if state not in BY_NAME]
    pattern = request.transactional_id_pattern
    if pattern:
        try:
            check_expression(pattern)
        except Rejected as error:
            ctx.respond(ListTransactionsResponse(error_code=error.code, unknown_state_filters=unknown))
            return
    matches = matcher(pattern) if pattern else None
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    now_ms = node.shard.reactor.wall_ms()

    def passes(one: Listed) -> bool:
        transactional_id, producer_id, state, start_ms = one
        return (
            (not states or state in states)
            and (not producers or producer_id in producers)
            and (request.duration_filter < 0 or 0 <= start_ms < now_ms - request.duration_filter)
            and (matches is None or matches(transactional_id))
        )

    def done(error: ErrorCode, listed: list[Listed]) -> None:
        found = [ListedTransaction(*one[:3]) for one in listed if passes(one)]
        ctx.respond(ListTransactionsResponse(error_code=error, unknown_state_filters=unknown, transaction_states=found))

    node.transactions.list(done)
