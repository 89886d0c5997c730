"""Toolscout: finds, for each chat message, the few MCP tools that matter."""

__version__ = "0.2.0"
