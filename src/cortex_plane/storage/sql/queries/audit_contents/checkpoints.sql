select id, checkpoint::text as checkpoint, checkpoint_mac as mac from job where checkpoint is not null order by org_id, id
