"""F27: tenants and each other's computed prefixes, with a worker process: shared meets shared, everything else nothing."""

from __future__ import annotations

from service.store.tables import JobRow, QuestionRow
from tests.faults.rig import Rig


def cached(rig: Rig, tenant: str, *, shared: bool) -> int:
    """Tokens of the prompt of one more question that the engine found in its cache."""
    (job_id,) = rig.ask(1, tenant=tenant, shared=shared)
    rig.settle()
    with rig.database.read() as session:
        job = session.get(JobRow, job_id)
        assert job is not None
        question = session.get(QuestionRow, job.question_id)
        assert question is not None
        assert question.cached_tokens is not None
        return question.cached_tokens


def test_f27_equal_documents_of_tenants_meet_only_when_both_are_shared(rig: Rig) -> None:
    rig.start_worker()
    assert cached(rig, "a", shared=False) == 0
    assert cached(rig, "b", shared=False) == 0
    assert cached(rig, "a", shared=True) == 0
    assert 0 < cached(rig, "b", shared=True) <= (rig.document("b", shared=True).tokens or 0)
    assert cached(rig, "c", shared=False) == 0
    assert cached(rig, "a", shared=False) > 0
    rig.assert_succeeded()
