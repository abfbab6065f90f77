"""Metrics, through OpenTelemetry, read at ``/metrics``. Labels never hold an id of a session or a job."""

from __future__ import annotations

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest

from cortex_plane.http.meters import MOMENTS, SpecMeters


class Metrics:
    """The instruments of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self.registry, scope_info_enabled=False)
        self._provider = MeterProvider(
            metric_readers=[reader],
            resource=Resource({"service.name": "cortex-plane"}),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter("cortex_plane")
        self.requests = meter.create_counter("http_requests", description="Requests by route and status.")
        self.request_seconds = meter.create_histogram(
            "http_request_duration",
            unit="s",
            description="Time to answer, by route.",
            explicit_bucket_boundaries_advisory=MOMENTS,
        )
        self.messages = meter.create_counter("messages_ingested", description="Messages taken in, by tenant.")
        self.jobs = meter.create_counter(
            "jobs_created", description="Requests that made a job, repeated ones included, by tenant."
        )
        self.rejected_keys = meter.create_counter(
            "authentication_failures", description="Requests refused for their key, by reason."
        )
        self.rejected_logins = meter.create_counter(
            "login_failures",
            description="Login links and forms of the dashboard that were refused, by reason.",
        )

        self.meters = SpecMeters(meter)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def close(self) -> None:
        self._provider.shutdown()
