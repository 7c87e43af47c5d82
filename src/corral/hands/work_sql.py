"""The statements of the work queue. Each says what it promises; no clock but the database's is read."""

from typing import Final, LiteralString

_COLUMNS: Final[LiteralString] = (
    "id, environment_id, session_id, state, metadata, created_at, acknowledged_at, started_at,"
    " latest_heartbeat_at, stop_requested_at, stopped_at"
)

# Queue an item unless the session has one on offer, in hand, or on its way to a stop that is still awaited.
# No row: there was one.
ENSURE: Final[LiteralString] = """
insert into work (id, environment_id, session_id)
select %(id)s, %(environment)s, %(session)s
where not exists (
    select 1 from work
    where session_id = %(session)s and state = 'stopping' and lease_until > clock_timestamp()
)
on conflict (session_id) where state in ('queued', 'starting', 'active') do nothing
returning id
"""

# Note a worker that polls, at most every five seconds.
SEEN: Final[LiteralString] = """
insert into workers (environment_id, worker_id) values (%(environment)s, %(worker)s)
on conflict (environment_id, worker_id) do update set seen_at = now()
where workers.seen_at < now() - interval '5 seconds'
"""

_CLAIM_FROM: Final[LiteralString] = """
update work set
    former_hashes = case when token_hash is null then former_hashes
        else (array_prepend(token_hash, former_hashes))[1:8] end,
    state = 'queued', token_hash = %(hash)s, worker_id = %(worker)s, polled_at = clock_timestamp(),
    lease_until = null, last_heartbeat = null, acknowledged_at = null, started_at = null,
    latest_heartbeat_at = null
where id = (
    select w.id from work w
"""
_CLAIM_WHERE: Final[LiteralString] = """
    and (
        (w.state = 'queued' and (
            w.polled_at is null or w.polled_at < clock_timestamp() - %(reclaim)s * interval '1 millisecond'))
        or (w.state in ('starting', 'active') and w.lease_until < clock_timestamp())
    )
    order by w.created_at, w.id limit 1
    for update of w skip locked
)
returning
"""

# Claim the oldest item that is on offer, was claimed and not acknowledged in time, or whose lease ran out.
# Two polls never get the same item; the token of whoever had it before is a former one with the commit.
CLAIM: Final[LiteralString] = (
    _CLAIM_FROM + "where w.environment_id = %(environment)s" + _CLAIM_WHERE + _COLUMNS
)
CLAIM_POOL: Final[LiteralString] = (
    _CLAIM_FROM
    + "join environments e on e.id = w.environment_id"
    + " where e.config ->> 'type' = 'cloud'"
    + _CLAIM_WHERE
    + _COLUMNS
)

# End the items that were to stop and whose worker has not been heard of within its lease.
REAP: Final[LiteralString] = (
    """
update work set
    state = 'stopped', stopped_at = clock_timestamp(), stop_reason = 'lease expired'
where state = 'stopping' and lease_until < clock_timestamp()
    and (%(environment)s::text is null or environment_id = %(environment)s)
returning """
    + _COLUMNS
)

# Queue another item after a stopped one if the session runs, or has a sandbox call without an answer. If the
# stopped one lived less than ten seconds, the next one is shown as claimed, and so held back for the time of
# a reclaim. No row: no need, or there is one already. (Bodies are not looked into: they may hold NUL escapes,
# at which PostgreSQL's JSON operators stop.)
FOLLOW: Final[LiteralString] = """
insert into work (id, environment_id, session_id, polled_at)
select %(id)s, s.environment_id, s.id,
    case when w.created_at > clock_timestamp() - interval '10 seconds' then clock_timestamp() end
from sessions s join work w on w.id = %(work)s
where s.id = %(session)s and s.archived_at is null and s.status <> 'terminated' and (
    s.status = 'running'
    or exists (
        select 1 from events u
        where u.session_id = s.id and u.type = 'agent.tool_use'
            and not exists (select 1 from events r where r.session_id = s.id and r.resolves = u.id)
    )
)
on conflict (session_id) where state in ('queued', 'starting', 'active') do nothing
returning environment_id
"""

# Offer again what a worker holds that is gone: it says so itself, under a new name, after its restart.
RELEASE: Final[LiteralString] = """
update work set lease_until = clock_timestamp(), polled_at = null
where worker_id = %(worker)s and state <> 'stopped'
    and (%(environment)s::text is null or environment_id = %(environment)s)
returning environment_id
"""

# Only from queued: an acknowledged item stays as it is. No row: it was in another state, or unknown.
ACKNOWLEDGE: Final[LiteralString] = (
    """
update work set
    state = 'starting', acknowledged_at = clock_timestamp(),
    lease_until = clock_timestamp() + %(seconds)s * interval '1 second'
where id = %(work)s and environment_id = %(environment)s and state = 'queued'
returning """
    + _COLUMNS
)

LOCK: Final[LiteralString] = """
select *, clock_timestamp() as now from work
where id = %(work)s and environment_id = %(environment)s for update
"""

EXTEND: Final[LiteralString] = """
update work set
    state = 'active', started_at = coalesce(started_at, clock_timestamp()), last_heartbeat = %(last)s::text,
    latest_heartbeat_at = %(last)s::text::timestamptz,
    lease_until = clock_timestamp() + %(ttl)s * interval '1 second'
where id = %(work)s
"""

# To 'stopping' where a worker beats for the item, which will see it; else, or by force, to 'stopped' (one
# that has not yet beaten sees it at its first heartbeat). No row: stopped before, or unknown.
STOP: Final[LiteralString] = (
    """
update work set
    state = case when %(force)s or state in ('queued', 'starting') then 'stopped' else 'stopping' end,
    stop_requested_at = coalesce(stop_requested_at, clock_timestamp()),
    stopped_at = case when %(force)s or state in ('queued', 'starting') then clock_timestamp() end,
    stop_reason = case
        when %(by)s::text is not null then %(by)s::text
        else 'given back by worker ' || coalesce(worker_id, 'without a name')
    end
where id = %(work)s and environment_id = %(environment)s and state <> 'stopped'
returning """
    + _COLUMNS
)

# Workers count if they polled this environment within 30 seconds, or the pool and this is one of its own.
STATS: Final[LiteralString] = """
select
    count(*) filter (where state = 'queued' and polled_at is null) as depth,
    count(*) filter (where state = 'queued' and polled_at is not null) as pending,
    min(created_at) filter (where state = 'queued') as oldest,
    (
        select count(distinct worker_id) from workers
        where seen_at > now() - interval '30 seconds' and (
            environment_id = %(environment)s
            or (environment_id = %(pool)s and exists (
                select 1 from environments where id = %(environment)s and config ->> 'type' = 'cloud'))
        )
    ) as workers
from work where environment_id = %(environment)s
"""

LIST: Final[LiteralString] = (
    "select "
    + _COLUMNS
    + """ from work
where environment_id = %(environment)s
    and (%(moment)s::timestamptz is null or (created_at, id) < (%(moment)s, %(last)s))
order by created_at desc, id desc limit %(limit)s
"""
)

# The newest items of a session, with who held them and why they ended.
OF_SESSION: Final[LiteralString] = (
    "select "
    + _COLUMNS
    + """, worker_id, stop_reason from work
where session_id = %(session)s order by created_at desc, id desc limit 5
"""
)

RETRIEVE: Final[LiteralString] = (
    "select " + _COLUMNS + " from work where id = %(work)s and environment_id = %(environment)s"
)

SET_METADATA: Final[LiteralString] = (
    "update work set metadata = %(metadata)s::json where id = %(work)s returning " + _COLUMNS
)

HOLDER: Final[LiteralString] = """
select id, session_id, environment_id from work where token_hash = %(hash)s and state <> 'stopped'
"""

# Whose token this was: of an earlier claim, or of an item that is stopped.
FORMER_HOLDER: Final[LiteralString] = """
select id, session_id, environment_id from work where token_hash = %(hash)s and state = 'stopped'
union all
select id, session_id, environment_id from work where former_hashes @> array[%(hash)s::bytea]
"""

# The first claim that begins a call keeps it. No row: the session has no such call.
BEGIN_CALL: Final[LiteralString] = """
with call as (
    select id, exists (
        select 1 from events r where r.session_id = %(session)s and r.resolves = u.id
    ) as answered
    from events u
    where u.session_id = %(session)s and u.id = %(tool_use)s
        and u.type in ('agent.tool_use', 'agent.mcp_tool_use', 'agent.custom_tool_use')
), begun as (
    insert into begun_calls (session_id, tool_use_id, work_id, token_hash)
    select %(session)s, id, %(work)s, %(hash)s from call where not answered
    -- An update that changes nothing: it waits for a rival's commit and gives its row back.
    on conflict (session_id, tool_use_id) do update set work_id = begun_calls.work_id
    returning token_hash
)
select call.answered, begun.token_hash from call left join begun on true
"""

# Whether a worker holds the item of a session.
HELD: Final[LiteralString] = """
select 1 as held from work
where session_id = %(session)s and state in ('starting', 'active', 'stopping') and lease_until > now()
"""
