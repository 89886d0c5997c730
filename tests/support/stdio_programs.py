"""Scripts of MCP servers that run over stdio."""

SDK_SERVER = """
    import os
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("tiny")

    @server.tool()
    def add(a: int, b: int) -> int:
        "Adds."
        return a + b

    server.run("stdio")
"""

# Starts twenty times faster. Tests insert code at BEFORE and AFTER to make it misbehave.
MINIMAL_SERVER = """
    import json, os, signal, sys, time

    def send(message):
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def answer(method, params):
        if method == "initialize":
            server = {"name": "minimal", "version": "1"}
            return {"protocolVersion": "2025-11-25", "serverInfo": server, "capabilities": {"tools": {}}}
        if method == "tools/list":
            return {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
        if params["name"] == "exit":
            os._exit(1)
        if params["name"] == "sleep":
            time.sleep(30)
        environment = {"environ": dict(os.environ), "argv": sys.argv[1:], "pid": os.getpid()}
        return {"content": [], "structuredContent": environment}

    METHODS = {"initialize", "tools/list", "tools/call"}
    BEFORE
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("method") == "tools/call":
            with open(sys.argv[1], "a") as log:
                log.write(message["params"]["name"] + " ")
        if message.get("method") in METHODS:
            send({"id": message["id"], "result": answer(message["method"], message.get("params"))})
        elif "id" in message:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
    AFTER
"""
