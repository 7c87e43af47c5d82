-- The way out of sandboxes (contract sections 7 and 15): who decides is the gateway.

-- The certificate authority that sandboxes trust. Its key is sealed with the vault's public key (place
-- `gateway_authority`, field `secret_value`), so that gateways alone can sign.
create table gateway_authority (
    only_one boolean primary key default true check (only_one),
    certificate text not null,
    key_id text not null,
    sealed bytea not null,
    created_at timestamptz not null default now()
);

-- What was decided about each host that a session's sandbox asked for: one row a host, port and outcome.
create table egress_decisions (
    session_id text not null references sessions (id) on delete cascade,
    host text not null,
    port integer not null,
    decision text not null check (decision in ('allowed', 'denied', 'failed')),
    reason text not null,
    requests bigint not null,
    first_at timestamptz not null default now(),
    last_at timestamptz not null default now(),
    primary key (session_id, host, port, decision, reason)
);
