{{ cdc_vault.pit(source_model='hub_transaction', src_pk='hk_transaction', satellites=['sat_transaction_details', 'sts_transaction']) }}
