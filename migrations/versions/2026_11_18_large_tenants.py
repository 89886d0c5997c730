"""What the search of very large tenants reads: narrow rows with indexes of their own, and counts.

A row of `large_tenant_tools` holds what is indexed of a search row whose `ann` is set, and triggers keep the two equal.
It is a table of its own because Postgres writes a row's entries in all indexes again when any indexed column changes or
the page is full: hiding ten thousand tools, or counting a use, would insert ten thousand vectors into the HNSW graph.
"""

from alembic import op

from migrations.statements import execute_each

revision = "2026_11_18_large_tenants"
down_revision = "2026_11_18_retention"
branch_labels = None
depends_on = None

TABLES = """
CREATE TABLE large_tenant_tools (
    user_id text NOT NULL,
    model text NOT NULL,
    tool_id text NOT NULL,
    name text NOT NULL,
    terms integer[] NOT NULL,
    embedding halfvec,
    PRIMARY KEY (user_id, model, tool_id)
);
CREATE INDEX large_tenant_tools_name ON large_tenant_tools (user_id, model, name);

-- the few tools with a prior are read by every change of the catalogue
CREATE INDEX mcp_tool_embeddings_prior ON mcp_tool_embeddings (user_id, model) WHERE prior <> 0;

CREATE TABLE large_tenant_terms (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    model text NOT NULL,
    term_id integer NOT NULL,
    tools integer NOT NULL,
    PRIMARY KEY (user_id, model, term_id)
);

CREATE TABLE large_tenant_stats (
    user_id text NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    model text NOT NULL,
    project_id text NOT NULL,
    version bigint NOT NULL,
    searched integer NOT NULL,
    tokens bigint NOT NULL,
    tags text[] NOT NULL,
    PRIMARY KEY (user_id, model, project_id)
);
"""

# The text form of a sparsevec is {index:value,…}/dimensions. Casts from text are not immutable, but this one is.
TERMS = r"""
CREATE FUNCTION sparsevec_indices(terms sparsevec) RETURNS integer[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT split_part(regexp_replace(terms::text, ':[^,}]+', '', 'g'), '/', 1)::integer[]
$$;
"""

TRIGGERS = """
CREATE FUNCTION sync_large_tenant_tool() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' AND NEW.ann THEN
        INSERT INTO large_tenant_tools AS stored (user_id, model, tool_id, name, terms, embedding)
        VALUES (NEW.user_id, NEW.model, NEW.tool_id, lower(NEW.tool_name), sparsevec_indices(NEW.lexical),
                NEW.embedding)
        ON CONFLICT (user_id, model, tool_id) DO UPDATE
        SET name = excluded.name, terms = excluded.terms, embedding = excluded.embedding
        WHERE (stored.name, stored.terms, stored.embedding)
              IS DISTINCT FROM (excluded.name, excluded.terms, excluded.embedding);
    ELSE
        DELETE FROM large_tenant_tools
        WHERE user_id = OLD.user_id AND model = OLD.model AND tool_id = OLD.tool_id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER large_tenant_insert AFTER INSERT ON mcp_tool_embeddings
    FOR EACH ROW WHEN (NEW.ann) EXECUTE FUNCTION sync_large_tenant_tool();
CREATE TRIGGER large_tenant_update AFTER UPDATE OF ann, embedding, lexical, tool_name ON mcp_tool_embeddings
    FOR EACH ROW WHEN (OLD.ann OR NEW.ann) EXECUTE FUNCTION sync_large_tenant_tool();
CREATE TRIGGER large_tenant_delete AFTER DELETE ON mcp_tool_embeddings
    FOR EACH ROW WHEN (OLD.ann) EXECUTE FUNCTION sync_large_tenant_tool();
"""

FILL = """
INSERT INTO large_tenant_tools (user_id, model, tool_id, name, terms, embedding)
SELECT user_id, model, tool_id, lower(tool_name), sparsevec_indices(lexical), embedding
FROM mcp_tool_embeddings WHERE ann
"""

OWN = "user_id = (SELECT current_setting('app.user_id', true))"
IN_SYSTEM_SCOPE = "(SELECT current_setting('app.scope', true)) = 'system'"
PRIVILEGES = {
    "large_tenant_tools": "SELECT, INSERT, UPDATE, DELETE",
    "large_tenant_terms": "SELECT",
    "large_tenant_stats": "SELECT",
}

# Row-level security applies its policy before any operator that is not leakproof, and `&&` of arrays is not: under the
# policy, no plan can use an index on `terms`. The view belongs to the owner and has the policy's own condition instead.
# It shows nothing but ids and terms; what a search returns is then read from `mcp_tool_embeddings`, under its policy.
WORDS = f"""
CREATE VIEW large_tenant_words AS
    SELECT user_id, model, tool_id, terms FROM large_tenant_tools WHERE {OWN};
GRANT SELECT ON large_tenant_words TO toolscout_app;
"""


def upgrade() -> None:
    execute_each(TABLES)
    op.execute(TERMS)
    for table, privileges in PRIVILEGES.items():
        op.execute(f"GRANT {privileges} ON {table} TO toolscout_app")
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant ON {table} TO toolscout_app USING ({OWN} OR {IN_SYSTEM_SCOPE})")
    execute_each(WORDS)
    execute_each(TRIGGERS)
    op.execute(FILL)


def downgrade() -> None:
    for trigger in ("insert", "update", "delete"):
        op.execute(f"DROP TRIGGER large_tenant_{trigger} ON mcp_tool_embeddings")
    op.execute("DROP FUNCTION sync_large_tenant_tool")
    op.execute("DROP VIEW large_tenant_words")
    for table in reversed(PRIVILEGES):
        op.execute(f"DROP TABLE {table}")
    op.execute("DROP FUNCTION sparsevec_indices")
    op.execute("DROP INDEX mcp_tool_embeddings_prior")
