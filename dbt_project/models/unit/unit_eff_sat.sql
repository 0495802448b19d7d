{{ cdc_vault.eff_sat(src_pk='hk_thing_owner', src_dfk='hk_thing', source_model='unit_stage') }}
