{#- Written by `lakehouse scaffold`, its own while unchanged: e69894bc14a8cd9d -#}
{{ eff_sat(
  src_pk='hk_transaction_item_transaction',
  src_dfk='hk_transaction_item',
  source_model='stg_retail__transaction_items',
) }}
