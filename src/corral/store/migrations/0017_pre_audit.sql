-- Who changed what: one row for each administrative request or command, written before it is carried out, so
-- that nothing can be changed without one. `status` follows when it is known; a row that keeps none tells of a
-- process that died in between.

create table audit (
    id text primary key,
    created_at timestamptz not null default now(),
    -- The kind of credential ('api', or 'command' for `corral admin`) and its id, or the operating system's user.
    actor_kind text not null,
    actor_id text not null,
    action text not null,
    -- What it was done to: the ids in the request, and that of what was made.
    objects text[] not null default '{}',
    request_id text,
    status int
);
create index audit_created on audit (created_at desc, id desc);
create index audit_objects on audit using gin (objects);
