-- Webhooks (contract section 23): endpoints, and the outbox of what they are told.
--
-- Triggers write the outbox, so that a change and what is told of it are one transaction, whoever makes the
-- change. Each trigger's condition says when its event occurs; one that does not hold costs nothing more than
-- the comparison, and where no endpoint wants the event the function ends at once.

create table webhook_endpoints (
    id text primary key,
    -- Of one that the settings declare, its name there: it is theirs to change, and its secret is never here.
    declared text unique,
    description text,
    url text not null,
    events text[] not null,
    -- `whsec_…` as the receiver has it: what signs must be read by whoever signs. Null for declared ones.
    secret text,
    -- The one before the last rotation signs as well until then.
    former_secret text,
    former_until timestamptz,
    disabled_at timestamptz,
    disabled_reason text,
    -- Since when every attempt has failed; null after one that has not.
    failing_since timestamptz,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    check ((secret is null) = (declared is not null)),
    check ((former_secret is null) = (former_until is null))
);
create index webhook_endpoints_created on webhook_endpoints (created_at desc, id desc);

-- Whether there has ever been an endpoint: its first value is drawn before the first one is made. A sequence,
-- since a trigger's condition may ask for its value, which costs the log next to nothing.
create sequence webhook_presence;

-- One row for an event and an endpoint that wanted it when it occurred. There is no reference to the endpoint:
-- its removal must never make a session's commit wait, let alone fail.
create table webhook_deliveries (
    event_id text not null,
    endpoint_id text not null,
    type text not null,
    -- The thing that the event is about, and what else of `data` there is beside it.
    subject text not null,
    extra json,
    occurred_at timestamptz not null,
    state text not null default 'waiting' check (state in ('waiting', 'delivered', 'failed', 'dropped')),
    attempts integer not null default 0,
    due_at timestamptz not null default now(),
    -- An attempt is under way, or its server has died; then it is due again.
    leased_until timestamptz,
    last_attempt_at timestamptz,
    -- The HTTP status of the last answer, or why there was none.
    last_status integer,
    last_error text,
    settled_at timestamptz,
    primary key (event_id, endpoint_id)
);
create index webhook_deliveries_due on webhook_deliveries (endpoint_id, due_at) where state = 'waiting';
create index webhook_deliveries_recent on webhook_deliveries (endpoint_id, occurred_at desc, event_id desc);
create index webhook_deliveries_settled on webhook_deliveries (settled_at) where state <> 'waiting';

-- Tells the endpoints that want one of `kinds` of it. `source`, where given, names the occurrence: the same
-- one told again is the same event. The servers are woken when the transaction commits.
create function webhook_emit(
    kinds text[], subject text, extra json default null, occurred_at timestamptz default now(),
    source text default null
) returns void language plpgsql as $$
begin
    if not exists (select from webhook_endpoints e where e.disabled_at is null and e.events && kinds) then
        return;
    end if;
    insert into webhook_deliveries (event_id, endpoint_id, type, subject, extra, occurred_at)
    select told.id, e.id, told.type, webhook_emit.subject, webhook_emit.extra, webhook_emit.occurred_at
    from (
        select kind as type,
            'whe_' || coalesce(md5(source || ' ' || kind), replace(gen_random_uuid()::text, '-', '')) as id
        from unnest(kinds) as kind
        offset 0
    ) as told
    join webhook_endpoints e on e.disabled_at is null and told.type = any(e.events)
    on conflict do nothing;
    if found then
        perform pg_notify('corral', '{"sender":"","topics":["webhooks"]}');
    end if;
end $$;

-- The triggers of everything but the log: their arguments are the events.
create function webhook_tell() returns trigger language plpgsql as $$
declare
    about record;
    extra json;
begin
    if tg_op = 'DELETE' then
        about := old;
    else
        about := new;
    end if;
    -- What Corral keeps for itself is listed nowhere, and told to nobody.
    if about.id like '%\_corral\_%' then
        return null;
    end if;
    if tg_table_name = 'vault_credentials' then
        extra := json_build_object('vault_id', about.vault_id);
    end if;
    perform webhook_emit(tg_argv::text[], about.id, extra);
    return null;
end $$;

create trigger webhook_created after insert on agents
    for each row execute function webhook_tell('agent.created');
create trigger webhook_updated after update on agents
    for each row when (old.version <> new.version) execute function webhook_tell('agent.updated');
create trigger webhook_archived after update on agents
    for each row when (old.archived_at is null and new.archived_at is not null)
    execute function webhook_tell('agent.archived');
create trigger webhook_deleted after delete on agents
    for each row execute function webhook_tell('agent.deleted');

create trigger webhook_created after insert on environments
    for each row execute function webhook_tell('environment.created');
create trigger webhook_updated after update on environments
    for each row when (
        (old.name, old.description, old.config::text, old.scope, old.metadata::text)
        is distinct from (new.name, new.description, new.config::text, new.scope, new.metadata::text)
    ) execute function webhook_tell('environment.updated');
create trigger webhook_archived after update on environments
    for each row when (old.archived_at is null and new.archived_at is not null)
    execute function webhook_tell('environment.archived');
create trigger webhook_deleted after delete on environments
    for each row execute function webhook_tell('environment.deleted');

create trigger webhook_created after insert on memory_stores
    for each row execute function webhook_tell('memory_store.created');
create trigger webhook_archived after update on memory_stores
    for each row when (old.archived_at is null and new.archived_at is not null)
    execute function webhook_tell('memory_store.archived');
create trigger webhook_deleted after delete on memory_stores
    for each row execute function webhook_tell('memory_store.deleted');

create trigger webhook_created after insert on vaults
    for each row execute function webhook_tell('vault.created');
create trigger webhook_archived after update on vaults
    for each row when (old.archived_at is null and new.archived_at is not null)
    execute function webhook_tell('vault.archived');
create trigger webhook_deleted after delete on vaults
    for each row execute function webhook_tell('vault.deleted');

create trigger webhook_created after insert on vault_credentials
    for each row execute function webhook_tell('vault_credential.created');
create trigger webhook_archived after update on vault_credentials
    for each row when (old.archived_at is null and new.archived_at is not null)
    execute function webhook_tell('vault_credential.archived');
create trigger webhook_deleted after delete on vault_credentials
    for each row execute function webhook_tell('vault_credential.deleted');

create trigger webhook_created after insert on deployments
    for each row execute function webhook_tell('deployment.created');
create trigger webhook_updated after update on deployments
    for each row when (
        (old.name, old.description, old.agent_id, old.agent_version, old.environment_id,
            old.initial_events::text, old.resources::text, old.vault_ids::text, old.budget::text,
            old.metadata::text, old.expression, old.timezone)
        is distinct from (new.name, new.description, new.agent_id, new.agent_version, new.environment_id,
            new.initial_events::text, new.resources::text, new.vault_ids::text, new.budget::text,
            new.metadata::text, new.expression, new.timezone)
    ) execute function webhook_tell('deployment.updated');
create trigger webhook_paused after update on deployments
    for each row when (old.paused_reason is null and new.paused_reason is not null)
    execute function webhook_tell('deployment.paused');
-- Archiving ends a pause as well, without resuming anything.
create trigger webhook_unpaused after update on deployments
    for each row when (
        old.paused_reason is not null and new.paused_reason is null and new.archived_at is null
    ) execute function webhook_tell('deployment.unpaused');
create trigger webhook_archived after update on deployments
    for each row when (old.archived_at is null and new.archived_at is not null)
    execute function webhook_tell('deployment.archived');
create trigger webhook_deleted after delete on deployments
    for each row execute function webhook_tell('deployment.deleted');

-- A run is written once, with its end; a run by hand tells nothing.
create trigger webhook_succeeded after insert on deployment_runs
    for each row when (new.scheduled_at is not null and new.session_id is not null)
    execute function webhook_tell('deployment_run.started', 'deployment_run.succeeded');
create trigger webhook_failed after insert on deployment_runs
    for each row when (new.scheduled_at is not null and new.session_id is null)
    execute function webhook_tell('deployment_run.started', 'deployment_run.failed');

create trigger webhook_created after insert on sessions
    for each row execute function webhook_tell('session.created');
create trigger webhook_archived after update on sessions
    for each row when (old.archived_at is null and new.archived_at is not null)
    execute function webhook_tell('session.archived');
create trigger webhook_deleted after delete on sessions
    for each row execute function webhook_tell('session.deleted');

-- Whether a session's budget had been reached before, at event `before_seq`, with the value that it has now.
create function webhook_budget_told(session text, before_seq bigint) returns boolean language sql stable as $$
    select exists (
        select from events reached
        where reached.session_id = session and reached.seq < before_seq
            and reached.type = 'session.status_idle'
            and reached.body #>> '{stop_reason,type}' = 'budget_reached'
            and reached.seq > coalesce((
                select max(updated.seq) from events updated
                where updated.session_id = session and updated.seq < before_seq
                    and updated.type = 'session.updated' and updated.body -> 'budget' is not null
            ), 0)
    )
$$;

-- The log: what of it is told, and by which name.
create function webhook_tell_event() returns trigger language plpgsql as $$
declare
    kinds text[];
    thread text;
begin
    if not exists (select from webhook_endpoints e where e.disabled_at is null) then
        return null;
    end if;
    if new.type like 'session.thread%' then
        thread := coalesce(new.body ->> 'session_thread_id', new.thread_id);
        if thread = (select s.primary_thread_id from sessions s where s.id = new.session_id) then
            return null;
        end if;
        kinds := array[case new.type
            when 'session.thread_created' then 'session.thread_created'
            when 'session.thread_status_idle' then 'session.thread_idled'
            else 'session.thread_terminated'
        end];
        perform webhook_emit(
            kinds, new.session_id, json_build_object('session_thread_id', thread), new.processed_at,
            new.session_id || ' ' || new.id
        );
        return null;
    end if;
    kinds := case new.type
        when 'session.status_running' then array['session.status_run_started', 'session.running']
        when 'session.status_idle' then array['session.status_idled', 'session.idled']
        when 'session.status_rescheduled' then array['session.status_rescheduled']
        when 'session.status_terminated' then array['session.status_terminated']
        when 'session.updated' then array['session.updated']
        when 'span.outcome_evaluation_end' then array['session.outcome_evaluation_ended']
    end;
    if new.type = 'session.status_idle' then
        case new.body #>> '{stop_reason,type}'
            when 'requires_action' then
                kinds := kinds || 'session.requires_action'::text;
            when 'budget_reached' then
                if not webhook_budget_told(new.session_id, new.seq) then
                    kinds := kinds || 'session.budget_reached'::text;
                end if;
            else null;
        end case;
    end if;
    perform webhook_emit(kinds, new.session_id, null, new.processed_at, new.session_id || ' ' || new.id);
    return null;
end $$;

create trigger webhook_event after insert on events
    for each row when (
        new.type in (
            'session.status_running', 'session.status_idle', 'session.status_rescheduled',
            'session.status_terminated', 'session.updated', 'session.thread_created',
            'session.thread_status_idle', 'session.thread_status_terminated', 'span.outcome_evaluation_end'
        )
        and pg_sequence_last_value('webhook_presence') is not null
    ) execute function webhook_tell_event();
