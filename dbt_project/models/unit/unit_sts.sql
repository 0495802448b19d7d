{{ cdc_vault.sts_sat(src_pk='hk_thing', source_model='unit_stage') }}
