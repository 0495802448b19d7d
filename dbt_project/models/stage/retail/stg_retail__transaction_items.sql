{#- Written by `lakehouse scaffold`, its own while unchanged: 494ab21431bf208c -#}
{{ cdc_vault.stage(
  source_model='parsed_retail__transaction_items',
  hashed_columns={
    'hk_transaction_item': ['item_id'],
    'hk_transaction': ['txn_id'],
    'hk_product': ['product_id'],
    'hk_transaction_item_product': ['item_id', 'product_id'],
    'hk_transaction_item_transaction': ['item_id', 'txn_id'],
    'hd_transaction_item_details': {'is_hashdiff': true, 'columns': ['quantity', 'unit_price', 'line_total']},
    'hd_status': {'is_hashdiff': true, 'columns': []},
  },
) }}
