"""FastMCP's `BM25SearchTransform` over the benchmark's tools: `python -m bench.load.fastmcp_server PORT PRODUCT …`.

It searches one tenant's tools in memory, by words alone, and needs neither a database nor a model.
"""

import sys

import uvicorn
from fastmcp import FastMCP
from fastmcp.server.transforms.search import BM25SearchTransform
from fastmcp.tools import Tool

from bench.load.catalogue import product_tools


def create_server(products: list[str]) -> FastMCP:
    server = FastMCP("all tools")
    for product in products:
        for tool in product_tools(product):
            name, description = f"{product}_{tool['name']}", tool["description"]
            server.add_tool(Tool(name=name, description=description, parameters=tool["inputSchema"]))
    server.add_transform(BM25SearchTransform(max_results=8))
    return server


if __name__ == "__main__":
    port, *products = sys.argv[1:]
    app = create_server(products).http_app(stateless_http=True, json_response=True)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_config=None, access_log=False)
