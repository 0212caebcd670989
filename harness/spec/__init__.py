"""The nouns: plain frozen values, no torch."""

from harness.spec.errors import UserError, disk_error, first_line, unknown
from harness.spec.events import Event, Job, Listener, Progress, finish
from harness.spec.experiment import Dataset, Experiment, KeepWeights, LossSpec, Protocol, Scheduler, Tuned
from harness.spec.experiment_record import ROLES, ExperimentRecord, Role
from harness.spec.field import Field
from harness.spec.metrics import METRICS, allowed_metrics, known_metric, metric_order, papers_metrics, percent, recall_k
from harness.spec.records import COLLAPSED, SCHEMA, Failure, Metrics, Purpose, Result, Stopped, ensemble_id, has_curves
from harness.spec.secrets import redacted
from harness.spec.text import has_controls
from harness.spec.trial import (
    BASELINE,
    BATCH,
    NEUTRAL,
    PER_LOSS,
    PIXELS,
    RUN_SETTINGS,
    SEARCHABLE,
    SETTINGS,
    SHARED,
    TUNABLE,
    VALIDATION_FOLDS,
    Trial,
    check_rules,
    recomposed,
    short_hash,
)

__all__ = [
    "BASELINE",
    "BATCH",
    "COLLAPSED",
    "METRICS",
    "NEUTRAL",
    "PER_LOSS",
    "PIXELS",
    "ROLES",
    "RUN_SETTINGS",
    "SCHEMA",
    "SEARCHABLE",
    "SETTINGS",
    "SHARED",
    "TUNABLE",
    "VALIDATION_FOLDS",
    "Dataset",
    "Event",
    "Experiment",
    "ExperimentRecord",
    "Failure",
    "Field",
    "Job",
    "KeepWeights",
    "Listener",
    "LossSpec",
    "Metrics",
    "Progress",
    "Protocol",
    "Purpose",
    "Result",
    "Role",
    "Scheduler",
    "Stopped",
    "Trial",
    "Tuned",
    "UserError",
    "allowed_metrics",
    "check_rules",
    "disk_error",
    "ensemble_id",
    "finish",
    "first_line",
    "has_controls",
    "has_curves",
    "known_metric",
    "metric_order",
    "papers_metrics",
    "percent",
    "recall_k",
    "recomposed",
    "redacted",
    "short_hash",
    "unknown",
]
