"""A client for the service that needs nothing but the standard library and NumPy.

Every request that learns has keys, and is repeated with the same keys until it is answered: each sample is learned
once, whatever happens to the connection or the service.
"""

from __future__ import annotations

import http.client
import io
import json
import random
import secrets
import ssl
import time
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import numpy as np

__all__ = ["Client", "ServiceError", "StreamClient"]

RETRIED = (408, 409, 429, 502, 503, 504)
"""Answers after which a request is repeated."""

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0

LONGEST_HEADER = 8000
"""Characters of a header; servers and proxies refuse long ones."""


class ServiceError(RuntimeError):
    """The service refused a request."""

    def __init__(self, status: int, content: Any) -> None:
        error = content.get("error", {}) if isinstance(content, dict) else {}
        super().__init__(f"{status}: {error.get('message', content)}")
        self.status, self.code, self.content = status, error.get("code"), content


class Client:
    """A connection to a service. Use one per thread.

    Parameters
    ----------
    url : such as "http://localhost:8000".
    key : an API key; None for a service without keys.
    timeout : seconds that one attempt may take.
    retry : seconds during which a request is repeated; 0 tries once.
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 60.0, retry: float = 60.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must start with http:// or https://; got {url!r}.")
        self.url, self._parts, self._key = url, parts, key
        self.timeout, self.retry = timeout, retry
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def stream(self, name: str) -> StreamClient:
        return StreamClient(self, name)

    def streams(self) -> list[dict[str, Any]]:
        """All streams with their health."""
        return list(self.request("GET", "/v1/streams")["streams"])

    def ready(self) -> dict[str, Any]:
        return dict(self.request("GET", "/health/ready"))

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        repeat: bool = True,
    ) -> Any:
        """The JSON answer to a request; ServiceError if it is refused.

        With `repeat`, a request that was not answered is sent again: use it only if that does no harm.
        """
        deadline, wait = time.monotonic() + self.retry, FIRST_WAIT
        while True:
            try:
                status, content, pause = self._send(method, path, body, headers or {})
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not repeat or time.monotonic() + wait > deadline:
                    raise ConnectionError(f"{self.url} does not answer ({error}). Fix: check that it runs.") from error
                pause = 0.0
            else:
                if status < 400:
                    return content
                hopeless = status not in RETRIED or (status == 429 and not pause)  # a quota that time does not renew
                if not repeat or hopeless or time.monotonic() + max(wait, pause) > deadline:
                    raise ServiceError(status, content)
            time.sleep(max(pause, wait * random.uniform(0.5, 1.0)))
            wait = min(2 * wait, LONGEST_WAIT)

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any, float]:
        if self._connection is None:
            host, port = self._parts.hostname or "", self._parts.port
            if self._parts.scheme == "https":
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(host, port, timeout=self.timeout, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=self.timeout)
        auth = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        self._connection.request(method, self._parts.path.rstrip("/") + path, body, {**auth, **headers})
        answer = self._connection.getresponse()
        text = answer.read()
        pause = float(answer.headers.get("Retry-After") or 0)
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text, min(pause, LONGEST_WAIT)


class StreamClient:
    """One stream of a service."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name
        self._path = f"/v1/streams/{quote(name)}"

    def create(self, classes: Sequence[str], prototypes: Any = None, **settings: Any) -> dict[str, Any]:
        """Make the stream, or find that it exists with the same settings."""
        body = {"classes": list(classes), **settings}
        if prototypes is not None:
            body["prototypes"] = np.asarray(prototypes, np.float64).tolist()
        return dict(self._json("PUT", "", body))

    def samples(
        self,
        samples: Any,
        *,
        keys: Sequence[str] | None = None,
        learn: bool = True,
        top: int | None = None,
    ) -> list[dict[str, Any]]:
        """The results of samples: features (n, d) or (d,), or a list of images: paths, bytes or Pillow images.

        `keys` are names of the samples, one per sample: a sample whose key the stream knows is not learned again.
        """
        query = f"?learn={str(learn).lower()}" + (f"&top={top}" if top is not None else "")
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        names = [] if keys is None else list(keys)
        in_header = len(listed := json.dumps(names)) <= LONGEST_HEADER  # otherwise they are part of the body
        if hasattr(samples, "shape") or (
            isinstance(samples, Sequence) and samples and isinstance(samples[0], list | tuple | float)
        ):
            features = np.asarray(samples, np.float32)
            if in_header:
                body, kind = _npy(features), "application/x-npy"
            else:
                body, kind = json.dumps({"features": features.tolist(), "keys": names}).encode(), "application/json"
        else:
            body, kind = _form([_image_bytes(image) for image in samples], () if in_header else names)
        if names and in_header:
            headers["Sample-Keys"] = listed
        headers["Content-Type"] = kind
        answer = self.client.request("POST", f"{self._path}/samples{query}", body, headers)
        return list(answer["results"])

    def log(self, after: int = 0, limit: int = 1000) -> Iterator[dict[str, Any]]:
        """The log in order, from the sample after number `after`."""
        while True:
            found = self.client.request("GET", f"{self._path}/samples?after={after}&limit={limit}")["samples"]
            yield from found
            if len(found) < limit:
                return
            after = found[-1]["seq"]

    def describe(self) -> dict[str, Any]:
        return dict(self._json("GET", ""))

    def statistics(self) -> dict[str, Any]:
        return dict(self._json("GET", "/statistics"))

    def snapshots(self) -> list[dict[str, Any]]:
        return list(self._json("GET", "/snapshots")["snapshots"])

    def take_snapshot(self) -> dict[str, Any]:
        return dict(self._json("POST", "/snapshots"))

    def rollback(self, snapshot: int) -> dict[str, Any]:
        """Begin a new epoch with a snapshot. Not repeated if the connection fails: look at the epoch first."""
        return dict(self._json("POST", "/rollback", {"snapshot": snapshot}, repeat=False))

    def replay(self, method: str, **parameters: Any) -> dict[str, Any]:
        return dict(self._json("POST", "/replay", {"method": method, "parameters": parameters}))

    def label(self, labels: dict[int, str]) -> dict[str, Any]:
        """Confirm the labels of samples, by their numbers."""
        return dict(self._json("POST", "/labels", {"labels": [{"seq": s, "label": v} for s, v in labels.items()]}))

    def relearn(self) -> dict[str, Any]:
        return dict(self._json("POST", "/relearn", repeat=False))

    def reset_drift(self) -> dict[str, Any]:
        return dict(self._json("POST", "/drift/reset"))

    def delete(self) -> None:
        self._json("DELETE", "")

    def _json(self, method: str, suffix: str, body: Any = None, *, repeat: bool = True) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        return self.client.request(method, self._path + suffix, content, headers, repeat=repeat)


def _npy(features: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.save(written, np.ascontiguousarray(features, np.float32), allow_pickle=False)
    return written.getvalue()


def _image_bytes(image: Any) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | PathLike):
        return Path(image).read_bytes()
    written = io.BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


def _form(images: Sequence[bytes], keys: Sequence[str]) -> tuple[bytes, str]:
    boundary = secrets.token_hex(16)
    parts = []
    for key in keys:
        parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="keys"\r\n\r\n{key}\r\n'.encode())
    for row, image in enumerate(images):
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="images"; filename="{row}"\r\n\r\n'
        parts += [head.encode(), image, b"\r\n"]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"
