-- Threads beside the primary one (contract section 11).

-- What the list of threads shows. The log is what counts; these rows are kept by the commits that change a
-- thread. A session that has its primary thread alone has none: its own row says it all.
create table threads (
    session_id text not null references sessions (id) on delete cascade,
    id text not null,
    -- Null for the primary thread, as is its agent, which is the session's.
    parent_thread_id text,
    agent json,
    status text not null check (status in ('idle', 'running', 'rescheduling', 'terminated')),
    -- The thread's `usage` as the API shows it; null until it has stopped for the first time.
    usage json,
    running_since timestamptz,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    archived_at timestamptz,
    primary key (session_id, id)
);

-- Who sees an event of a child thread in the session's list and stream: 0 nobody, 1 everybody, 2 the worker
-- that runs the session's tools.
alter table events add column crossposted smallint not null default 0;
