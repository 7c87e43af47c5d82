-- Vaults and their credentials (contract section 15). Secrets lie apart, sealed with the gateway's public key.

create table vaults (
    id text primary key,
    display_name text not null,
    metadata json not null default '{}',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    archived_at timestamptz
);
create index vaults_created on vaults (created_at desc, id desc);

create table vault_credentials (
    id text primary key,
    vault_id text not null references vaults (id) on delete cascade,
    display_name text,
    -- What the API shows of it: never a secret.
    auth json not null,
    -- SHA-256 of what the credential is found by: the normalised URL of an MCP server, or a variable's name.
    key_hash bytea not null,
    metadata json not null default '{}',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    archived_at timestamptz
);
-- An archived credential frees its key.
create unique index vault_credentials_key on vault_credentials (vault_id, key_hash) where archived_at is null;
create index vault_credentials_created on vault_credentials (vault_id, created_at desc, id desc);

-- An envelope (corral.vault.sealing) that opens for this credential and this field alone. `key_id` names the
-- key that opens it, so that a key can be replaced without reading every envelope.
create table vault_secrets (
    credential_id text not null references vault_credentials (id) on delete cascade,
    field text not null
        check (field in ('access_token', 'refresh_token', 'client_secret', 'token', 'secret_value')),
    key_id text not null,
    sealed bytea not null,
    updated_at timestamptz not null default now(),
    primary key (credential_id, field)
);
create index vault_secrets_key on vault_secrets (key_id);

-- In the order in which they are searched. A vault may be deleted meanwhile; the session keeps its id.
alter table sessions add column vault_ids text[] not null default '{}';
