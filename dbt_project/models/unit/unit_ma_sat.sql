{{ cdc_vault.ma_sat(src_pk='hk_thing', src_cdk='line', src_hashdiff='hd_thing', src_payload=['price'], source_model='unit_stage') }}
