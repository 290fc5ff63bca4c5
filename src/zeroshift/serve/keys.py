"""API keys: `zs_ID_SECRET`. The store has the id and a SHA-256 of the secret, which has 256 random bits."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from zeroshift.serve.store import SqlStore
from zeroshift.serve.tenants import NO_QUOTA, Quota, quota_of

__all__ = ["ASKING", "LOCAL", "SCOPES", "AccessKeys", "Principal", "add_key", "list_keys", "remove_key"]

SCOPES = ("read", "write", "admin")
"""Each includes those before it."""

REREAD_SECONDS = 2.0
"""How long a removed key may still be accepted."""


@dataclass(frozen=True)
class Principal:
    """Who sends a request."""

    key: str
    """The id of the key; never the secret."""
    scope: str
    prefix: str = ""
    """The streams it may use are those whose ids start with this."""
    quota: Quota = NO_QUOTA

    def may(self, scope: str) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


LOCAL = Principal("local", "admin")
"""Everybody, in a service without keys; and the service itself."""

ASKING: ContextVar[Principal] = ContextVar("asking", default=LOCAL)
"""Who sent the request that is being answered."""


def add_key(
    store: SqlStore, scope: str, prefix: str = "", name: str = "", quota: Mapping[str, int] | None = None
) -> str:
    """Make a key and return it; it cannot be shown again."""
    if scope not in SCOPES:
        raise ValueError(f"scope must be one of {', '.join(SCOPES)}; got {scope!r}.")
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"prefix must end with a slash, so that no other tenant's starts with it; got {prefix!r}.")
    for what, text in (("prefix", prefix), ("name", name)):
        if not text.isprintable():
            raise ValueError(f"{what} must have printable characters only; got {text!r}. Fix: leave out the others.")
    number, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    entry = {
        "id": number,
        "hash": _hashed(secret),
        "scope": scope,
        "prefix": prefix,
        "name": name,
        "created": time.time(),
        **({"quota": dict(quota)} if quota else {}),
    }
    store.change_access_keys(lambda keys: [*keys, entry])
    return f"zs_{number}_{secret}"


def list_keys(store: SqlStore) -> list[dict[str, Any]]:
    """The keys without their hashes."""
    return [{name: value for name, value in key.items() if name != "hash"} for key in store.access_keys()]


def remove_key(store: SqlStore, number: str) -> None:
    known = [key["id"] for key in store.access_keys()]
    if number not in known:
        raise ValueError(f"no key has the id {number!r}. Fix: one of {', '.join(known) or 'none: there are no keys'}.")
    store.change_access_keys(lambda keys: [key for key in keys if key["id"] != number])


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class AccessKeys:
    """The keys of a store. Call `read` when they `are_old`: every two seconds."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._keys: Sequence[dict[str, Any]] = ()
        self._read_at = float("-inf")

    @property
    def are_old(self) -> bool:
        return time.monotonic() - self._read_at > REREAD_SECONDS

    def read(self) -> None:
        self._keys, self._read_at = self._store.access_keys(), time.monotonic()

    def find(self, token: str) -> Principal | None:
        """Who has this key; None if nobody has."""
        kind, _, rest = token.partition("_")
        number, _, secret = rest.partition("_")
        entry = next((key for key in self._keys if key["id"] == number), None)
        expected = entry["hash"] if entry is not None else _hashed("")
        is_equal = hmac.compare_digest(_hashed(secret), expected)
        if not is_equal or entry is None or kind != "zs" or not secret:
            return None
        return _principal(entry)

    def has(self, principal: Principal) -> bool:
        """Whether the key that somebody came with is still there, with the same rights."""
        return any(_principal(key) == principal for key in self._keys if key["id"] == principal.key)


def _principal(entry: Mapping[str, Any]) -> Principal:
    quota = quota_of(entry["prefix"], entry.get("quota", {}))
    return Principal(entry["id"], entry["scope"], entry["prefix"], quota)
