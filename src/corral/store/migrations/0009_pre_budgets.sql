-- Budgets (contract section 8.6) and outcomes (section 14).

-- The session's budget as the API shows it: the limit that it began with, or was changed to. Changes are events
-- in the log too.
alter table sessions add column budget json;

-- The few events that tell what became of a session's outcomes, so that they are found without reading its log.
create index events_outcomes on events (session_id, seq)
    where type in ('user.define_outcome', 'span.outcome_evaluation_start', 'span.outcome_evaluation_end');
