-- Decisions on tool calls stand in the audit trail too: actor_kind 'policy', the policy file (or 'judge') as the
-- actor, and what was decided why. They are written in the statement that writes the call (session/commit.sql).

alter table audit add column decision json;
create index audit_kind on audit (actor_kind, created_at desc, id desc);
