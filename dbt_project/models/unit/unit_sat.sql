{{ cdc_vault.sat(src_pk='hk_thing', src_hashdiff='hd_thing', src_payload=['price'], source_model='unit_stage') }}
