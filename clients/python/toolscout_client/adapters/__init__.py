"""Adapters for agent frameworks: one module for each, which needs the framework's extra.

    pip install 'toolscout-client[agents]'        # toolscout_client.adapters.openai_agents
    pip install 'toolscout-client[litellm]'       # toolscout_client.adapters.litellm

Nothing is imported here, so that the client alone needs none of the frameworks.
"""
