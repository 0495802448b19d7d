{{ cdc_vault.hub(src_pk='hk_thing', src_nk='id', source_model='unit_stage') }}
