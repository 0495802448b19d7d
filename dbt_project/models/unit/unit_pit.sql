{{ cdc_vault.pit(source_model='unit_hub', src_pk='hk_thing', satellites=['unit_sat'], snapshots='unit_snap') }}
