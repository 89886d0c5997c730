"""What the service asks of Citus, in a plain Postgres: its catalogue, and functions that fill it.

It distributes nothing. It shows that the service takes the right steps in the right order, and how it works on a
database that says that it is distributed. What a real cluster accepts was found out on a real cluster.
"""

from typing import Any

import psycopg

OTHER = "node-two:5432"

_CATALOG = """
    SET allow_system_table_mods = on;
    INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
    VALUES (9999, 'citus', 10, 'pg_catalog'::regnamespace, false, '14.0-1');
    CREATE TABLE pg_catalog.pg_dist_partition (
        logicalrelid regclass PRIMARY KEY, kind text, place int GENERATED ALWAYS AS IDENTITY);
    CREATE TABLE pg_catalog.pg_dist_node (
        groupid int, nodename text, nodeport int, noderole text, isactive bool, shouldhaveshards bool,
        answers bool DEFAULT true, pgvector text DEFAULT '0.8.5');
    INSERT INTO pg_catalog.pg_dist_node (groupid, nodename, nodeport, noderole, isactive, shouldhaveshards)
    VALUES (0, 'node-zero', 5432, 'primary', true, false), (1, 'node-one', 5432, 'primary', true, true),
           (2, 'node-two', 5432, 'primary', true, true);
    CREATE TABLE pg_catalog.pg_dist_placement (shardid bigint, groupid int);
    INSERT INTO pg_catalog.pg_dist_placement VALUES (1, 1), (2, 2);
    GRANT SELECT ON pg_catalog.pg_dist_partition, pg_catalog.pg_dist_node, pg_catalog.pg_dist_placement TO PUBLIC;
    CREATE TABLE public.citus_refuses (relname text, reason text);
"""
_FUNCTIONS = """
    CREATE FUNCTION public.create_distributed_table(name text, column_name text, colocate_with text) RETURNS void
    LANGUAGE plpgsql AS $$
    DECLARE cause text := (SELECT reason FROM citus_refuses WHERE relname = name);
    BEGIN
        IF cause IS NOT NULL THEN RAISE EXCEPTION '%', cause USING ERRCODE = 'feature_not_supported'; END IF;
        PERFORM 1 FROM pg_attribute WHERE attrelid = name::regclass AND attname = column_name;
        IF NOT FOUND THEN RAISE EXCEPTION 'column % does not exist', column_name; END IF;
        INSERT INTO pg_catalog.pg_dist_partition VALUES (name::regclass, column_name || ' with ' || colocate_with);
    END $$;
    CREATE FUNCTION public.create_reference_table(name text) RETURNS void LANGUAGE sql AS $$
        INSERT INTO pg_catalog.pg_dist_partition VALUES (name::regclass, 'reference') $$;
    CREATE FUNCTION public.truncate_local_data_after_distributing_table(name text) RETURNS void LANGUAGE sql AS $$
        SELECT FROM pg_catalog.pg_dist_partition WHERE logicalrelid = name::regclass $$;
    CREATE FUNCTION public.run_command_on_workers(command text)
    RETURNS TABLE (nodename text, nodeport int, success bool, result text) LANGUAGE sql AS $$
        SELECT nodename, nodeport, answers, CASE WHEN NOT answers THEN 'connection refused'
               WHEN command LIKE '%pg_extension%' THEN pgvector ELSE '1' END
        FROM pg_catalog.pg_dist_node WHERE shouldhaveshards $$;
    -- users whose id begins with "other" are on the second node
    CREATE FUNCTION public.get_shard_id_for_distribution_column(name text, value text) RETURNS bigint LANGUAGE sql AS $$
        SELECT CASE WHEN value LIKE 'other%' THEN 2 ELSE 1 END $$;
    CREATE FUNCTION public.fail_to_reach_node() RETURNS void LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'connection to the remote node node-two:5432 failed' USING ERRCODE = '08006'; END $$;
"""
_LOST_COMMIT = """
    CREATE FUNCTION public.lose_commit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not commit transaction for shard 1' USING ERRCODE = 'XX000'; END $$;
    CREATE CONSTRAINT TRIGGER lose_commit AFTER INSERT ON projects DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION public.lose_commit();
"""


def install_fake_citus(url: str) -> None:
    """`url` is a superuser's."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_CATALOG)
        connection.execute(_FUNCTIONS)


def change_fake_citus(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement that changes or reads the fake's tables."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET allow_system_table_mods = on")
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def lose_node(url: str, name: str = "node-two", *, answers: bool = False) -> None:
    change_fake_citus(url, f"UPDATE pg_catalog.pg_dist_node SET answers = {answers} WHERE nodename = '{name}'")


def lose_node_at_commit(url: str) -> None:
    """Let every commit of a new project fail as Citus does when it loses a node then."""
    change_fake_citus(url, _LOST_COMMIT)
