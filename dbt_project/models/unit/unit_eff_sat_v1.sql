{{ cdc_vault.timeline(source_model='unit_eff_sat', src_pk='hk_thing_owner', src_hashdiff='is_active', src_payload=['hk_thing']) }}
