-- Writes a group of commits, at most one per session, in one statement.
--
-- Promises: a session's row is locked before it is compared (in id order, so that two servers cannot
-- deadlock); a commit whose fence does not hold writes nothing at all and is missing from the result;
-- sequence numbers have no gaps; processed_at never goes back within a session.
--
-- The parts between brackets are left out where no commit of the group has anything for them.
with req as materialized (
    select *
    from unnest(
        string_to_array(%(session_id)s, chr(31), ''),
        %(epoch)s::bigint[], %(seq)s::bigint[], %(last_input)s::bigint[],
        %(n_events)s::bigint[], %(n_inputs)s::bigint[], string_to_array(%(status)s, chr(31), ''), %(usage)b::text[],
        string_to_array(%(wake)s, chr(31), ''), %(delay)s::float8[]
    ) as r (session_id, epoch, seq, last_input, n_events, n_inputs, status, usage, wake, delay)
),
locked as materialized (
    select s.id, s.epoch, s.last_seq, s.last_input, s.last_event_at
    from sessions s
    where s.id = any(string_to_array(%(session_id)s, chr(31), ''))
    order by s.id
    for update
),
ok as materialized (
    select r.*, l.last_seq as base, l.last_input as input_base,
        greatest(clock_timestamp(), l.last_event_at) as at
    from req r
    join locked l on l.id = r.session_id
    where (r.epoch is null or r.epoch = l.epoch)
        and (r.seq is null or r.seq = l.last_seq)
        and (r.last_input is null or r.last_input = l.last_input)
),
session_row as (
    update sessions s set
        last_seq = ok.base + ok.n_events,
        last_input = ok.input_base + ok.n_inputs,
        last_event_at = case when ok.n_events > 0 then ok.at else s.last_event_at end,
        updated_at = case when ok.n_events > 0 then ok.at else s.updated_at end,
        status = coalesce(ok.status, s.status),
        usage = coalesce(ok.usage::json, s.usage),
        running_since = case
            when ok.status is null then s.running_since
            when ok.status = 'running' then coalesce(s.running_since, ok.at)
        end
    from ok
    where s.id = ok.session_id
),
event_rows as (
    insert into events (session_id, seq, id, thread_id, type, body, private, resolves, processed_at, digest
        -- [threads
        , crossposted
        -- threads]
    )
    select ok.session_id, ok.base + e.n, e.id, e.thread_id, e.type, e.body::json, e.private::json, e.resolves, ok.at,
        decode(e.digest, 'hex')
        -- [threads
        , e.crossposted
        -- threads]
    from unnest(
        string_to_array(%(e_session)s, chr(31), ''), %(e_n)s::bigint[], string_to_array(%(e_id)s, chr(31), ''), string_to_array(%(e_thread)s, chr(31), ''), string_to_array(%(e_type)s, chr(31), ''),
        %(e_body)b::text[], %(e_private)b::text[], string_to_array(%(e_resolves)s, chr(31), ''), string_to_array(%(e_digest)s, chr(31), '')
        -- [threads
        , %(e_crossposted)s::smallint[]
        -- threads]
    ) as e (session_id, n, id, thread_id, type, body, private, resolves, digest
        -- [threads
        , crossposted
        -- threads]
    )
    join ok on ok.session_id = e.session_id
),
-- [threads
thread_rows as (
    insert into threads as t
        (session_id, id, parent_thread_id, agent, status, usage, running_since, created_at, updated_at)
    select ok.session_id, r.id, r.parent, r.agent::json, r.status, r.usage::json,
        case when r.status = 'running' then coalesce(r.since, ok.at) end, ok.at, ok.at
    from unnest(
        string_to_array(%(r_session)s, chr(31), ''), string_to_array(%(r_id)s, chr(31), ''), string_to_array(%(r_status)s, chr(31), ''), string_to_array(%(r_parent)s, chr(31), ''),
        %(r_agent)b::text[], %(r_usage)b::text[], string_to_array(%(r_since)s, chr(31), '')::timestamptz[]
    ) as r (session_id, id, status, parent, agent, usage, since)
    join ok on ok.session_id = r.session_id
    on conflict (session_id, id) do update set
        status = excluded.status,
        usage = coalesce(excluded.usage, t.usage),
        running_since = case
            when excluded.status = 'running' then coalesce(t.running_since, excluded.running_since)
        end,
        updated_at = excluded.updated_at
),
-- threads]
-- [decisions
decision_rows as (
    insert into audit (id, created_at, actor_kind, actor_id, action, objects, decision)
    select d.id, ok.at, 'policy', d.actor, d.action, string_to_array(d.objects, ' '), d.record::json
    from unnest(
        string_to_array(%(d_session)s, chr(31), ''), string_to_array(%(d_id)s, chr(31), ''), string_to_array(%(d_actor)s, chr(31), ''),
        %(d_action)b::text[], %(d_objects)b::text[], %(d_record)b::text[]
    ) as d (session_id, id, actor, action, objects, record)
    join ok on ok.session_id = d.session_id
),
-- decisions]
-- [inputs
taken as (
    delete from inputs i
    using unnest(string_to_array(%(t_session)s, chr(31), ''), string_to_array(%(t_id)s, chr(31), '')) as t (session_id, id), ok
    where ok.session_id = t.session_id and i.session_id = t.session_id and i.id = t.id
),
input_rows as (
    insert into inputs (session_id, position, id, thread_id, type, body, created_at)
    select ok.session_id, ok.input_base + i.n, i.id, i.thread_id, i.type, i.body::json, ok.at
    from unnest(
        string_to_array(%(i_session)s, chr(31), ''), %(i_n)s::bigint[], string_to_array(%(i_id)s, chr(31), ''), string_to_array(%(i_thread)s, chr(31), ''), string_to_array(%(i_type)s, chr(31), ''),
        %(i_body)b::text[]
    ) as i (session_id, n, id, thread_id, type, body)
    join ok on ok.session_id = i.session_id
),
-- inputs]
-- [wakes
roused as (
    insert into wakes as w (session_id, due_at)
    select ok.session_id, ok.at + ok.delay * interval '1 second' from ok where ok.wake in ('rouse', 'release')
    on conflict (session_id) do update set
        due_at = case
            when (select k.wake from ok k where k.session_id = w.session_id) = 'release' then excluded.due_at
            else least(w.due_at, excluded.due_at)
        end,
        brain_id = case
            when (select k.wake from ok k where k.session_id = w.session_id) = 'release' then null
            else w.brain_id
        end,
        lease_until = case
            when (select k.wake from ok k where k.session_id = w.session_id) = 'release' then null
            else w.lease_until
        end
),
done as (
    delete from wakes w using ok where ok.wake = 'done' and w.session_id = ok.session_id
),
-- wakes]
written as (select session_id, base, input_base, at from ok)
select session_id, base, input_base, at from written
