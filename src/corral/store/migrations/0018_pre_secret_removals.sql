-- Secrets that a secret manager keeps and no row refers to any more: a job removes them there. A trigger puts
-- them here, so no way of dropping a row can forget one. Such rows begin with byte 2 (corral.vault.backends).

create table secret_removals (
    id bigint generated always as identity primary key,
    stored bytea not null,
    queued_at timestamptz not null default now()
);

create function secret_dropped() returns trigger language plpgsql as $$
begin
    insert into secret_removals (stored) values (old.sealed);
    return null;
end
$$;
create trigger secret_replaced after update on vault_secrets for each row
    when (old.sealed is distinct from new.sealed and get_byte(old.sealed, 0) = 2)
    execute function secret_dropped();
create trigger secret_deleted after delete on vault_secrets for each row
    when (get_byte(old.sealed, 0) = 2)
    execute function secret_dropped();
