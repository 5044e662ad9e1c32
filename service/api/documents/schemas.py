"""Shapes of documents and pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from service.api.paging import ListQuery, NumberedListQuery
from service.api.shapes import Body, Metadata, Text, Trouble, Waiting
from service.domain.documents import DocumentStatus, OcrMode

CacheState = Literal["cold", "warming", "warm", "warm_host", "warm_disk"]
MAX_NAME_CHARS = 255


class Progress(BaseModel):
    """How far reading is. ``pages`` is null until the file was opened."""

    pages_done: int
    pages: int | None


class Cache(BaseModel):
    """Where the document's computed prefix is. ``tokens`` of it are held by ``worker``."""

    state: CacheState = Field(
        description="`warm`: on the device; `warm_host`, `warm_disk`: moved there, and loaded in a fraction of the time it "
        "takes to compute it."
    )
    worker: str | None
    tokens: int | None
    created_at: datetime | None = Field(description="When this worker first held it.")
    last_used_at: datetime | None
    pinned_until: datetime | None = Field(description="It is kept warm until then.")
    pin_problem: str | None = Field(description="Why it is pinned and not kept warm.")


class DocumentOut(BaseModel):
    id: str = Field(examples=["doc_0198c0ffee0198c0ffee0198c0ffee01"])
    object: Literal["document"] = "document"
    status: DocumentStatus
    name: str | None = Field(examples=["handbook.pdf"])
    content_type: str = Field(examples=["application/pdf"])
    bytes: int = Field(examples=[184320])
    sha256: str
    pages: int | None = Field(examples=[12])
    tokens: int | None = Field(examples=[5210], description="Exact, page markers and system text included.")
    tier: str | None = Field(examples=["8k"], description="Smallest tier that takes the document whole.")
    headroom_tokens: int | None = Field(examples=[1446])
    fits: dict[str, bool] = Field(examples=[{"8k": True, "32k": True}])
    progress: Progress
    cache: Cache
    ocr_pages: list[int] = Field(description="Pages whose text was recognised from their picture.")
    page_problems: list[dict[str, Any]] = Field(description="Pages that no reader could read: page, code, detail.")
    info: dict[str, Any] = Field(description="Title, author and the like from the file itself.")
    metadata: dict[str, Any]
    shared: bool = Field(
        description="Its computed prefix serves every tenant that marked the same document shared. Nothing else is shared."
    )
    version: int = Field(examples=[1], description="Counts from 1 along the documents that replaced each other.")
    replaces: str | None = Field(description="The version before.")
    replaced_by: str | None = Field(description="The version after; null on the latest.")
    differs_from_page: int | None = Field(
        description="First page that is not the same as in the version before; null when the prefixes are equal or "
        "cannot be compared (`shared_prefix_tokens` is null)."
    )
    shared_prefix_tokens: int | None = Field(
        description="Leading prefix tokens that the version before has too: where that one is warm, they are not "
        "computed again."
    )
    waiting: Waiting | None = Field(description="What the document waits for while it is not read.")
    error: Trouble | None
    created_at: datetime
    ready_at: datetime | None


class UploadedOut(DocumentOut):
    """A document with the mark of an upload whose bytes were known already."""

    deduplicated: bool = False


class FirstToken(BaseModel):
    """How long a question on a cold document would wait for its first token when nothing else runs."""

    seconds: float = Field(examples=[1.042])
    prefill_tokens_per_second: float = Field(examples=[1000.0], description="Of one worker.")
    rate: Literal["measured", "expected", "default"] = Field(
        description="`measured` by live workers of the tier, `expected` of their model and device until they have, or the "
        "`default` where no worker says either."
    )
    served: bool = Field(description="Whether a live worker would take it now.")


class EstimateOut(BaseModel):
    """What a file would be as a document. Nothing of it was kept."""

    object: Literal["estimate"] = "estimate"
    name: str | None = Field(examples=["handbook.pdf"])
    content_type: str = Field(examples=["application/pdf"])
    bytes: int = Field(examples=[184320])
    sha256: str
    pages: int = Field(examples=[12])
    tokens: int = Field(examples=[5210], description="Exact, page markers and system text included.")
    tier: str | None = Field(examples=["8k"], description="Smallest tier that takes it whole.")
    headroom_tokens: int | None = Field(examples=[1446])
    fits: dict[str, bool] = Field(examples=[{"8k": True, "32k": True}])
    ocr_pages: list[int] = Field(description="Pages whose text was recognised from their picture.")
    page_problems: list[dict[str, Any]] = Field(description="Pages that no reader could read: page, code, detail.")
    cold_first_token: FirstToken | None = Field(description="Null when it fits no tier.")


class PageOut(BaseModel):
    number: int = Field(examples=[1], description="Pages count from 1.")
    label: str | None = Field(examples=["iv"], description="What the document itself calls the page.")
    text: str
    tokens: int
    source: Literal["pdf", "ocr", "text"]
    reader: str = Field(examples=["pdfium"])
    confidence: float | None = Field(description="Mean confidence of recognised text, 0 to 1.")


class EstimateOptions(BaseModel):
    """What may be said about a file that is only counted: query parameters of a raw body, fields of a multipart one."""

    model_config = ConfigDict(extra="forbid")

    password: Text | None = Field(
        default=None, max_length=1024, description="Opens an encrypted file; dropped once it was read."
    )
    ocr: OcrMode = Field(default="auto", description="When pages are recognised from their picture.")

    @field_validator("password", mode="after")
    @classmethod
    def _no_password_when_empty(cls, value: str | None) -> str | None:
        return value or None


class UploadOptions(EstimateOptions):
    """What may be said about an upload."""

    name: Text | None = Field(default=None, max_length=1024, description="What to call the document.")
    warm: bool = Field(default=True, description="Compute the prefix before anyone asks.")
    pin_seconds: int | None = Field(default=None, ge=1, description="Keep the prefix warm for this long from now on.")
    shared: bool = Field(default=False, description="Let its computed prefix serve every tenant that marked it so.")
    metadata: Metadata = Field(default_factory=dict, description="Your own key-value pairs, at most 16 KiB of JSON.")

    replaces: Text | None = Field(default=None, max_length=64, description="The document this is a new version of.")

    @field_validator("name", "replaces", mode="after")
    @classmethod
    def _absent_when_empty(cls, value: str | None) -> str | None:
        return value or None


class EstimateQuery(BaseModel):
    """An estimate's options as query parameters."""

    model_config = ConfigDict(extra="forbid")

    password: str | None = Field(default=None, max_length=1024)
    ocr: OcrMode | None = Field(default=None)


class UploadQuery(EstimateQuery):
    """The options as query parameters; ``metadata`` is a JSON object."""

    name: str | None = Field(default=None, max_length=1024)
    warm: bool | None = Field(default=None)
    pin_seconds: int | None = Field(default=None, ge=1)
    shared: bool | None = Field(
        default=None, description="Let its computed prefix serve every tenant that marked it so."
    )
    metadata: str | None = Field(default=None, max_length=16_384, description="A JSON object.")
    replaces: str | None = Field(default=None, max_length=64, description="The document this is a new version of.")


class WarmBody(Body):
    """What may be said about warming."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"pin_seconds": 3600}]})

    pin_seconds: int | None = Field(default=None, ge=1, description="Keep the prefix warm for this long from now on.")


class DocumentListQuery(ListQuery):
    status: DocumentStatus | None = Field(default=None, description="Only documents in this state.")
    latest: bool = Field(default=False, description="Leave out documents that a newer version replaced.")


class WaitQuery(BaseModel):
    """Long poll: the answer comes when the object has reached its end, or after this many seconds."""

    model_config = ConfigDict(extra="forbid")

    wait: float | None = Field(default=None, ge=0, le=3600, description="Seconds; capped by the installation's limit.")


class PageListQuery(NumberedListQuery):
    pass


class VersionListQuery(NumberedListQuery):
    pass
