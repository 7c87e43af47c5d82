-- Deployments (contract section 19): an agent with everything that it needs to run by itself, and its runs.

create table deployments (
    id text primary key,
    name text not null,
    description text,
    -- None of these is a reference: what is gone when a run is due makes the run fail, and says so in it.
    agent_id text not null,
    agent_version integer not null,
    environment_id text not null,
    initial_events json not null,
    resources json not null default '[]',
    vault_ids json not null default '[]',
    budget json,
    metadata json not null default '{}',
    -- The schedule; both or neither.
    expression text,
    timezone text,
    -- The time at which the schedule comes next, and by how much this deployment starts later than that.
    -- Null where nothing is to be started: no schedule, paused or archived.
    next_run_at timestamptz,
    jitter interval not null,
    last_run_at timestamptz,
    -- Why it is paused, as the API shows it; null where it is not.
    paused_reason json,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    archived_at timestamptz,
    check ((expression is null) = (timezone is null)),
    check (next_run_at is null or (expression is not null and paused_reason is null and archived_at is null))
);
create index deployments_created on deployments (created_at desc, id desc);
create index deployments_agent on deployments (agent_id);
create index deployments_due on deployments (next_run_at) where next_run_at is not null;

-- One row a run, written once: together with the session that it made, or with the reason why it made none.
create table deployment_runs (
    id text primary key,
    deployment_id text not null references deployments (id),
    agent_id text not null,
    agent_version integer not null,
    -- The time in the schedule that this run is for; null for a run that was started by hand.
    scheduled_at timestamptz,
    -- No reference: the record stays when the session is deleted.
    session_id text,
    error_type text,
    error_message text,
    created_at timestamptz not null default now(),
    check ((session_id is null) <> (error_type is null)),
    check ((error_type is null) = (error_message is null))
);
create index deployment_runs_created on deployment_runs (created_at desc, id desc);
create index deployment_runs_deployment on deployment_runs (deployment_id, created_at desc, id desc);
-- However many servers see that a time has come, it has one run.
create unique index deployment_runs_once on deployment_runs (deployment_id, scheduled_at)
    where scheduled_at is not null;

alter table sessions add column deployment_id text;
create index sessions_deployment on sessions (deployment_id, created_at desc, id desc)
    where deployment_id is not null;
