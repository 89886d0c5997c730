from app.db.distribution import COORDINATOR_TABLES, KEY_COLUMNS, REFERENCE_TABLES, TENANT_COLUMNS
from app.db.tables import metadata


def test_each_table_has_one_place() -> None:
    placed = [*TENANT_COLUMNS, *KEY_COLUMNS, *REFERENCE_TABLES, *COORDINATOR_TABLES]
    assert sorted(placed) == sorted(metadata.tables)


def test_the_users_are_distributed_first() -> None:
    assert next(iter(TENANT_COLUMNS.items())) == ("users", "id")


def test_a_primary_key_includes_the_column_that_its_table_is_distributed_by() -> None:
    for name, column in {**TENANT_COLUMNS, **KEY_COLUMNS}.items():
        assert column in metadata.tables[name].primary_key.columns, name


def test_a_foreign_key_between_tenant_tables_joins_the_rows_of_one_user() -> None:
    for name, column in TENANT_COLUMNS.items():
        for key in metadata.tables[name].foreign_key_constraints:
            pairs = [(each.parent.name, each.column.name) for each in key.elements]
            assert (column, TENANT_COLUMNS[key.referred_table.name]) in pairs, key
