-- What a model says may hold NUL, which the log keeps as it came, and which PostgreSQL refuses wherever it looks
-- into a JSON value that has one, in whatever field. Whatever looks into the log does it through this.
create function readable(value json) returns json language sql immutable strict parallel safe as $$
    select case
        when position('\u0000' in value::text) = 0 then value
        -- An escape that is itself escaped is plain text.
        else regexp_replace(value::text, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::json
    end
$$;

create or replace function webhook_budget_told(session text, before_seq bigint) returns boolean language sql stable as $$
    select exists (
        select from events reached
        where reached.session_id = session and reached.seq < before_seq
            and reached.type = 'session.status_idle'
            and readable(reached.body) #>> '{stop_reason,type}' = 'budget_reached'
            and reached.seq > coalesce((
                select max(updated.seq) from events updated
                where updated.session_id = session and updated.seq < before_seq
                    and updated.type = 'session.updated' and readable(updated.body) -> 'budget' is not null
            ), 0)
    )
$$;

create or replace function webhook_tell_event() returns trigger language plpgsql as $$
declare
    kinds text[];
    thread text;
    told json := readable(new.body);
begin
    if not exists (select from webhook_endpoints e where e.disabled_at is null) then
        return null;
    end if;
    if new.type like 'session.thread%' then
        thread := coalesce(told ->> 'session_thread_id', new.thread_id);
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
        case told #>> '{stop_reason,type}'
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
