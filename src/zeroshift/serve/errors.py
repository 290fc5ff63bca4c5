"""Errors that are answered to a client: a status, a code for programs, and a message for people."""

from __future__ import annotations

from typing import Any

__all__ = ["Problem"]


class Problem(Exception):  # noqa: N818 (it is the name of what is sent)
    """Ends a request with `{"error": {"code": ..., "message": ..., ...}}`."""

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: float | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after = retry_after
        self.details = details

    def content(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, **self.details}}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(max(1, round(self.retry_after)))}
