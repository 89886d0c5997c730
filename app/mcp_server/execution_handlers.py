"""The meta-tool that runs tools: `tool_execute`."""

from app.errors import ConfirmationRequired
from app.execution.execute import execute, execute_with_progress
from app.execution.models import ExecutionRequest
from app.mcp_server import confirmation, responses
from app.mcp_server.tool_call import ToolCall
from app.text.strict_json import Json


async def execute_tool(call: ToolCall) -> Json:
    executor, arguments = call.container.executor, call.arguments
    request = ExecutionRequest(
        scope=call.scope,
        actor=call.caller.actor,
        arguments=arguments.get("arguments", {}),
        tool_key=arguments["toolKey"],
        dialogue=None if call.dialogue is None else confirmation.take_answer(call.dialogue),
        confirmation_token=arguments.get("confirmationToken"),
    )
    try:
        if call.on_progress is None:
            executed = await execute(executor, request)
        else:
            executed = await execute_with_progress(executor, request, call.on_progress)
    except ConfirmationRequired as error:
        if call.dialogue is None or not confirmation.can_ask(call.dialogue):
            raise
        return confirmation.make_question(error, request.arguments)
    if executed.truncated:
        return responses.mark_truncated(executed.result, executor.max_result_bytes)
    return responses.forward_result(executed.result)
