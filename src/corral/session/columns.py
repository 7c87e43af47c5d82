"""What is read of a session wherever it is shown: its row ``s``, and what belongs to it."""

from typing import Final, LiteralString

COLUMNS: Final[LiteralString] = (
    "s.id, s.created_at, s.updated_at, s.archived_at, s.title, s.metadata::text as metadata,"
    " s.environment_id, s.deployment_id, s.agent_id, s.agent_version, s.agent::text as agent, s.vault_ids,"
    " s.primary_thread_id, s.status, s.usage::text as usage, s.running_since, s.last_seq, s.last_input,"
    " s.budget::text as budget,"
    " s.epoch, now() as read_at,"
    # Null for a session that has its primary thread alone.
    " (select sum(coalesce((t.usage ->> 'active_seconds')::numeric, 0) + coalesce(greatest(0,"
    " extract(epoch from now() - t.running_since)), 0)) from threads t where t.session_id = s.id)"
    " as threads_active,"
    " (select json_agg(json_build_array(r.id, r.type, r.body, r.created_at, r.updated_at)"
    " order by r.position) from session_resources r where r.session_id = s.id) as resources,"
    # As the index `events_outcomes` has it; most sessions have none of these.
    " (select json_agg(json_build_array(o.seq, o.type, o.body, o.processed_at) order by o.seq)"
    " from events o where o.session_id = s.id and o.type in"
    " ('user.define_outcome', 'span.outcome_evaluation_start', 'span.outcome_evaluation_end')) as outcomes,"
    " (select case when exists (select from events o where o.session_id = s.id and o.type in"
    " ('user.define_outcome', 'span.outcome_evaluation_start', 'span.outcome_evaluation_end'))"
    " then (select r.seq from events r where r.session_id = s.id and r.type = 'span.model_request_start'"
    " order by r.seq desc limit 1) end) as last_request"
)
