"""Errors of Toolscout for the examples that send their requests without its client."""

import httpx2


def raise_for_problem(response: httpx2.Response) -> httpx2.Response:
    """As `raise_for_status`, but say of an error of Toolscout what is wrong and what to do."""
    if response.headers.get("Content-Type") == "application/problem+json":
        problem = response.json()
        message = f"{problem['code']}: {problem['detail']}"
        raise httpx2.HTTPStatusError(message, request=response.request, response=response)
    return response.raise_for_status()
