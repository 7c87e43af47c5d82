-- The tokens of repositories that are attached to sessions (contract section 9): sealed for the gateway, for
-- the place of the resource's id and field `token`. The resource itself is a row of session_resources.
create table session_repository_secrets (
    resource_id text primary key references session_resources (id) on delete cascade,
    key_id text not null,
    sealed bytea not null,
    updated_at timestamptz not null default now()
);
create index session_repository_secrets_key on session_repository_secrets (key_id);
