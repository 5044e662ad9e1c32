"""A question as it is now, read in a thread."""

from __future__ import annotations

from service.api.fleet import Fleet, read_fleet
from service.api.questions.schemas import QuestionOut
from service.api.questions.views import question_out
from service.api.services import Services
from service.api.watching import Seen
from service.domain.jobs import JobState
from service.store import questions


def read_question(services: Services, tenant: str, question_id: str) -> QuestionOut:
    """The question as it is now.

    Raises:
        NotFound: There is none of this id in this tenant.
    """
    with services.database.read() as session:
        row, job = questions.get(session, tenant, question_id)
        now = services.database.now(session)
        # Only what waits is told about workers; the answer's poll saves the query.
        waits = job.state == JobState.QUEUED
        fleet = read_fleet(session, now, services.settings, services.tiers) if waits else Fleet((), services.tiers)
        return question_out(session, now, row, job, fleet)


def look_at(services: Services, tenant: str, question_id: str) -> Seen:
    """Its state alone.

    Raises:
        NotFound: There is none of this id in this tenant.
    """
    with services.database.read() as session:
        return Seen(*questions.standing(session, tenant, question_id))
