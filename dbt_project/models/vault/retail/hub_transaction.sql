{#- Written by `lakehouse scaffold`, its own while unchanged: c006d298bf6f2e25 -#}
{{ cdc_vault.hub(
  src_pk='hk_transaction',
  src_nk='txn_id',
  source_model=['stg_retail__transactions', 'stg_retail__transaction_items'],
) }}
