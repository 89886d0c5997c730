"""The local model as an OpenAI-compatible endpoint for peers: `python -m bench.load.embedding_endpoint PORT FOLDER`."""

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request

from app.embeddings.granite import Granite
from app.embeddings.graph_cache import GraphCache
from app.embeddings.local_models import find_shipped_model


def create_app(granite: Granite) -> FastAPI:
    app = FastAPI()

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"data": [{"id": "local"}]}

    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> dict[str, Any]:
        texts: list[str] = (await request.json())["input"]
        vectors = await asyncio.to_thread(granite.embed, texts)
        items = [
            {"index": index, "embedding": base64.b64encode(vector.astype("float32").tobytes()).decode()}
            for index, vector in enumerate(vectors)
        ]
        return {"data": items, "usage": {"prompt_tokens": 0}}

    return app


if __name__ == "__main__":
    port, folder = sys.argv[1:]
    app = create_app(Granite.load(find_shipped_model(), GraphCache(Path(folder))))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_config=None, access_log=False)
