{{ cdc_vault.rec_track_sat(src_pk='hk_thing', source_model='unit_stage') }}
