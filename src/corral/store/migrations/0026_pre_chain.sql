-- The chain over each session's log (docs/extensions.md): a later change of what was written shows.

-- Of an event: what was written, with what was written before it in the same commit. Null for what servers of an
-- older version have written; that is digested when it is sealed.
alter table events add column digest bytea;

-- Where the chains of sessions stood at a moment, signed by a key that the database does not have. Each seal tells
-- of the one before it, so none can be taken out of the middle.
create table chain_seals (
    number bigint primary key,
    previous bytea not null,
    sealed_at timestamptz not null,
    digest bytea not null,
    -- Null where the server has no key.
    key_id text,
    signature bytea,
    check ((key_id is null) = (signature is null))
);
-- No reference to the session: a seal stays whole when a session is deleted.
create table chain_seal_entries (
    session_id text not null,
    number bigint not null references chain_seals (number),
    seq bigint not null,
    head bytea not null,
    primary key (session_id, number)
);
create index chain_seal_entries_number on chain_seal_entries (number);

-- Where a session comes from that was not made by a request of its own: a fork of another, or an import.
create table session_origins (
    session_id text primary key references sessions (id) on delete cascade,
    kind text not null check (kind in ('fork', 'import')),
    source_session_id text not null,
    source_event_id text,
    source_seq bigint not null,
    -- The head of the source's chain there; null where it has none.
    source_head bytea,
    details json not null default '{}',
    created_at timestamptz not null default now()
);
create index session_origins_source on session_origins (source_session_id);
