-- The log in partitions by session, so that each table and each index of it stays a size that vacuum and a
-- restore go through in one go, several at a time. All of a session lies in one partition, and every statement
-- names its session, so each reads and writes one alone. Servers of the version before see no difference.
--
-- Existing events are copied under a lock: servers wait meanwhile (docs/scaling.md says how long).
alter table events rename to events_whole;
drop trigger webhook_event on events_whole;
alter table events_whole drop constraint events_pkey;
drop index events_resolves, events_tool_uses, events_outcomes;

create table events (
    like events_whole including defaults including generated including storage including comments,
    primary key (session_id, seq),
    foreign key (session_id) references sessions (id) on delete cascade
) partition by hash (session_id);

do $$ begin
    for part in 0..7 loop
        execute format(
            'create table events_p%s partition of events for values with (modulus 8, remainder %s)', part, part
        );
    end loop;
end $$;

insert into events select * from events_whole;
drop table events_whole;

create unique index events_resolves on events (session_id, resolves) where resolves is not null;
create index events_tool_uses on events (session_id, id)
    where type in ('agent.tool_use', 'agent.mcp_tool_use', 'agent.custom_tool_use');
create index events_outcomes on events (session_id, seq)
    where type in ('user.define_outcome', 'span.outcome_evaluation_start', 'span.outcome_evaluation_end');

create trigger webhook_event after insert on events
    for each row when (
        new.type in (
            'session.status_running', 'session.status_idle', 'session.status_rescheduled',
            'session.status_terminated', 'session.updated', 'session.thread_created',
            'session.thread_status_idle', 'session.thread_status_terminated', 'span.outcome_evaluation_end'
        )
        and pg_sequence_last_value('webhook_presence') is not null
    ) execute function webhook_tell_event();
