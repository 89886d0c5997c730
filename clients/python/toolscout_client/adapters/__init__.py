"""Adapters for agent frameworks: one module for each, which needs the framework's extra.

    pip install 'toolscout-client[agents]'        # toolscout_client.adapters.openai_agents
    pip install 'toolscout-client[litellm]'       # toolscout_client.adapters.litellm
    pip install 'toolscout-client[langchain]'     # toolscout_client.adapters.langchain
    pip install 'toolscout-client[langgraph]'     # toolscout_client.adapters.langgraph
    pip install 'toolscout-client[pydantic-ai]'   # toolscout_client.adapters.pydantic_ai

Nothing is imported here, so that the client alone needs none of the frameworks.
"""
