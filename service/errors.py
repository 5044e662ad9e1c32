"""Every error the product raises on purpose, in one tree.

    LongreadError
    ├── RequestError            the caller sent something that cannot be served as it is
    │   ├── InvalidRequest      400  invalid_request
    │   ├── Unauthorized        401  unauthorized
    │   ├── QuotaReached        403  quota_reached
    │   ├── NotFound            404  not_found
    │   ├── MethodNotAllowed    405  method_not_allowed
    │   ├── RequestStalled      408  request_stalled
    │   ├── UploadStalled       408  upload_stalled
    │   ├── Conflict            409  conflict
    │   ├── RequestTooLarge     413  request_too_large
    │   ├── FileTooLarge        413  file_too_large
    │   ├── UnsupportedContent  415  unsupported_content
    │   ├── Unprocessable       422  unprocessable (subclasses name the case)
    │   ├── TooManyRequests     429  too_many_queued_tokens
    │   ├── TooManyWaiting      429  too_many_waiting
    │   ├── TooManyUploads      429  too_many_uploads
    │   └── HeadTooLarge        431  head_too_large
    ├── ServiceError            the service cannot do it now; the same call may succeed later
    │   ├── DatabaseUnavailable 503  database_unavailable
    │   ├── Stopping            503  stopping
    │   ├── ModelUnavailable    503  model_unavailable
    │   ├── NoIngestWorker      503  no_ingest_worker
    │   ├── EstimateNotFinished 503  estimate_not_finished
    │   └── StorageFull         507  storage_full
    ├── DocumentError           why a document could not be read (data on the document, not an HTTP error)
    └── JobError                why a job ended without a result (data on the job, not an HTTP error)

Each class has a stable ``code`` (clients switch on it; it never changes), an HTTP ``status`` for those that reach
HTTP, and ``retryable``: whether the same work may succeed when it is tried again. The first line of a docstring is
the public title; the rest says what the caller can do. Extra ``facts`` become members of the problem document.
All of them survive pickling, because some cross a process boundary.
"""

from __future__ import annotations

from typing import Any, ClassVar


class LongreadError(Exception):
    """An error of the service."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.detail, self.facts))

    @classmethod
    def title(cls) -> str:
        """The first line of the class's docstring: a title that is the same for every occurrence."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0].rstrip(".").replace("``", "")


def _rebuild(kind: type[LongreadError], detail: str, facts: dict[str, Any]) -> LongreadError:
    return kind(detail, **facts)


# -- requests ---------------------------------------------------------------------------------------------------------


class RequestError(LongreadError):
    """The request cannot be served as it is."""

    code = "invalid_request"
    status = 400


class InvalidRequest(RequestError):
    """The request is not valid.

    ``errors`` in the problem document lists each offending field with a message.
    """


class UnknownTier(InvalidRequest):
    """No tier has this name.

    ``GET /v1/tiers`` lists the tiers of this installation.
    """

    code = "unknown_tier"


class InvalidCursor(InvalidRequest):
    """The list cursor is not one that this service gave out.

    Start again without ``cursor``.
    """

    code = "invalid_cursor"


class Unauthorized(RequestError):
    """The API key is missing or not valid.

    Send ``Authorization: Bearer <key>``; ``longread keys create`` makes one.
    """

    code = "unauthorized"
    status = 401


class ForeignHost(RequestError):
    """A request to another host or from another site was refused.

    While no API key exists, only requests to a loopback address are served, so that no web page can use the service.
    """

    code = "foreign_host"
    status = 403


class QuotaReached(RequestError):
    """The tenant may not store more.

    ``quota`` says of what (``documents`` or ``bytes``), ``used`` and ``limit`` how much. Nothing was kept. Delete
    documents, or have ``LONGREAD_LIMITS__MAX_DOCUMENTS_PER_TENANT`` or ``LONGREAD_LIMITS__MAX_BYTES_PER_TENANT`` raised.
    """

    code = "quota_reached"
    status = 403


class NotFound(RequestError):
    """There is no such object.

    It was deleted, never existed, or belongs to another tenant.
    """

    code = "not_found"
    status = 404


class Conflict(RequestError):
    """The object's present state does not allow this."""

    code = "conflict"
    status = 409


class MethodNotAllowed(RequestError):
    """The path does not take this method.

    ``Allow`` lists the methods it takes.
    """

    code = "method_not_allowed"
    status = 405


class RequestStalled(RequestError):
    """The request stopped arriving: its head was not whole in time, or nothing more of its body came.

    Nothing was done. Send it again.
    """

    code = "request_stalled"
    status = 408
    retryable = True


class UploadStalled(RequestError):
    """The file stopped arriving.

    Nothing was kept. Send it again.
    """

    code = "upload_stalled"
    status = 408
    retryable = True


class AlreadyReplaced(Conflict):
    """The document has a newer version.

    ``replaced_by`` names it: replace that one, or the latest in ``GET /v1/documents/{id}/versions``.
    """

    code = "already_replaced"


class BytesAlreadyStored(Conflict):
    """The uploaded bytes are a document already, so they cannot become a new version.

    ``document`` names it. Nothing has changed if it is the one to be replaced; otherwise use that document.
    """

    code = "bytes_already_stored"


class IdempotencyInFlight(Conflict):
    """A request with this ``Idempotency-Key`` is being carried out.

    Send the same request again in a moment: it is answered as the first one was.
    """

    code = "idempotency_in_flight"
    retryable = True


class PinsExceedCache(Conflict):
    """Pinned documents would take more of the KV caches than they may.

    Facts: ``tokens`` of the document, ``pinned_tokens`` that are pinned already, ``max_pinned_tokens``. Unpin another
    document, wait until a pin has run out, or start another worker.
    """

    code = "pins_exceed_cache"


class RequestTooLarge(RequestError):
    """The request is longer than this installation accepts.

    ``max_bytes`` names the limit. Only files may be larger than that.
    """

    code = "request_too_large"
    status = 413


class HeadTooLarge(RequestError):
    """The request line and the headers are longer than this service accepts.

    ``max_bytes`` names the limit.
    """

    code = "head_too_large"
    status = 431


class FileTooLarge(RequestError):
    """The file is larger than this installation accepts.

    ``max_bytes`` names the limit (setting ``LONGREAD_LIMITS__MAX_UPLOAD_BYTES``).
    """

    code = "file_too_large"
    status = 413


class UnsupportedContent(RequestError):
    """The file is not of a kind that can be read.

    Kinds are told by content, not by name. PDF files begin with ``%PDF-`` within their first 1,024 bytes.
    """

    code = "unsupported_content"
    status = 415


class Unprocessable(RequestError):
    """The request is well formed but cannot be carried out."""

    code = "unprocessable"
    status = 422


class EmptyFile(Unprocessable):
    """The uploaded file has no bytes.

    Check that the client sends the body it means to send.
    """

    code = "empty_file"


class QuestionTooLong(Unprocessable):
    """The question is longer than this installation accepts.

    ``tokens`` and ``max_tokens`` give the length and the limit, counted with the served model's tokenizer.
    """

    code = "question_too_long"


class UnknownDocuments(Unprocessable):
    """Some of the named documents do not exist.

    ``documents`` lists every one that was deleted, never existed, or belongs to another tenant. Nothing was accepted.
    """

    code = "unknown_documents"


class IdempotencyMismatch(Unprocessable):
    """This ``Idempotency-Key`` was used for another request.

    A key names one request for 24 hours; use a new key for a new request.
    """

    code = "idempotency_key_reused"


class InvalidFollows(Unprocessable):
    """The question named in ``follows`` cannot be continued.

    It must be a succeeded question on the same document.
    """

    code = "invalid_follows"


class UnknownAdapter(Unprocessable):
    """No live worker serves an adapter of this name.

    The problem lists those that are served. Adapters are named in the workers' settings.
    """

    code = "unknown_adapter"


class SchemaNotSupported(Unprocessable):
    """Answers cannot follow this JSON Schema.

    ``place`` (a JSON pointer) and ``keyword`` say what stands in the way; ``docs/schemas.md`` lists what is possible. A
    question whose schema only its engine cannot follow fails with the same code, at its first attempt.
    """

    code = "schema_not_supported"


class DocumentNotUsable(Unprocessable):
    """The document could not be read, so it cannot answer questions.

    The document's ``error`` says why and what to do.
    """

    code = "document_not_usable"


class DocumentExceedsTiers(Unprocessable):
    """Document, history, question and answer together are longer than the largest tier.

    ``tokens`` and ``max_tokens`` give the need and the largest tier's length. Ask for fewer output tokens, start a new
    conversation instead of ``follows``, or configure a longer tier.
    """

    code = "document_exceeds_tiers"


class WebhookRefused(Unprocessable):
    """No webhook is sent to this URL.

    It must be an https URL of a host on the public internet, without credentials, on an accepted port. The operator may
    allow single hosts of a private network (``LONGREAD_WEBHOOKS__ALLOWED_HOSTS``).
    """

    code = "webhook_refused"


class TooManyWebhooks(Unprocessable):
    """The tenant has as many webhooks as it may have.

    Delete one, or give one more events. ``LONGREAD_WEBHOOKS__MAX_PER_TENANT`` sets the limit.
    """

    code = "too_many_webhooks"


class TooManyRequests(RequestError):
    """The tier has as many queued tokens as it may have.

    Wait for ``Retry-After`` seconds: queued tokens divided by the measured prefill rate.
    """

    code = "too_many_queued_tokens"
    status = 429
    retryable = True


class TooManyWaiting(RequestError):
    """The tenant has as many event streams and long polls open as it may have.

    Wait for ``Retry-After`` seconds, close some, or ask without ``wait``. ``LONGREAD_LIMITS__MAX_WAITING_PER_TENANT``
    sets the limit of each API process.
    """

    code = "too_many_waiting"
    status = 429
    retryable = True


class TooManyUploads(RequestError):
    """The tenant has as many uploads under way as it may have.

    Wait for ``Retry-After`` seconds and send the file again. ``LONGREAD_LIMITS__MAX_UPLOADS_PER_TENANT`` sets the limit
    of each API process.
    """

    code = "too_many_uploads"
    status = 429
    retryable = True


# -- the service ------------------------------------------------------------------------------------------------------


class ServiceError(LongreadError):
    """The service cannot do this now."""

    code = "unavailable"
    status = 503
    retryable = True


class DatabaseUnavailable(ServiceError):
    """The database cannot be reached.

    Nothing was accepted. Send the request again later.
    """

    code = "database_unavailable"


class Stopping(ServiceError):
    """The service stops.

    Connect again: another process of it, or the next one, goes on where this one was.
    """

    code = "stopping"


class ModelUnavailable(ServiceError):
    """The served model's tokenizer is not loaded, so no question can be counted.

    The operator must prepare the model (``longread model prepare``) or set ``LONGREAD_MODEL__PATH``.
    """

    code = "model_unavailable"


class NoIngestWorker(ServiceError):
    """No ingest worker is alive, so nothing can be read.

    The operator must start one (``longread worker ingest``). Uploads are accepted and wait; estimates cannot.
    """

    code = "no_ingest_worker"


class EstimateNotFinished(ServiceError):
    """The file was not read in time, so there is no estimate.

    Nothing was kept. Send it again when less waits, or upload it: an upload is read however long it takes
    (setting ``LONGREAD_LIMITS__MAX_WAIT_SECONDS``).
    """

    code = "estimate_not_finished"


class StorageFull(ServiceError):
    """There is no room to store the file.

    Nothing was kept. The operator must free or add disk space.
    """

    code = "storage_full"
    status = 507


class SettingsError(LongreadError):
    """The settings do not fit together.

    The message names the two settings and the remedy. Raised before the process that they are for does anything; an engine's
    settings are looked at by its own worker.
    """

    code = "invalid_settings"


# -- documents --------------------------------------------------------------------------------------------------------


class DocumentError(LongreadError):
    """The document could not be read."""

    code = "unreadable"
    status = 422


class PasswordRequired(DocumentError):
    """The document is encrypted and opens only with a password.

    Upload it again with the ``password`` field.
    """

    code = "password_required"


class WrongPassword(DocumentError):
    """The password does not open the document.

    Upload it again with the right ``password``.
    """

    code = "wrong_password"


class UnsupportedEncryption(DocumentError):
    """The document is encrypted in a way that no password opens.

    Certificate encryption and unknown security handlers cannot be read; export an unencrypted copy.
    """

    code = "unsupported_encryption"


class DamagedFile(DocumentError):
    """The file is damaged so far that no reader finds its pages.

    Open it in a PDF viewer and save or print it to a new PDF.
    """

    code = "damaged_file"


class NoPages(DocumentError):
    """The document has no pages.

    There is nothing to read; check the program that wrote it.
    """

    code = "no_pages"


class NoTextLayer(DocumentError):
    """No page has text that can be extracted.

    The pages are probably scans. Install the ``ocr`` extra on the ingest workers, or upload with ``ocr: auto`` or
    ``force`` when it is installed.
    """

    code = "no_text_layer"


class DynamicForm(DocumentError):
    """The document is a dynamic XFA form, which has no pages of its own.

    Open it in Adobe Acrobat or Reader, print it to a new PDF and upload that.
    """

    code = "dynamic_form"


class Portfolio(DocumentError):
    """The document is a portfolio: a cover page with files inside it.

    Files inside a PDF are not read. Save them from Adobe Acrobat or Reader and upload each.
    """

    code = "portfolio"


class TooManyPages(DocumentError):
    """The document has more pages than this installation reads.

    ``LONGREAD_LIMITS__MAX_PAGES`` sets the limit; split the document, or raise it.
    """

    code = "too_many_pages"


class TooMuchText(DocumentError):
    """The document has more text than this installation keeps.

    ``LONGREAD_LIMITS__MAX_TEXT_CHARS`` sets the limit; split the document, or raise it.
    """

    code = "too_much_text"


class ReadingTimedOut(DocumentError):
    """Reading took longer than its time limit.

    ``LONGREAD_READING__WALL_SECONDS`` and ``LONGREAD_READING__CPU_SECONDS`` set the limits.
    """

    code = "reading_timed_out"


class ReadingOutOfMemory(DocumentError):
    """Reading needed more memory than its limit.

    ``LONGREAD_READING__MAX_MEMORY_BYTES`` sets the limit.
    """

    code = "reading_out_of_memory"


class ReaderCrashed(DocumentError):
    """Every reader crashed on this file.

    The file is hostile or badly damaged; save or print it to a new PDF.
    """

    code = "reader_crashed"


def document_error(code: str | None, detail: str | None) -> DocumentError | None:
    """The error that a failed document shows, as an exception; None when it is none of reading."""
    kind = next((kind for kind in DocumentError.__subclasses__() if kind.code == code), None)
    return kind(detail or kind.title()) if kind is not None else None


# -- jobs -------------------------------------------------------------------------------------------------------------


class JobError(LongreadError):
    """The job ended without a result."""

    code = "job_failed"


class DocumentFailed(JobError):
    """The document could not be read, so its question cannot be answered.

    The document's ``error`` says why.
    """

    code = "document_failed"


class PromptTooLong(JobError):
    """The prompt does not fit the engine that took the job.

    The engine's real length is shorter than its tier's: check the worker's start-up log.
    """

    code = "prompt_too_long"


class InvalidModelOutput(JobError):
    """The model's output does not follow the requested schema.

    Ask with a larger ``max_output_tokens``, or simplify the schema.
    """

    code = "invalid_model_output"


class EngineDied(JobError):
    """The engine died while it worked on this job.

    The job is tried again on another engine until its attempts are used up.
    """

    code = "engine_died"
    retryable = True


class EngineAborted(JobError):
    """The engine gave the request up before it was finished.

    The job is tried again until its attempts are used up.
    """

    code = "engine_aborted"
    retryable = True


class Poisoned(JobError):
    """Two engines died while they worked on this job, so it is not tried again.

    Ask with another wording or report it with the job's id.
    """

    code = "poisoned"


class AttemptsExhausted(JobError):
    """Every attempt at the job was lost.

    The workers that took it stopped answering; ask again.
    """

    code = "attempts_exhausted"


class InternalFailure(JobError):
    """The job failed for a reason that the service does not know.

    The worker's log has it under the job's id.
    """

    code = "internal_failure"
