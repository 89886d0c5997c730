"""Fit a calibration to a few constructed vectors, and with the real model to some of the shipped messages."""

import numpy as np

from app.container import Container
from app.discovery.inline.documents import InlineTool
from app.evaluation.calibrate import Messages, calibrate, index_tools, load_shipped_labelled, load_shipped_messages
from app.evaluation.fit import MAX_EMPTY

SUBSET = 100


async def test_the_real_model_is_calibrated_on_a_few_messages(container: Container) -> None:
    shipped = load_shipped_messages()
    few = Messages(shipped.needing[:: 800 // SUBSET], shipped.not_needing[:: 800 // SUBSET])
    tools = [
        InlineTool(
            "weather/get_forecast", "get_forecast", "weather", "The weather forecast for a city: rain and wind."
        ),
        InlineTool("files/read_file", "read_file", "files", "Read a text file from the disk."),
        InlineTool("mail/send_email", "send_email", "mail", "Send an e-mail to somebody."),
    ]
    names = {tool.tool_key for tool in tools}
    items = [item for item in load_shipped_labelled() if set(item.tools) <= names]
    fit = await calibrate(
        container.searcher, await index_tools(container.inline_searcher, tools), items, few, lambda *_: None
    )
    assert fit.skipped == []
    assert fit.answerable > 5
    assert fit.after.lost <= MAX_EMPTY
    assert fit.after.refused > 0.5
    assert 0.3 < fit.calibration.unrelated < 0.6
    assert fit.calibration.unrelated < fit.calibration.threshold + 0.1

    embedder = container.models.current.embedder
    unseen = [shipped.needing[5 :: 800 // SUBSET], shipped.not_needing[5 :: 800 // SUBSET]]
    needing, not_needing = [await embedder.embed_queries(texts) for texts in unseen]
    assert np.mean([fit.calibration.score_tool_need(vector) > 0 for vector in needing]) > 0.75
    assert np.mean([fit.calibration.score_tool_need(vector) < 0 for vector in not_needing]) > 0.75
