"""Find the route of a table to backfill, or why there is none."""

from bwtui.errors import RefusedError
from bwtui.model.backfill import BackfillRequest
from bwtui.pgoutput.messages import Relation
from bwtui.relay.backfill.outgoing import refuse_unlike
from bwtui.relay.backfill.refusals import Failed
from bwtui.relay.context import RelayContext
from bwtui.relay.routes.route import Route
from bwtui.source.chunks.reading import NotThere


def left_out(table: str) -> Failed:
    """Return the failure for a table that --table or --exclude-table leaves out."""
    return Failed(NotThere(f"the relay leaves table {table} out", "see --table and --exclude-table"))


def route_of(context: RelayContext, request: BackfillRequest, relation: Relation) -> Route:
    """Return the route of a chunk. Raises Failed if its rows can't be sent, or not as requested."""
    route = context.router.route(relation)
    if route is None:
        raise left_out(request.table)
    # In a first snapshot each row is dropped individually, as in the stream.
    is_dropped = request.reason == "first" and context.settings.on_error == "log"
    if route.refusal is not None and not is_dropped:
        raise Failed(route.refusal)
    try:
        refuse_unlike(route, request.topic, request.spelling)
    except RefusedError as error:
        raise Failed(error) from error
    return route
