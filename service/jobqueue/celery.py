"""The Celery application that every process shares, with the settings that were measured to matter.

Redis is a doorbell: messages are acknowledged when they arrive and may be lost (``transport``); the job rows in SQL are the
queue (docs/decisions/0003-sql-is-the-queue.md).
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from service.jobqueue import transport
from service.settings import BrokerSettings


def make_celery(broker: BrokerSettings, *, publish_only: bool = False) -> Celery:
    """Make the application.

    Args:
        broker: Where the broker is and how long a publish may take.
        publish_only: Short socket timeouts and no reconnecting, for a process that must not hang when Redis is away.
    """
    transport.install()
    options: dict[str, Any] = {
        # Must exceed the 1 s BRPOP of a consumer; a publisher reads nothing for long.
        "socket_timeout": broker.publish_timeout_seconds if publish_only else 5.0,
        "socket_connect_timeout": broker.publish_timeout_seconds if publish_only else 3.0,
        "socket_keepalive": True,
        "health_check_interval": 10,
    }
    if publish_only:
        options |= {"max_retries": 0, "retry_on_timeout": False}
    app = Celery("longread", broker=broker.url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=False,
        task_publish_retry=False,
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_limit=10,
    )
    return app
