{#- Written by `lakehouse scaffold`, its own while unchanged: c0ad0f4bdfbe0b9f -#}
{{ cdc_vault.eff_sat(
  src_pk='hk_transaction_item_product',
  src_dfk='hk_transaction_item',
  source_model='stg_retail__transaction_items',
  src_nk=['item_id'],
) }}
