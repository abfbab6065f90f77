insert into identity_guess as g (org_id, connection_id, sender, wrong, forget_at)
values ($1, $2, $3, 1, plane_now() + $4::interval)
on conflict (org_id, connection_id, sender) do update
set wrong = case when g.forget_at > plane_now() then g.wrong + 1 else 1 end,
    forget_at = case when g.forget_at > plane_now() then g.forget_at else excluded.forget_at end
returning wrong
