-- What the gateway keeps of MCP servers for a session.

-- The tools of each server, listed once: every model request of the session sees the same ones.
create table session_mcp_tools (
    session_id text not null references sessions (id) on delete cascade,
    server_name text not null,
    -- Of the server that was listed; another one by the same name is listed anew.
    url text not null,
    tools json not null,
    listed_at timestamptz not null default now(),
    primary key (session_id, server_name)
);

-- Gateways at work; each holds an advisory lock on its number for as long as it lives.
create table gateways (
    id text primary key,
    lock_key bigint not null,
    seen_at timestamptz not null default now()
);

-- Calls of MCP tools by the event that asked for them: what came of each outlives the brain that asked.
create table mcp_outcomes (
    event_id text primary key,
    session_id text not null references sessions (id) on delete cascade,
    gateway_id text not null,
    -- Null while the call is under way.
    outcome json,
    begun_at timestamptz not null default now()
);
create index mcp_outcomes_session on mcp_outcomes (session_id);
