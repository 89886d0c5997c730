"""Use cases: everything that a caller can change, one function each.

A use case checks its input, opens the transaction, writes, records the audit event and registers with
`session.after_commit` what must follow the commit. REST, the console and the command line all call these functions,
so that a rule is written once. No use case holds a database connection while it waits for the network.
"""
