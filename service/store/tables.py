"""The tables. Rows never leave the store's queries unvalidated; ``table=True`` classes do not validate by themselves.

Every table carries ``tenant_id``. ``workers`` serve all tenants, which is the tenant ``*``.
Times are aware UTC, from the database's clock where a lease or a deadline depends on them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import JSON, Column, ForeignKey, Index, LargeBinary, MetaData, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

from service.store.database import UtcDateTime

DEFAULT_TENANT = "default"
ALL_TENANTS = "*"

metadata: MetaData = SQLModel.metadata
metadata.naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def _time(*, nullable: bool = True, index: bool = False) -> Any:
    return Field(default=None, sa_type=UtcDateTime, nullable=nullable, index=index)


def _json(default: type[list[Any] | dict[str, Any]]) -> Any:
    return Field(default_factory=default, sa_type=JSON, nullable=False)


def _cascade(target: str) -> Any:
    return Field(sa_column=Column(ForeignKey(target, ondelete="CASCADE"), nullable=False, index=True))


def _optional_cascade(target: str) -> Any:
    return Field(default=None, sa_column=Column(ForeignKey(target, ondelete="CASCADE"), nullable=True, index=True))


class ApiKeyRow(SQLModel, table=True):
    """An API key: its id and the SHA-256 of its 256-bit secret, never the secret."""

    __tablename__: ClassVar[Any] = "api_keys"
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    name: str
    secret_sha256: str
    created_at: datetime = _time(nullable=False)
    revoked_at: datetime | None = _time()


class PrefixRow(SQLModel, table=True):
    """The token ids every prompt on a document begins with, stored once for equal texts of an owner.

    The owner, ``tenant_id``, is a tenant, or all tenants for documents that are marked shared.

    ``token_ids`` are little-endian unsigned 32-bit; ``page_starts[i]`` is the offset of page ``i + 1`` in them.
    ``fingerprint`` names tokenizer, chat template and system text: another one makes the prefix stale.
    ``cache_epoch`` counts how often its computed blocks were given up: each time the engines get another salt for it.
    """

    __tablename__: ClassVar[Any] = "prefixes"
    __table_args__: ClassVar[Any] = (UniqueConstraint("tenant_id", "fingerprint", "sha256"),)
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    fingerprint: str
    sha256: str
    tokens: int
    token_ids: bytes = Field(sa_type=LargeBinary)
    page_starts: list[int] = _json(list)
    cache_epoch: int = 0
    created_at: datetime = _time(nullable=False)


class DocumentRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "documents"
    __table_args__: ClassVar[Any] = (UniqueConstraint("tenant_id", "sha256"),)
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    name: str
    content_type: str
    bytes: int
    sha256: str
    status: str = Field(index=True)
    pages: int | None = None
    pages_done: int = 0
    tokens: int | None = None
    tier: str | None = None
    headroom_tokens: int | None = None
    fits: dict[str, bool] = _json(dict)
    ocr_pages: list[int] = _json(list)
    page_problems: list[dict[str, Any]] = _json(list)
    info: dict[str, Any] = _json(dict)
    user_metadata: dict[str, Any] = _json(dict)
    ocr: str = "auto"
    warm: bool = True
    password: str | None = None
    shared: bool = False
    """Its computed prefix serves every tenant that marked the same document shared."""
    prefix_id: str | None = Field(default=None, foreign_key="prefixes.id", index=True)
    error_code: str | None = None
    error_detail: str | None = None
    lineage_id: str = Field(index=True)
    """Id of the first document of its versions, deleted or not; its own when it replaced none."""
    version: int = 1
    replaces_id: str | None = Field(default=None, foreign_key="documents.id", ondelete="SET NULL", unique=True)
    """The version before; unique, because a document is replaced once."""
    differs_from_page: int | None = None
    shared_prefix_tokens: int | None = None
    """Leading prefix tokens that the version before has too. None while they cannot be compared."""
    estimate: bool = False
    """Read only to be counted: shown nowhere, without pages and prefix, gone once it was answered. Its ``sha256`` is its
    id, so that no upload is its duplicate."""
    created_at: datetime = _time(nullable=False)
    ready_at: datetime | None = _time()

    @property
    def prefix_owner(self) -> str:
        """Whose prefix it has: its tenant's own, or the one that all who share it have in common."""
        return ALL_TENANTS if self.shared else self.tenant_id


class PageRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "pages"
    document_id: str = Field(sa_column=Column(ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True))
    number: int = Field(primary_key=True)
    tenant_id: str
    text: str = Field(sa_type=Text)
    tokens: int
    source: str
    reader: str
    label: str | None = None
    confidence: float | None = None


class BatchRow(SQLModel, table=True):
    __tablename__: ClassVar[Any] = "batches"
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    task: str
    total: int
    user_metadata: dict[str, Any] = _json(dict)
    webhook_url: str | None = Field(default=None, sa_type=Text)
    created_at: datetime = _time(nullable=False)
    cancelled_at: datetime | None = _time()
    announced_at: datetime | None = _time(index=True)
    """When its end was written to the outbox; None while it runs, and again once failed items are retried."""


class DeletedItemsRow(SQLModel, table=True):
    """Items of a batch that were deleted together: how they had ended, and nothing of what they said."""

    __tablename__: ClassVar[Any] = "deleted_items"
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    batch_id: str = _cascade("batches.id")
    state: str
    items: int
    started_at: datetime | None = _time()
    finished_at: datetime | None = _time()


class QuestionRow(SQLModel, table=True):
    """What was asked and what was answered. Its state is its job's state."""

    __tablename__: ClassVar[Any] = "questions"
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    document_id: str = _cascade("documents.id")
    batch_id: str | None = Field(
        default=None, sa_column=Column(ForeignKey("batches.id", ondelete="CASCADE"), nullable=True, index=True)
    )
    item: int | None = None
    follows_id: str | None = Field(default=None, index=True)
    question: str = Field(sa_type=Text)
    question_tokens: int
    max_output_tokens: int
    temperature: float = 0.0
    adapter: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, sa_type=JSON, nullable=True)
    webhook_url: str | None = Field(default=None, sa_type=Text)
    answer_text: str | None = Field(default=None, sa_type=Text)
    answer_json: Any = Field(default=None, sa_type=JSON, nullable=True)
    finish_reason: str | None = None
    citations: list[dict[str, Any]] = _json(list)
    unsupported: list[dict[str, Any]] = _json(list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    queue_ms: float | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None
    receipt: dict[str, Any] = _json(dict)
    created_at: datetime = _time(nullable=False)


class JobRow(SQLModel, table=True):
    """The queue's truth: one row for every piece of work. ``attempt`` is the fencing token."""

    __tablename__: ClassVar[Any] = "jobs"
    __table_args__: ClassVar[Any] = (
        Index("ix_jobs_claim", "state", "tier", "priority", "id"),
        Index("ix_jobs_claim_tenant", "state", "tier", "tenant_id", "priority", "id"),
        Index("ix_jobs_lease", "state", "lease_until"),
        Index("ix_jobs_batch", "batch_id", "state"),
        # With the state, because finished jobs stay: a worker looks for its running ones four times a second.
        Index("ix_jobs_document", "document_id", "state"),
        Index("ix_jobs_worker", "worker_id", "state"),
    )
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    kind: str
    state: str
    priority: int
    document_id: str = Field(sa_column=Column(ForeignKey("documents.id", ondelete="CASCADE"), nullable=False))
    question_id: str | None = Field(
        default=None, sa_column=Column(ForeignKey("questions.id", ondelete="CASCADE"), nullable=True, unique=True)
    )
    batch_id: str | None = None
    tier: str | None = None
    """None while the document is being read; ``ingest`` for reading."""
    tokens: int = 0
    """Prompt tokens this job asks an engine for, cached or not (admission and backlog)."""
    extra_tokens: int = 0
    """History, question and output budget: what is added to the document's prefix when the tier is chosen."""
    uncached_tokens: int = 0
    """Those of them that the worker it is kept for must compute; its backlog is their sum."""
    attempt: int = 0
    free_attempts: int = 0
    """Attempts that do not count against the limit, because their worker drained."""
    engine_deaths: int = 0
    worker_id: str | None = None
    lease_until: datetime | None = _time()
    prefer_worker: str | None = None
    prefer_until: datetime | None = _time()
    not_before: datetime | None = _time()
    deadline_at: datetime | None = _time()
    cancel_requested_at: datetime | None = _time()
    error_code: str | None = None
    error_detail: str | None = None
    created_at: datetime = _time(nullable=False)
    started_at: datetime | None = _time()
    finished_at: datetime | None = _time()


class WorkerRow(SQLModel, table=True):
    """A worker process that is or was alive; it lives as long as it beats."""

    __tablename__: ClassVar[Any] = "workers"
    id: str = Field(primary_key=True)
    tenant_id: str = ALL_TENANTS
    kind: str
    state: str
    tiers: list[str] = _json(list)
    host: str
    pid: int
    info: dict[str, Any] = _json(dict)
    started_at: datetime = _time(nullable=False)
    beat_at: datetime = _time(nullable=False, index=True)


class ResidencyRow(SQLModel, table=True):
    """Which worker holds which prefix: a hint for placement that the engine's own counts correct."""

    __tablename__: ClassVar[Any] = "residencies"
    prefix_id: str = Field(sa_column=Column(ForeignKey("prefixes.id", ondelete="CASCADE"), primary_key=True))
    worker_id: str = Field(sa_column=Column(ForeignKey("workers.id", ondelete="CASCADE"), primary_key=True, index=True))
    tenant_id: str
    state: str
    tokens: int
    created_at: datetime = _time(nullable=False)
    last_used_at: datetime = _time(nullable=False)


class PinRow(SQLModel, table=True):
    """A document whose prefix is kept warm until a time. ``problem`` says why it is not, when the caches lack the room."""

    __tablename__: ClassVar[Any] = "pins"
    document_id: str = Field(sa_column=Column(ForeignKey("documents.id", ondelete="CASCADE"), primary_key=True))
    tenant_id: str
    until: datetime = _time(nullable=False)
    problem: str | None = None
    created_at: datetime = _time(nullable=False)


class ProbeRow(SQLModel, table=True):
    """What a probe found: how many of the facts placed over a long document were answered, by tier and KV type.

    ``depths`` are ``{depth, asked, found}``, depth from 0 (the beginning) to 1.
    """

    __tablename__: ClassVar[Any] = "probes"
    id: str = Field(primary_key=True)
    tenant_id: str = ALL_TENANTS
    model: str
    revision: str
    tier: str
    kv_cache_dtype: str
    rope_factor: float
    tokens: int
    depths: list[dict[str, Any]] = _json(list)
    recall: float
    baseline: float | None = None
    baseline_source: str | None = None
    measured_at: datetime = _time(nullable=False, index=True)


class IdempotencyRow(SQLModel, table=True):
    """An ``Idempotency-Key`` and what it was answered with, for 24 hours."""

    __tablename__: ClassVar[Any] = "idempotency_keys"
    tenant_id: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    request_sha256: str
    status: int | None = None
    headers: dict[str, Any] = _json(dict)
    body: str | None = Field(default=None, sa_type=Text)
    created_at: datetime = _time(nullable=False, index=True)


class WebhookRow(SQLModel, table=True):
    """Where a tenant wants to be told of events, and the secret its messages are signed with.

    ``url`` is None for the tenant's default webhook, which carries the messages of single requests to URLs of their own.
    """

    __tablename__: ClassVar[Any] = "webhooks"
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    url: str | None = Field(default=None, sa_type=Text)
    events: list[str] = _json(list)
    secret: str
    old_secret: str | None = None
    old_secret_until: datetime | None = _time()
    disabled_at: datetime | None = _time()
    disabled_code: str | None = None
    created_at: datetime = _time(nullable=False)


class WebhookDeliveryRow(SQLModel, table=True):
    """One message to one webhook: the outbox until it is delivered, and the log afterwards.

    ``attempts`` is the fencing token of its sender. ``round_attempts`` begins anew when it is sent again on demand.
    """

    __tablename__: ClassVar[Any] = "webhook_deliveries"
    __table_args__: ClassVar[Any] = (Index("ix_webhook_deliveries_due", "state", "next_attempt_at"),)
    id: str = Field(primary_key=True)
    tenant_id: str = Field(index=True)
    webhook_id: str = _cascade("webhooks.id")
    document_id: str | None = _optional_cascade("documents.id")
    question_id: str | None = _optional_cascade("questions.id")
    batch_id: str | None = _optional_cascade("batches.id")
    url: str | None = Field(default=None, sa_type=Text)
    """The request's own URL; None: the webhook's, as it is at each attempt."""
    lane: str
    """Who shares the places for sending: the webhook, or the host of the request's own URL."""
    event: str
    body: str = Field(sa_type=Text)
    state: str
    attempts: int = 0
    round_attempts: int = 0
    next_attempt_at: datetime | None = _time()
    log: list[dict[str, Any]] = _json(list)
    """The latest attempts: number, time, status code, failure, milliseconds."""
    created_at: datetime = _time(nullable=False, index=True)
    ended_at: datetime | None = _time()
