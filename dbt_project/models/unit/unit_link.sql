{{ cdc_vault.link(src_pk='hk_thing_owner', src_fk=['hk_thing', 'hk_owner'], source_model='unit_stage') }}
