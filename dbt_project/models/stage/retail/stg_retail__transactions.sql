{#- Written by `lakehouse scaffold`, its own while unchanged: f81c9626491ab9f4 -#}
{{ cdc_vault.stage(
  source_model='parsed_retail__transactions',
  hashed_columns={
    'hk_transaction': ['txn_id'],
    'hk_store': ['store_id'],
    'hk_customer': ['customer_id'],
    'hk_transaction_store_customer': ['txn_id', 'store_id', 'customer_id'],
    'hd_transaction_details': {'is_hashdiff': true, 'columns': ['txn_timestamp', 'total_amount', 'payment_method']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
