{#- Written by `lakehouse scaffold`, its own while unchanged: 2cae7cc007107f25 -#}
{{ cdc_vault.eff_sat(
  src_pk='hk_transaction_item_transaction',
  src_dfk='hk_transaction_item',
  source_model='stg_retail__transaction_items',
  src_nk=['item_id'],
) }}
