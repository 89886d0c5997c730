"""Tools of public MCP servers that Toolscout knows, with examples of messages that need them.

`examples.jsonl.gz` is built from `training/data` by `python -m training.examples`; see NOTICE for its sources.
"""
