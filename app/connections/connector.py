"""Signs users in to their servers (OAuth) and gives each request to a server its access token."""

from app.connections.access import ServerAccess
from app.connections.config import ConnectorConfig
from app.connections.credential_source import CredentialSource
from app.connections.sign_in import SignInFlow
from app.crypto import Sealer
from app.db.engine import Database
from app.mcp_client.pool import McpPool


class Connector(SignInFlow, ServerAccess):
    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        mcp_pool: McpPool,
        config: ConnectorConfig,
        credentials: CredentialSource | None = None,
    ) -> None:
        SignInFlow.__init__(self, database, sealer, mcp_pool, config)
        ServerAccess.__init__(self, database, sealer, mcp_pool, credentials)
