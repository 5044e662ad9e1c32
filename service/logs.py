"""Structured logs: ids, sizes, counts and times; never document text, questions, file names or keys."""

from __future__ import annotations

import logging
import sys

import structlog
import structlog.tracebacks

from service.settings import LogSettings

# Without the frames' variables, which hold questions and document text.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def configure_logs(settings: LogSettings, *, process: str) -> None:
    """Set up structlog and route the standard library's loggers through it, once a process.

    Args:
        settings: Level and format.
        process: Name of this process in every line, such as ``api`` or ``engine``.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _TRACEBACKS if settings.format == "json" else structlog.processors.ExceptionRenderer(),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if settings.format == "json" else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    # These write a line a request or a statement; their warnings are enough.
    for noisy in ("uvicorn.access", "httpx", "kombu", "celery.worker.strategy", "celery.app.trace", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.contextvars.bind_contextvars(process=process)
