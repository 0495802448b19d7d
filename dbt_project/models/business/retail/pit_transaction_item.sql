{{ cdc_vault.pit(source_model='hub_transaction_item', src_pk='hk_transaction_item', satellites=['sat_transaction_item_details', 'sts_transaction_item']) }}
