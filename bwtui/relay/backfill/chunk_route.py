"""Find the route of a table to backfill, or why there is none."""

from bwtui.errors import RefusedError
from bwtui.model.backfill import BackfillRequest
from bwtui.pgoutput.messages import Relation
from bwtui.relay.backfill.outgoing_chunk import refuse_unlike
from bwtui.relay.backfill.row_policy import BackfillFailed
from bwtui.relay.context import RelayContext
from bwtui.relay.routes.route import TableRoute
from bwtui.source.chunks.chunk_reader import TableNotPublished


def excluded_error(table: str) -> BackfillFailed:
    """Return the failure for a table that --table or --exclude-table leaves out."""
    return BackfillFailed(
        TableNotPublished(f"the relay's options exclude table {table}", "see --table and --exclude-table")
    )


def route_of(context: RelayContext, request: BackfillRequest, relation: Relation) -> TableRoute:
    """Return the route of a chunk. Raises BackfillFailed if its rows can't be sent, or not as requested."""
    route = context.router.route(relation)
    if route is None:
        raise excluded_error(request.table)
    # In a first snapshot each row is dropped individually, as in the stream.
    is_dropped = request.reason == "first" and context.settings.on_error == "log"
    if route.refusal is not None and not is_dropped:
        raise BackfillFailed(route.refusal)
    try:
        refuse_unlike(route, request.topic, request.spelling)
    except RefusedError as error:
        raise BackfillFailed(error) from error
    return route
