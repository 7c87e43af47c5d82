-- Files and what is attached to sessions. Bytes lie in the blob store; here is what is known about them.

-- A row comes before the bytes and goes after them, so that nothing in the store is ever forgotten:
-- `writing` until a file refers to it, `doomed` from the moment on at which nothing may refer to it again.
create table blobs (
    id text primary key,
    state text not null default 'writing' check (state in ('writing', 'stored', 'doomed')),
    size_bytes bigint not null default 0,
    sha256 bytea,
    created_at timestamptz not null default now(),
    unreferenced_since timestamptz
);
create index blobs_passing on blobs (state) where state <> 'stored' or unreferenced_since is not null;

create table files (
    id text primary key,
    -- Several files may share a blob. Null once the file has expired: the bytes are gone, the facts stay a while.
    blob_id text references blobs (id),
    filename text not null,
    mime_type text not null,
    size_bytes bigint not null,
    downloadable boolean not null default false,
    -- The session that the file belongs to: a copy that is mounted there, or one of its outputs.
    session_id text references sessions (id) on delete cascade,
    -- Where an output lies below /mnt/session/outputs; null for anything else.
    output_path text,
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    check (output_path is null or session_id is not null)
);
create index files_created on files (created_at desc, id desc);
create index files_session on files (session_id, created_at desc, id desc) where session_id is not null;
create index files_blob on files (blob_id);
create index files_expiring on files (expires_at) where expires_at is not null;
create unique index files_output on files (session_id, output_path) where output_path is not null;

-- What is attached to a session, in the order of `position`. `body` is what the API shows beside id, type and
-- times; what only some types have stands in columns of its own.
create table session_resources (
    id text primary key,
    session_id text not null references sessions (id) on delete cascade,
    position bigint generated always as identity,
    type text not null,
    mount_path text not null,
    file_id text references files (id) on delete cascade,
    body json not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create index session_resources_session on session_resources (session_id, position);
create index session_resources_file on session_resources (file_id) where file_id is not null;
