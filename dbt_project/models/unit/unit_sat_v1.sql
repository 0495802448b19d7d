{{ cdc_vault.timeline(source_model='unit_sat', src_pk='hk_thing', src_hashdiff='hd_thing', src_payload=['price']) }}
