-- Memory stores (contract section 16): named containers of texts at paths, with a history that outlives them.

create table memory_stores (
    id text primary key,
    name text not null,
    description text not null default '',
    metadata json not null default '{}',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    archived_at timestamptz
);
create index memory_stores_created on memory_stores (created_at desc, id desc);

-- One row a change, append-only; redaction alone takes something away again. Neither the memory nor who wrote
-- it need exist any longer, so there is no reference to either.
create table memory_versions (
    id text primary key,
    store_id text not null references memory_stores (id) on delete cascade,
    memory_id text not null,
    operation text not null check (operation in ('created', 'modified', 'deleted')),
    path text collate "C",
    content text,
    content_sha256 text,
    content_size_bytes integer,
    created_at timestamptz not null default clock_timestamp(),
    -- Who made the change: a session's agent, or a caller of the API.
    session_id text,
    api_key_id text,
    redacted_at timestamptz,
    redacted_by_api_key_id text,
    check ((path is null) = (redacted_at is not null))
);
create index memory_versions_created on memory_versions (store_id, created_at desc, id desc);
create index memory_versions_memory on memory_versions (memory_id, created_at desc, id desc);
create index memory_versions_session on memory_versions (session_id, created_at desc, id desc)
    where session_id is not null;

-- The live memories. A memory's text is that of its newest version, which cannot be redacted.
-- Paths are ordered by their bytes, so that a folder is a range of the index.
create table memories (
    id text primary key,
    store_id text not null references memory_stores (id) on delete cascade,
    path text collate "C" not null,
    content_sha256 text not null,
    content_size_bytes integer not null,
    version_id text not null references memory_versions (id),
    created_at timestamptz not null,
    updated_at timestamptz not null
);
create unique index memories_path on memories (store_id, path);
create index memories_version on memories (version_id);

-- Which sessions work with a store.
create index session_resources_memory on session_resources ((body ->> 'memory_store_id'), session_id)
    where type = 'memory_store';
