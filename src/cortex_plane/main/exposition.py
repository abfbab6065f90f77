"""The metrics of a process that serves no API, over HTTP on this machine: what a worker did is counted in the worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import start_http_server

from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.meters import metered

HOST = "127.0.0.1"
"""The figures name every tenant and nobody is asked for a key: they stay on this machine."""


@contextlib.contextmanager
def exposed(port: int) -> Iterator[str]:
    """Count, and show what was counted, for as long as the block runs. Gives the address."""
    metrics = Metrics()
    try:
        server, thread = start_http_server(port, addr=HOST, registry=metrics.registry)
    except OSError as error:
        metrics.close()
        raise SetupError(
            f"Cannot listen on {HOST}:{port} for metrics: {error.strerror}.",
            code="cannot_listen",
            hint="Set CORTEX_METRICS_PORT to a free port (0 chooses one), each worker of a machine to its own.",
        ) from error
    try:
        with metered(metrics.meters):
            yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        metrics.close()
