"""Where each module belongs: its noun, and its floor within the noun.

Floors: kernel < model < rules < files < db < store < verbs < doors, worker, channels < main. A module may import lower floors of any
noun, and on its own floor the nouns before its own in ``NOUNS``. ``client`` stands on kernel and models; ``embedded`` on the
kernel alone. Doors, worker and channels do not import each other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NOUNS: Final = (
    "tenancy", "proof", "agents", "policies", "sessions", "jobs", "gates", "approvals", "calls", "notify",
)  # fmt: skip

OUTER: Final = ("client", "channels", "worker", "http", "dashboard", "cli")
FLOORS: Final = {
    "kernel": 0, "model": 1, "rules": 2, "files": 3, "db": 4, "store": 5, "verbs": 6, **dict.fromkeys(OUTER, 7), "embedded": 7, "main": 8,
}  # fmt: skip


class Place(NamedTuple):
    noun: str
    floor: str

    @property
    def rank(self) -> int:
        return FLOORS[self.floor]


_PLACES: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("kernel", "kernel"): {
        "adapters.http": "cursors throttle",
        "domain": "addresses canonical conditions errors extras fields glob_index globs idempotency json_keys pages"
        " plain_words redactions retry schemas shares values visible",
        "manifests": "documents json_documents shapes values",
        "operations": "manifest_threads meters",
    },
    ("db", "db"): {
        "operations": "health",
        "storage": "crash_points database faults hints migrate pool provision queries rows vault within",
    },
    ("tenancy", "model"): {
        "domain": "absences access browser_sessions connections deliveries enrolments identities keys members"
        " model_keys orgs teams",
    },
    ("tenancy", "rules"): {"domain": "credential_keys"},
    ("tenancy", "store"): {
        "storage": "absences browser_sessions connections credential_keys enrolments idempotency identities keys"
        " members model_keys orgs request_budgets teams",
    },
    ("tenancy", "verbs"): {
        "operations": "absences browser_sessions connections credential_keys enrolments forgeries identity_codes"
        " invitations keys linking members model_keys orgs people request_rates secrets teams verbs",
    },
    ("proof", "model"): {"domain": "audit signing"},
    ("proof", "rules"): {"domain": "audit_exports export_reading receipt_files receipts root_copies roots"},
    ("proof", "store"): {"storage": "audit audit_contents receipts roots signing"},
    ("proof", "verbs"): {
        "operations": "audit audit_contents audit_exports receipts root_copies roots row_checks signing",
    },
    ("agents", "model"): {"domain": "agents models scripts tokens tool_confirmations tools"},
    ("agents", "store"): {"storage": "agents tool_confirmations tool_servers tools"},
    ("agents", "verbs"): {"operations": "agents atlas_access tool_confirmations"},
    ("policies", "model"): {
        "domain": "authorization policies policy_explanations policy_files quorums request_policies",
    },
    ("policies", "rules"): {
        "domain": "policy_checks policy_engine policy_index policy_terms policy_words simulations",
        "manifests": "policies",
    },
    ("policies", "store"): {"storage": "policies simulations"},
    ("policies", "verbs"): {"operations": "policies policy_book simulations"},
    ("sessions", "model"): {"domain": "events memories messages sessions"},
    ("sessions", "rules"): {"domain": "conversations windows"},
    ("sessions", "store"): {"storage": "events memories messages sessions"},
    ("sessions", "verbs"): {"operations": "events feeds memories messages sessions"},
    ("jobs", "model"): {
        "domain": "budgets checkpoints effects job_drafts jobs journal preflight signals usage workers",
    },
    ("jobs", "rules"): {"domain": "attempts checkpoint_recovery"},
    ("jobs", "store"): {"storage": "attempts jobs journal preflight signals steps usage workers"},
    ("jobs", "verbs"): {"operations": "attempts jobs journal preflight signals steering usage workers"},
    ("gates", "model"): {"domain": "atlas_schemas atlas_versions atlases gates trace"},
    ("gates", "rules"): {
        "domain": "answers atlas_diffs gate_answers gate_budgets gate_effects gate_index gate_news gate_policies"
        " gate_prompts gate_verdicts gating keywords scenarios word_index",
        "manifests": "atlas_checks atlas_crowds atlas_gates atlas_globs atlas_shapes atlas_warnings atlases"
        " scenarios",
        "operations": "atlas_notices authorize",
    },
    ("gates", "store"): {"storage": "atlases gates"},
    ("gates", "verbs"): {
        "operations": "atlas_book atlas_contents atlas_minutes atlas_weights atlases gates session_lifecycle",
    },
    ("approvals", "model"): {"domain": "approvals credentials delegates marks requests standing_approvals"},
    ("approvals", "rules"): {"domain": "covering deciding delegating"},
    ("approvals", "store"): {"storage": "approvals credentials delegates marks standing_approvals"},
    ("approvals", "verbs"): {
        "operations": "approvals asking credentials decisions delegates edits marks requests settlements"
        " standing_approvals",
    },
    ("calls", "model"): {"domain": "calls gate_drafts resolutions"},
    ("calls", "rules"): {"domain": "resolving"},
    ("calls", "store"): {"storage": "calls resolutions"},
    ("calls", "verbs"): {
        "operations": "answers calls deadlines doubts external intents judging permissions resolutions rulings"
        " steps",
    },
    ("notify", "model"): {"domain": "notifications webhooks"},
    ("notify", "rules"): {"domain": "delivering"},
    ("notify", "store"): {"storage": "notifications webhooks"},
    ("notify", "verbs"): {"operations": "cards deliveries outbox ports webhooks"},
    ("worker", "worker"): {"operations": "chores"},
    ("channels", "channels"): {"domain": "mail_servers"},
    ("http", "http"): {"adapters.telemetry": "meters metrics"},
}

_BY_MODULE: Final = {
    f"{package}.{name}": Place(*place)
    for place, packages in _PLACES.items()
    for package, names in packages.items()
    for name in names.split()
}

_BY_PACKAGE: Final = {
    "runtime": "worker",
    "adapters.channels": "channels",
    "adapters.http": "http",
    "adapters.dashboard": "dashboard",
    "adapters.cli": "cli",
    "adapters.telemetry": "main",
    "client": "client",
    "embedded": "embedded",
    "bootstrap": "main",
    "settings": "main",
    "__main__": "main",
}


def place_of(module: str) -> Place | None:
    """None for packages that hold modules of several places."""
    name = module.removeprefix("cortex_plane.")
    if name in _BY_MODULE:
        return _BY_MODULE[name]
    for package, noun in _BY_PACKAGE.items():
        if name == package or name.startswith(f"{package}."):
            return Place(noun, noun)
    return None
