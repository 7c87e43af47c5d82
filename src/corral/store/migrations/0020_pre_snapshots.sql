-- A cache, to be deleted at any time: what brains would find by replaying a session's log up to `seq`. Whoever
-- misses it, or cannot read it, replays (docs/design/log.md).
create table session_snapshots (
    session_id text primary key references sessions (id) on delete cascade,
    -- A chain of snapshots that share pieces; one that is made from scratch begins another.
    generation text not null,
    seq bigint not null,
    -- The code that wrote it; no other reads it.
    format text not null,
    checksum bigint not null,
    head bytea not null,
    written_at timestamptz not null default now()
);

-- The beginnings of the threads' conversations as a model request holds them, in pieces that never change.
create table session_snapshot_pieces (
    session_id text not null references session_snapshots (session_id) on delete cascade,
    generation text not null,
    thread_id text not null,
    position integer not null,
    body bytea not null,
    primary key (session_id, generation, thread_id, position)
);
-- To unpack what is compressed takes longer than to read it as it is.
alter table session_snapshots alter column head set storage external;
alter table session_snapshot_pieces alter column body set storage external;
