{{ cdc_vault.history(source_model='unit_hub', src_pk='hk_thing', src_nk='id', satellites={'unit_sat': ['price']}) }}
