"""Metrics, through OpenTelemetry, read at ``/metrics``. Labels never hold an id of a session or a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest

from cortex_plane.kernel.meters import Meters

MOMENTS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""For what machines do, in seconds."""
_HOUR = 3600.0
HOURS = (*(1.0, 5.0, 15.0, 60.0, 300.0, 900.0), *(hours * _HOUR for hours in (1, 4, 8, 24, 48, 72, 168)))
"""For what people do, in seconds."""


COUNTERS = {
    "runtime_sessions_paused": "Pauses, by who asked.",
    "runtime_sessions_resumed": "Resumes, by who asked.",
    "approval_requests": "Approvals that were asked for.",
    "approval_decisions": "Decisions, by the door they came through.",
    "approval_expiries": "Approvals that nobody decided in time.",
    "approval_dedup_hits": "Calls that joined an identical pending request.",
    "approval_escalations": "Approvals that went one level up.",
    "approval_delegations": "Parts in approvals handed to others.",
    "approval_webhook_invocations": "Decisions that came from outside, by what became of them.",
    "approval_deliveries": "Messages to people, by what became of them.",
    "checkpoints_corrupt": "Jobs that failed because their checkpoint cannot be trusted, by what is wrong with it.",
    "forged_rows": "Rows with a false MAC that were refused, by kind.",
}
DURATIONS = {
    "runtime_pause_latency": ("From the wish to pause until the session stands still.", MOMENTS),
    "runtime_resume_latency": ("From the decision or resume until the session runs again.", MOMENTS),
    "approval_resolution": ("From the request to the decision.", HOURS),
    "approval_scheduler_tick_duration": ("How long a scheduler took to look for what is due and to do it.", MOMENTS),
}
"""What each is, and its boundaries."""


class SpecMeters(Meters):
    """Counts in OpenTelemetry. The exporter adds `_total` to counters and the unit to histograms."""

    def __init__(self, meter: Meter) -> None:
        self._counters = {name: meter.create_counter(name, description=text) for name, text in COUNTERS.items()}
        self._durations = {
            name: meter.create_histogram(name, "s", text, explicit_bucket_boundaries_advisory=boundaries)
            for name, (text, boundaries) in DURATIONS.items()
        }
        self._suspended: dict[str, int] = {}
        meter.create_observable_gauge(
            "runtime_suspended_sessions_current",
            [self._observe],
            description="Sessions that wait for a person or are paused, now.",
        )

    def count(self, measure: str, **labels: object) -> None:
        self._counters[measure].add(1, {name: str(value) for name, value in labels.items()})

    def record(self, measure: str, seconds: float, **labels: object) -> None:
        self._durations[measure].record(max(0.0, seconds), {name: str(value) for name, value in labels.items()})

    def count_suspended(self, sessions: Mapping[UUID, int]) -> None:
        """How many there are now. A tenant that had some and has none is 0 from then on, and does not vanish."""
        self._suspended = dict.fromkeys(self._suspended, 0) | {str(org): n for org, n in sessions.items()}

    def _observe(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(n, {"tenant_id": tenant}) for tenant, n in self._suspended.items()]


class Metrics:
    """The instruments of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        reader = PrometheusMetricReader(registry=self.registry, scope_info_enabled=False)
        self._provider = MeterProvider(
            metric_readers=[reader], resource=Resource({"service.name": "cortex-plane"}), shutdown_on_exit=False
        )
        meter = self._provider.get_meter("cortex_plane")
        count = meter.create_counter
        self.requests = count("http_requests", description="Requests by route and status.")
        self.request_seconds = meter.create_histogram(
            "http_request_duration", "s", "Time to answer, by route.", explicit_bucket_boundaries_advisory=MOMENTS
        )
        self.calls = count("grpc_calls", description="Calls of gRPC by method and status.")
        self.call_seconds = meter.create_histogram(
            "grpc_call_duration", "s", "Time to answer, by method.", explicit_bucket_boundaries_advisory=MOMENTS
        )
        self.messages = count("messages_ingested", description="Messages taken in, by tenant.")
        self.jobs = count("jobs_created", description="Requests that made a job, repeated ones included, by tenant.")
        self.rejected_keys = count("authentication_failures", description="Requests refused for their key, by reason.")
        self.rejected_logins = count(
            "login_failures", description="Login links and forms of the dashboard that were refused, by reason."
        )
        self.meters = SpecMeters(meter)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def close(self) -> None:
        self._provider.shutdown()
