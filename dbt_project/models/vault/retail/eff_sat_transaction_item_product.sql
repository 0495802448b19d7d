{#- Written by `lakehouse scaffold`, its own while unchanged: d10c7b55c0c08ca6 -#}
{{ cdc_vault.eff_sat(
  src_pk='hk_transaction_item_product',
  src_dfk='hk_transaction_item',
  source_model='stg_retail__transaction_items',
) }}
