-- User profiles (contract section 22): whom a platform serves, as the platform tells it.

create table user_profiles (
    id text primary key,
    name text,
    -- What lists are ordered by: in the collation "C", lower() folds the letters of ASCII and no others.
    name_key text collate "C" generated always as (lower(name collate "C")) stored,
    access_type text not null check (access_type in ('application', 'passthrough')),
    -- Reference, account status and so on, as the API shows them.
    external_user_details json not null,
    metadata json not null default '{}',
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create index user_profiles_created on user_profiles (created_at desc, id desc);
create index user_profiles_name on user_profiles (name_key, id) where name_key is not null;
