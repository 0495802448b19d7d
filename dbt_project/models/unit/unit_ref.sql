{{ cdc_vault.ref_table(src_pk='id', src_hashdiff='hd_thing', src_payload=['price'], source_model='unit_stage') }}
