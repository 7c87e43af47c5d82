-- The tokens that earlier claims of an item had (SHA-256; the newest few): whoever still holds one is told that
-- its lease is lost, instead of that it is unknown.
alter table work add column former_hashes bytea[] not null default '{}';
create index work_former_hashes on work using gin (former_hashes);
