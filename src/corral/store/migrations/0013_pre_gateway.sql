-- What servers show to the gateway (corral.vault.grants). Only the hash is kept.
create table gateway_grants (
    token_hash bytea primary key,
    -- For a session: accepted only while `epoch` is the session's present one.
    session_id text references sessions (id) on delete cascade,
    epoch bigint,
    -- For one validation of one credential: used up by being accepted.
    credential_id text references vault_credentials (id) on delete cascade,
    expires_at timestamptz not null,
    check ((session_id is null) = (epoch is null) and (session_id is null) <> (credential_id is null))
);
create index gateway_grants_expiry on gateway_grants (expires_at);
create index gateway_grants_session on gateway_grants (session_id);
create index gateway_grants_credential on gateway_grants (credential_id);
