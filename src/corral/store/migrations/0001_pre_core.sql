-- The core: credentials, agents, environments, sessions with their log, and the work queue.
--
-- Rules that every later migration keeps: `pre` files run before new servers start, and the schema after
-- them still serves the servers of one version before; `post` files run when no old server is left.

create table keys (
    id text primary key,
    kind text not null check (kind in ('api', 'environment', 'pool')),
    environment_id text,
    name text not null,
    -- SHA-256 of the key; the key itself is shown once and never stored.
    hash bytea not null unique,
    created_at timestamptz not null default now(),
    revoked_at timestamptz,
    check ((kind = 'environment') = (environment_id is not null))
);

create table agents (
    id text primary key,
    version integer not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    archived_at timestamptz
);
create index agents_created on agents (created_at desc, id desc);

-- One row a version, never changed. `config` is the resolved agent without id, version and times.
create table agent_versions (
    agent_id text not null references agents (id) on delete cascade,
    version integer not null,
    config json not null,
    created_at timestamptz not null default now(),
    primary key (agent_id, version)
);

create table environments (
    id text primary key,
    name text not null,
    description text,
    config json not null,
    scope text not null default 'organization',
    metadata json not null default '{}',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    archived_at timestamptz
);
create index environments_created on environments (created_at desc, id desc);

create table sessions (
    id text primary key,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    archived_at timestamptz,
    title text,
    metadata json not null default '{}',
    environment_id text not null references environments (id),
    agent_id text not null,
    agent_version integer not null,
    -- The resolved agent snapshot, as the API shows it in `session.agent`.
    agent json not null,
    primary_thread_id text not null,
    status text not null default 'idle' check (status in ('idle', 'running', 'rescheduling', 'terminated')),
    -- The session's `usage` as the API shows it; `running_since` lets a reader add the running turn's seconds.
    usage json not null,
    running_since timestamptz,
    -- The three numbers on which every write to the session is conditional:
    -- the log's length (gapless), how many inputs were ever queued, and who may write as its brain.
    last_seq bigint not null default 0,
    last_input bigint not null default 0,
    epoch bigint not null default 0,
    last_event_at timestamptz not null default now()
);
create index sessions_created on sessions (created_at desc, id desc);
create index sessions_environment on sessions (environment_id);
create index sessions_agent on sessions (agent_id, agent_version);

-- THE LOG. Append-only. `body` is the event as the API shows it, without processed_at; `private` is what the
-- API never shows and the model must get back. json, not jsonb: it keeps NUL escapes and the exact text.
create table events (
    session_id text not null references sessions (id) on delete cascade,
    seq bigint not null,
    id text not null,
    thread_id text not null,
    type text not null,
    body json not null,
    private json,
    -- The tool use that this event answers; a tool use has at most one answer.
    resolves text,
    processed_at timestamptz not null,
    primary key (session_id, seq)
);
create unique index events_resolves on events (session_id, resolves) where resolves is not null;
create index events_tool_uses on events (session_id, id)
    where type in ('agent.tool_use', 'agent.mcp_tool_use', 'agent.custom_tool_use');

-- Client events that wait for the brain to take them up, in the order of their acceptance.
create table inputs (
    session_id text not null references sessions (id) on delete cascade,
    position bigint not null,
    id text not null,
    thread_id text not null,
    type text not null,
    body json not null,
    created_at timestamptz not null default now(),
    primary key (session_id, position)
);

-- One row per session that needs a brain. Removed with the idle event, in one commit, if no input waits.
create table wakes (
    session_id text primary key references sessions (id) on delete cascade,
    due_at timestamptz not null default now(),
    brain_id text,
    lease_until timestamptz
);
create index wakes_due on wakes (due_at);

-- A brain's process holds the advisory lock `lock_key` on its own connection as long as it lives.
create table brains (
    id text primary key,
    lock_key bigint not null unique,
    started_at timestamptz not null default now(),
    seen_at timestamptz not null default now()
);

-- The work queue (contract section 12).
create table work (
    id text primary key,
    environment_id text not null references environments (id) on delete cascade,
    session_id text not null references sessions (id) on delete cascade,
    state text not null default 'queued' check (state in ('queued', 'starting', 'active', 'stopping', 'stopped')),
    metadata json not null default '{}',
    -- SHA-256 of the token that the last poll handed out in the item's secret.
    token_hash bytea unique,
    worker_id text,
    polled_at timestamptz,
    lease_until timestamptz,
    -- The exact text of the last heartbeat, which the next one must echo.
    last_heartbeat text,
    stop_reason text,
    created_at timestamptz not null default now(),
    acknowledged_at timestamptz,
    started_at timestamptz,
    latest_heartbeat_at timestamptz,
    stop_requested_at timestamptz,
    stopped_at timestamptz
);
-- At most one item of a session can be claimed at a time.
create unique index work_live on work (session_id) where state in ('queued', 'starting', 'active');
create index work_queue on work (environment_id, created_at) where state <> 'stopped';

-- A sandbox call that a worker has begun: whoever takes over answers it instead of running it again.
create table begun_calls (
    session_id text not null references sessions (id) on delete cascade,
    tool_use_id text not null,
    work_id text not null,
    token_hash bytea not null,
    begun_at timestamptz not null default now(),
    primary key (session_id, tool_use_id)
);

-- Workers seen polling, for `workers_polling`.
create table workers (
    environment_id text not null,
    worker_id text not null,
    seen_at timestamptz not null default now(),
    primary key (environment_id, worker_id)
);
