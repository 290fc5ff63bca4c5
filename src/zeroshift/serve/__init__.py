"""A durable streaming service: streams that adapt while they answer, and never lose or repeat a sample.

`zeroshift serve` runs it (extra `serve`); `Client` talks to it and needs no extra. See docs/serve.md.
"""

from zeroshift.serve.client import Client, ServiceError, StreamClient

__all__ = ["Client", "ServiceError", "StreamClient"]
