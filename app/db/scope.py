"""What every transaction begins with: the app role and the rows that it may see.

Both are local to the transaction. Behind a pooler in transaction mode, each transaction may run on another connection
of the server, and a role that was set for the session could be missing there, and row-level security with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from psycopg import sql

from app.db.pipeline import Statement

APP_ROLE = "toolscout_app"

STATEMENT_TIMEOUT_S = 30

# plan_cache_mode: each statement is planned once, for all users. Planning a search takes as long as running it, every
#   statement filters by tenant first, and a plan that never changes cannot change for the worse.
# jit: compiling costs more than our short statements take.
# work_mem: keeps the scan of a large tenant in memory.
SETTINGS: dict[str, str] = {
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    "work_mem": "32MB",
    "statement_timeout": f"{STATEMENT_TIMEOUT_S}s",
}
# plan_cache_mode: Citus plans no statement without the values of its parameters.
# node_connection_timeout: a node that has vanished is away after three seconds. By default it takes half a minute, and
#   requests of its users hold their connections so long.
DISTRIBUTED_SETTINGS = {
    **{name: value for name, value in SETTINGS.items() if name != "plan_cache_mode"},
    "citus.node_connection_timeout": "3s",
}


class Mode(Enum):
    """How a connection takes the settings of a transaction."""

    SESSION = "session"
    """It is the service's own: `SETTINGS` were set when it was opened."""
    TRANSACTION = "transaction"
    """It leads to a pooler: each transaction sets `SETTINGS`, too."""
    DISTRIBUTED = "distributed"
    """Citus distributes the tables. It passes `SET LOCAL` on to the other nodes, but neither `set_config` nor what
    shares a message with other statements. `DISTRIBUTED_SETTINGS` are set when a connection is opened, and stored with
    the app role for the other nodes: passed on, each would cost a message per node."""
    DISTRIBUTED_TRANSACTION = "distributed transaction"
    """Distributed, and behind a pooler: each transaction sets `DISTRIBUTED_SETTINGS`, too, on the coordinator alone."""

    @property
    def is_distributed(self) -> bool:
        return self in (Mode.DISTRIBUTED, Mode.DISTRIBUTED_TRANSACTION)


@dataclass(frozen=True)
class Scope:
    """Whose rows a transaction sees."""

    user_id: str | None = None
    """None: the system's, all rows."""

    @property
    def setting(self) -> str:
        return _SCOPE_SETTING if self.user_id is None else _USER_SETTING

    @property
    def value(self) -> str:
        return "system" if self.user_id is None else self.user_id


@dataclass(frozen=True)
class Opening:
    """The statements that begin a transaction and bind it to a scope."""

    texts: Sequence[str] = ()
    """These are sent unprepared, each in a message of its own, and the first one is a BEGIN."""
    statements: Sequence[Statement] = ()


def open_transaction(scope: Scope, mode: Mode, *, snapshot: bool) -> Sequence[str]:
    """Return what begins a transaction of several round trips: each text is a message of its own.

    `snapshot`: read-only, and all statements see one state.
    """
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if snapshot else "BEGIN"
    if mode.is_distributed:
        return begin, *_local_settings(scope, mode)
    value = sql.Literal(scope.value).as_string(None)
    return (f"{begin}; {_select_settings(scope.setting, value, _ROLE | _more_settings(mode))}",)


def open_fetch(scope: Scope, mode: Mode, *, snapshot: bool) -> Opening:
    """Return what begins a transaction that is a single pipeline, which needs a BEGIN only for a snapshot.

    It is read-only, since a fetch is repeated if its connection is lost: a write could be done twice.
    """
    if mode.is_distributed:
        isolation = " ISOLATION LEVEL REPEATABLE READ" if snapshot else ""
        return Opening((f"BEGIN{isolation} READ ONLY", *_local_settings(scope, mode)))
    begin = ("BEGIN ISOLATION LEVEL REPEATABLE READ",) if snapshot else ()
    return Opening(begin, [(_FETCHES[mode, scope.setting], {"value": scope.value})])


def _local_settings(scope: Scope, mode: Mode) -> Sequence[str]:
    # Citus logs in to the nodes as the role of the moment. It does not pass the role on as a setting, which a function
    # of the owner (SECURITY DEFINER) would get, too. The nodes have the other settings from the role.
    settings = DISTRIBUTED_SETTINGS if mode is Mode.DISTRIBUTED_TRANSACTION else {}
    return (
        f"SET LOCAL ROLE {APP_ROLE}",
        *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items()),
        "SET LOCAL citus.propagate_set_commands = 'local'",
        f"SET LOCAL {scope.setting} = {sql.Literal(scope.value).as_string(None)}",
    )


def _select_settings(setting: str, value: str, constants: Mapping[str, str]) -> str:
    calls = [f"set_config('{name}', '{constant}', true)" for name, constant in constants.items()]
    return f"SELECT set_config('{setting}', {value}, true), {', '.join(calls)}"


def _more_settings(mode: Mode) -> dict[str, str]:
    return SETTINGS if mode is Mode.TRANSACTION else {}


_ROLE = {"role": APP_ROLE}
_USER_SETTING, _SCOPE_SETTING = "app.user_id", "app.scope"

_FETCHES = {
    (mode, setting): _select_settings(
        setting, "%(value)s", _ROLE | {"transaction_read_only": "on"} | _more_settings(mode)
    )
    for mode in (Mode.SESSION, Mode.TRANSACTION)
    for setting in (_USER_SETTING, _SCOPE_SETTING)
}
