"""Metrics, through OpenTelemetry, read at ``/metrics``. Labels never hold an id of a session or a job."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest


class Metrics:
    """The instruments of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=Resource({"service.name": "cortex-plane"}),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("cortex_plane")
        self.requests = meter.create_counter("http_requests", description="Requests by route and status.")
        self.request_seconds = meter.create_histogram(
            "http_request_duration", unit="s", description="Time to answer, by route."
        )
        self.messages = meter.create_counter("messages_ingested", description="Messages taken in, by tenant.")
        self.jobs = meter.create_counter(
            "jobs_created", description="Requests that made a job, repeated ones included, by tenant."
        )
        self.rejected_keys = meter.create_counter(
            "authentication_failures", description="Requests refused for their key, by reason."
        )

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def close(self) -> None:
        self._provider.shutdown()
