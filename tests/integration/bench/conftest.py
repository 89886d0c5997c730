"""The comparison with peers needs the packages of the `bench` extra, which the development lock does not hold.

Its tests are not collected without them; `make bench-test` installs the packages and runs the tests.
"""

from importlib.util import find_spec

_PACKAGES = ("fastmcp", "matplotlib")

collect_ignore = [] if all(map(find_spec, _PACKAGES)) else ["test_relevance_compare.py"]
