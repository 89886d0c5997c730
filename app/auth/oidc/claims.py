"""Read from the claims of a token whom it is about."""

from typing import Any

from app.auth.identity import Identity
from app.auth.oidc.config import OidcConfig
from app.auth.oidc.tokens import Claims, invalid_token
from app.auth.users import is_user_id

_MAX_GROUP_CHARACTERS = 256


def read_identity(claims: Claims, config: OidcConfig) -> Identity:
    """Raise `Unauthenticated` if the claims name no user.

    Without the claim of groups there are none: a provider that leaves it out must not keep anybody in a group.
    """
    user_id = find_claim(claims, config.user_claim)
    if not isinstance(user_id, str) or not is_user_id(user_id):
        raise invalid_token("does not name a user, or not by an id that is allowed here")
    # some providers send it as a text
    if config.user_claim == "email" and claims.get("email_verified", True) not in (True, "true"):
        raise invalid_token("names its user by an address that is not verified")
    groups = _read_groups(find_claim(claims, config.groups_claim))
    return Identity(config.issuer, user_id, not config.admin_groups.isdisjoint(groups), groups)


def find_claim(claims: Claims, name: str) -> Any:
    """Return a claim, or a member of an object that a claim is, such as `realm_access.roles`. None if there is none."""
    if name in claims:  # names may contain dots, as those that begin with a URL
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _read_groups(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    usable = {name for name in names if isinstance(name, str) and 0 < len(name) <= _MAX_GROUP_CHARACTERS}
    return tuple(sorted(name for name in usable if "\0" not in name))
