"""Check the rights that a relay's role needs, and suggest the statements that grant them."""

from collections.abc import Sequence

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_identifier, quote_qualified
from bwtui.source import publication
from bwtui.source.catalog import TableInfo
from bwtui.source.connection import Connection, query
from bwtui.source.publication import PublishedTable
from bwtui.source.sql_hints import format_sql

# On Amazon RDS, membership in a role grants the right to replicate, not the attribute.
_ROLE_SQL = """
select r.rolname, r.rolsuper or r.rolreplication or exists (
         select from pg_catalog.pg_roles m
          where m.rolname = 'rds_replication' and pg_catalog.pg_has_role(r.oid, m.oid, 'member'))
  from pg_catalog.pg_roles r where r.rolname = current_user
"""
_CREATE_SQL = """
select current_user, current_database(), pg_catalog.pg_is_in_recovery(),
       pg_catalog.has_database_privilege(current_database(), 'create'),
       exists (select from pg_catalog.pg_publication where pubname = %s)
"""
#: For each table: whether the role may use its schema, whether rows are hidden, and the unreadable columns.
_READ_SQL = """
select n.nspname, c.relname, pg_catalog.has_schema_privilege(n.oid, 'usage'),
       pg_catalog.row_security_active(c.oid),
       array(select a.attname::text from pg_catalog.pg_attribute a
              where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                and (a.attgenerated = '' or {generated})
                and not pg_catalog.has_column_privilege(c.oid, a.attnum, 'select'))
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.oid = any(%s) order by 1, 2
"""


def check_replicate(connection: Connection) -> str:
    """Return the role's name. Raises RefusedError if it may not replicate."""
    role, allowed = query(connection, _ROLE_SQL)[0]
    if not allowed:
        raise RefusedError(
            f"role {role} lacks the REPLICATION privilege",
            f"let a superuser run: {format_sql(f'ALTER ROLE {quote_identifier(role)} REPLICATION')}",
        )
    return str(role)


def check_create(connection: Connection, name: str, tables: Sequence[TableInfo]) -> str:
    """Return a note that both publications will be created. Raises RefusedError if they can't be."""
    companion = publication.unkeyed_name(name)
    ((role, database, in_recovery, may_create, stands_alone),) = query(connection, _CREATE_SQL, companion)
    if stands_alone:
        message = f"publication {companion} exists, but {name} does not"
        raise RefusedError(message, publication.drop_companion_hint(name))
    statements = format_sql(*publication.create_statements(name, tables))
    if in_recovery:
        message = f"the server is a standby, and publication {name} does not exist"
        raise RefusedError(message, f"run on the primary: {statements}")
    lacking = [] if may_create else [f"lacks the CREATE privilege on database {database}"]
    # A superuser owns them all.
    if unowned := [table.qualified_name for table in tables if not table.owned]:
        lacking.append(f"does not own {', '.join(unowned)}")
    if lacking:
        message = f"role {role} can't create publication {name}: it {' and '.join(lacking)}"
        raise RefusedError(message, f"let a superuser run: {statements}")
    return f"{name} and {companion} will be created"


def check_read(
    connection: Connection, tables: Sequence[TableInfo], published: Sequence[PublishedTable]
) -> str:
    """Return the number of tables, in words. Raises RefusedError if a snapshot could not read one of them."""
    columns = {(table.namespace, table.name): table.columns for table in published}
    closed: dict[str, None] = {}
    hidden: list[tuple[str, str]] = []
    rows_hidden = []
    listable = connection.server_version >= 180000 and published
    sql = _READ_SQL.format(generated="true" if listable else "false")
    for namespace, name, is_open, hides_rows, unreadable in query(connection, sql, [t.oid for t in tables]):
        chosen = columns.get((namespace, name))
        if not is_open:
            closed[namespace] = None
        if any(chosen is None or column in chosen for column in unreadable):
            hidden.append((namespace, name))
        if hides_rows:
            rows_hidden.append(f"{namespace}.{name}")
    role = query(connection, "select current_user")[0][0]
    grantee = quote_identifier(role)
    granted = [f"GRANT USAGE ON SCHEMA {quote_identifier(schema)} TO {grantee}" for schema in closed]
    if hidden:
        listed = ", ".join(quote_qualified(*table) for table in hidden)
        granted.append(f"GRANT SELECT ON {listed} TO {grantee}")
    if granted:
        names = [f"schema {schema}" for schema in closed] + [".".join(table) for table in hidden]
        raise RefusedError(
            f"role {role} can't read {', '.join(names)}", f"let the owner run: {format_sql(*granted)}"
        )
    if rows_hidden:
        raise RefusedError(
            f"row-level security hides rows of {', '.join(rows_hidden)} from role {role}",
            f"let a superuser run: {format_sql(f'ALTER ROLE {grantee} BYPASSRLS')}",
        )
    return f"{len(tables)} tables"
