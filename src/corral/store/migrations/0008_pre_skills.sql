-- Skills: folders of instructions and scripts that agents are given (contract section 17).

create table skills (
    id text primary key,
    -- The name in the front matter of every version, and of the folder; never changes.
    name text not null,
    display_name text not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create index skills_created on skills (created_at desc, id desc);
create index skills_name on skills (name, created_at desc, id desc);

-- A version never changes. Its blob is a zip archive in a form that depends on the files alone.
create table skill_versions (
    id text primary key,
    skill_id text not null references skills (id) on delete cascade,
    -- Orders the versions of a skill: the highest is the latest.
    position bigint generated always as identity,
    description text not null,
    blob_id text not null references blobs (id),
    size_bytes bigint not null,
    created_at timestamptz not null default now()
);
create index skill_versions_skill on skill_versions (skill_id, position desc);
create index skill_versions_blob on skill_versions (blob_id);

-- The skills of a session, over all its agents, pinned when it was made. Neither skill nor version is
-- referred to: both may be deleted, and the session still knows what it was told.
create table session_skills (
    session_id text not null references sessions (id) on delete cascade,
    position int not null,
    skill_id text not null,
    version_id text not null,
    name text not null,
    description text not null,
    primary key (session_id, position)
);
create index session_skills_skill on session_skills (skill_id);
