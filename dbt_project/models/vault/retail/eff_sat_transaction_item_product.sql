{#- Written by `lakehouse scaffold`, its own while unchanged: e5fff8b44d5a6d6c -#}
{{ eff_sat(
  src_pk='hk_transaction_item_product',
  src_dfk='hk_transaction_item',
  source_model='stg_retail__transaction_items',
) }}
