{#- Written by `lakehouse scaffold`, its own while unchanged: 6c7b5dd3753249ac -#}
{{ hub(
  src_pk='hk_transaction',
  src_nk='txn_id',
  source_model=['stg_retail__transactions', 'stg_retail__transaction_items'],
) }}
