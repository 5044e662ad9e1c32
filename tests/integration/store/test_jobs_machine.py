"""The job table as a state machine, on SQLite and PostgreSQL: whatever the order of claims, finishes, lost leases,
sweeps and cancellations, no stale attempt writes anything and every job ends once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from sqlmodel import select

from service.domain.documents import DocumentStatus
from service.domain.ids import new_id
from service.domain.jobs import TERMINAL, JobKind, JobState, Priority, allowed
from service.errors import EngineAborted, EngineDied, PromptTooLong
from service.store import claims, jobs, maintenance
from service.store.database import Database
from service.store.jobs import Lease, RetryPolicy
from service.store.tables import DocumentRow, JobRow

POLICY = RetryPolicy(max_attempts=3, max_engine_deaths=2)
LEASE_SECONDS = 15.0


@dataclass
class Known:
    state: JobState
    attempt: int


def machine_for(database: Database) -> type[RuleBasedStateMachine]:
    class JobTable(RuleBasedStateMachine):
        leases: Bundle[Lease] = Bundle("leases")

        def __init__(self) -> None:
            super().__init__()
            self.now = datetime(2030, 1, 1, tzinfo=UTC)
            self.tenant = new_id("tenant")
            self.worker = 0
            self.known: dict[str, Known] = {}
            self.accepted: dict[str, int] = {}
            with database.write() as session:
                self.document = DocumentRow(
                    id=new_id("doc"),
                    lineage_id=new_id("doc"),
                    tenant_id=self.tenant,
                    name="x",
                    content_type="application/pdf",
                    bytes=1,
                    sha256=new_id("sha"),
                    status=DocumentStatus.READY,
                    created_at=self.now,
                )
                session.add(self.document)

        def teardown(self) -> None:
            with database.write() as session:
                session.delete(session.get(DocumentRow, self.document.id))

        @rule(priority=st.sampled_from(list(Priority)), deadline=st.none() | st.integers(1, 60))
        def enqueue(self, priority: Priority, deadline: int | None) -> None:
            job = JobRow(
                id=new_id("job"),
                tenant_id=self.tenant,
                kind=JobKind.ANSWER,
                state=JobState.QUEUED,
                priority=priority,
                document_id=self.document.id,
                tier=self.tenant,
                created_at=self.now,
                deadline_at=self.now + timedelta(seconds=deadline) if deadline else None,
            )
            with database.write() as session:
                session.add(job)
            self.known[job.id] = Known(JobState.QUEUED, 0)

        @rule(target=leases)
        def claim(self) -> Lease | MultipleResults[Lease]:
            self.worker += 1
            with database.write() as session:
                lease = claims.claim_next(
                    session,
                    self.now,
                    worker_id=f"w{self.worker}",
                    kinds=[JobKind.ANSWER],
                    tiers=[self.tenant],
                    lease_seconds=LEASE_SECONDS,
                )
            if lease is None:
                return multiple()
            assert lease.attempt == self.known[lease.job_id].attempt + 1
            return lease

        @rule(target=leases)
        def lose_leases_and_claim_again(self) -> Lease | MultipleResults[Lease]:
            """The way to a stale attempt, as one step: random order alone finds it too seldom."""
            self.now += timedelta(seconds=LEASE_SECONDS + 1)
            with database.write() as session:
                maintenance.sweep(session, self.now, POLICY)
            self.every_move_is_allowed_and_attempts_grow()
            return self.claim()

        def current(self, lease: Lease) -> bool:
            known = self.known[lease.job_id]
            return known.state == JobState.RUNNING and known.attempt == lease.attempt

        @rule(lease=leases)
        def succeed(self, lease: Lease) -> None:
            current = self.current(lease)
            with database.write() as session:
                done = jobs.succeed(session, self.now, lease.job_id, lease.attempt)
            assert done == current
            if done:
                self.accepted[lease.job_id] = self.accepted.get(lease.job_id, 0) + 1

        @rule(lease=leases, error=st.sampled_from([EngineDied("x"), EngineAborted("x"), PromptTooLong("x")]))
        def fail(self, lease: Lease, error: EngineDied | EngineAborted | PromptTooLong) -> None:
            current = self.current(lease)
            with database.write() as session:
                decision = jobs.fail(session, self.now, lease.job_id, lease.attempt, error, policy=POLICY)
            assert (decision is not None) == current

        @rule(lease=consumes(leases))
        def give_back(self, lease: Lease) -> None:
            current = self.current(lease)
            with database.write() as session:
                assert jobs.give_back(session, self.now, lease.job_id, lease.attempt, penalty=False) == current

        @rule(seconds=st.sampled_from([1, 10, 16, 61]))
        def time_passes(self, seconds: int) -> None:
            self.now += timedelta(seconds=seconds)

        @rule()
        def sweep(self) -> None:
            with database.write() as session:
                maintenance.sweep(session, self.now, POLICY)
            with database.read() as session:
                late = session.exec(
                    select(JobRow).where(JobRow.tenant_id == self.tenant, JobRow.state == JobState.RUNNING)
                ).all()
            assert all(job.lease_until is not None and job.lease_until >= self.now for job in late)

        @rule(data=st.data())
        def cancel(self, data: st.DataObject) -> None:
            if not self.known:
                return
            job_id = data.draw(st.sampled_from(sorted(self.known)))
            before = self.known[job_id].state
            with database.write() as session:
                job = session.get(JobRow, job_id)
                assert job is not None
                state = jobs.request_cancel(session, self.now, job)
            assert state == (JobState.CANCELLED if before == JobState.QUEUED else before)

        @rule(lease=leases)
        def stop(self, lease: Lease) -> None:
            with database.read() as session:
                asked = jobs.stop_requests(session, self.now, worker_id=f"w{self.worker}")
            if (lease.job_id, lease.attempt) in asked:
                with database.write() as session:
                    assert jobs.stop(session, self.now, lease.job_id, lease.attempt)

        @invariant()
        def every_move_is_allowed_and_attempts_grow(self) -> None:
            with database.read() as session:
                rows = session.exec(select(JobRow).where(JobRow.tenant_id == self.tenant)).all()
            for row in rows:
                known = self.known[row.id]
                state = JobState(row.state)
                assert row.attempt >= known.attempt
                if row.attempt == known.attempt and state != known.state:
                    assert allowed(known.state, state)
                if known.state in TERMINAL:
                    assert (state, row.attempt) == (known.state, known.attempt)
                assert row.attempt - row.free_attempts <= POLICY.max_attempts
                self.known[row.id] = Known(state, row.attempt)
            assert all(count == 1 for count in self.accepted.values())

    return JobTable


@pytest.mark.timeout(280)
def test_whatever_happens_every_job_ends_once_and_no_stale_attempt_writes(database: Database) -> None:
    run_state_machine_as_test(
        machine_for(database),
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
