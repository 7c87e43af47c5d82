-- Dreams (contract section 21): jobs that reorganise a memory store in the light of past sessions.

create table dreams (
    id text primary key,
    status text not null default 'pending'
        check (status in ('pending', 'running', 'completed', 'failed', 'canceled')),
    -- No references: what is gone when the dream runs makes it fail, and says so in it.
    input_store_id text not null,
    session_ids text[] not null,
    model json not null,
    instructions text,
    updates_input boolean not null,
    output_store_id text,
    session_id text,
    usage json not null,
    error_type text,
    error_message text,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    ended_at timestamptz,
    -- Since when nothing of it can act any more: its session is archived, or there never was one.
    stopped_at timestamptz,
    archived_at timestamptz,
    -- A server works on it until then; others leave it alone.
    worked_until timestamptz,
    check ((error_type is null) = (error_message is null)),
    check ((error_type is not null) = (status = 'failed')),
    check ((ended_at is not null) = (status in ('completed', 'failed', 'canceled'))),
    check (stopped_at is null or ended_at is not null),
    check (archived_at is null or ended_at is not null)
);
create index dreams_created on dreams (created_at desc, id desc);
create index dreams_unstopped on dreams (created_at) where stopped_at is null;
-- Of the dreams that write into their own input, one at a time per store.
create unique index dreams_updating on dreams (input_store_id) where updates_input and stopped_at is null;

-- The calls that a dream's agent has made of its tools, each with its answer: written together with what the
-- call changed, so that it is carried out once. Gone when the dream has stopped; the session's log has it all.
create table dream_calls (
    dream_id text not null references dreams (id) on delete cascade,
    call_id text not null,
    position bigint generated always as identity,
    content text not null,
    is_error boolean not null,
    primary key (dream_id, call_id)
);

-- What the dream has seen last of each memory that it has read or written: what it may replace.
create table dream_seen (
    dream_id text not null references dreams (id) on delete cascade,
    path text collate "C" not null,
    content_sha256 text not null,
    primary key (dream_id, path)
);
