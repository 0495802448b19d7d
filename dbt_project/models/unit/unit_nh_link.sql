{{ cdc_vault.nh_link(src_pk='hk_thing_owner', src_fk=['hk_thing', 'hk_owner'], src_payload=['price'], source_model='unit_stage') }}
