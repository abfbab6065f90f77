"""Metrics, through OpenTelemetry, read at ``/metrics``. Labels never hold an id of a session or a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest

from cortex_plane.kernel.meters import Meters, PauseSource

MOMENTS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""For what machines do, in seconds."""
_HOUR = 3600.0
HOURS = (*(1.0, 5.0, 15.0, 60.0, 300.0, 900.0), *(hours * _HOUR for hours in (1, 4, 8, 24, 48, 72, 168)))
"""For what people do, in seconds."""


class SpecMeters(Meters):
    """Counts in OpenTelemetry. The exporter adds `_total` to counters and the unit to histograms."""

    def __init__(self, meter: Meter) -> None:
        count = meter.create_counter

        def measure(name: str, description: str, boundaries: Sequence[float] = MOMENTS) -> Histogram:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=boundaries)

        self._paused = count("runtime_sessions_paused", description="Pauses, by who asked.")
        self._resumed = count("runtime_sessions_resumed", description="Resumes, by who asked.")
        self._pause_latency = measure("runtime_pause_latency", "From the wish to pause until the session stands still.")
        self._resume_latency = measure(
            "runtime_resume_latency", "From the decision or resume until the session runs again."
        )
        self._requests = count("approval_requests", description="Approvals that were asked for.")
        self._decisions = count("approval_decisions", description="Decisions, by the door they came through.")
        self._resolution = measure("approval_resolution", "From the request to the decision.", HOURS)
        self._expiries = count("approval_expiries", description="Approvals that nobody decided in time.")
        self._joins = count("approval_dedup_hits", description="Calls that joined an identical pending request.")
        self._ticks = measure(
            "approval_scheduler_tick_duration", "How long a scheduler took to look for what is due and to do it."
        )
        self._escalations = count("approval_escalations", description="Approvals that went one level up.")
        self._delegations = count("approval_delegations", description="Parts in approvals handed to others.")
        self._callbacks = count(
            "approval_webhook_invocations", description="Decisions that came from outside, by what became of them."
        )
        self._deliveries = count("approval_deliveries", description="Messages to people, by what became of them.")
        self._forged = count("forged_rows", description="Rows with a false MAC that were refused, by kind.")
        self._suspended: dict[str, int] = {}
        meter.create_observable_gauge(
            "runtime_suspended_sessions_current",
            [self._observe],
            description="Sessions that wait for a person or are paused, now.",
        )

    def paused(self, org_id: UUID, source: PauseSource) -> None:
        self._paused.add(1, {"tenant_id": str(org_id), "pause_source": source})

    def suspended(self, org_id: UUID, seconds: float) -> None:
        self._pause_latency.record(max(0.0, seconds), {"tenant_id": str(org_id)})

    def resumed(self, org_id: UUID, by: PauseSource) -> None:
        self._resumed.add(1, {"tenant_id": str(org_id), "resumed_by": by})

    def woken(self, org_id: UUID, seconds: float) -> None:
        self._resume_latency.record(max(0.0, seconds), {"tenant_id": str(org_id)})

    def requested(self, org_id: UUID, template: str) -> None:
        self._requests.add(1, {"tenant_id": str(org_id), "template": str(template)})

    def joined(self, org_id: UUID) -> None:
        self._joins.add(1, {"tenant_id": str(org_id)})

    def decided(self, org_id: UUID, template: str, decision: str, channel: str, seconds: float) -> None:
        tenant = str(org_id)
        self._decisions.add(1, {"tenant_id": tenant, "decision": str(decision), "channel": str(channel)})
        self._resolution.record(max(0.0, seconds), {"tenant_id": tenant, "template": str(template)})

    def expired(self, org_id: UUID, template: str) -> None:
        self._expiries.add(1, {"tenant_id": str(org_id), "template": str(template)})

    def ticked(self, seconds: float) -> None:
        self._ticks.record(max(0.0, seconds))

    def escalated(self, org_id: UUID, template: str, to_level: int) -> None:
        self._escalations.add(1, {"tenant_id": str(org_id), "template": str(template), "to_level": str(to_level)})

    def delegated(self, org_id: UUID) -> None:
        self._delegations.add(1, {"tenant_id": str(org_id)})

    def called_back(self, channel: str, result: str) -> None:
        self._callbacks.add(1, {"channel": str(channel), "result": result})

    def forged(self, kind: str) -> None:
        self._forged.add(1, {"kind": str(kind)})

    def delivered(self, channel: str, result: str) -> None:
        self._deliveries.add(1, {"channel": str(channel), "result": result})

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
