{#- Written by `lakehouse scaffold`, its own while unchanged: 70500359e1ce6ea7 -#}
{{ cdc_vault.eff_sat(
  src_pk='hk_transaction_item_transaction',
  src_dfk='hk_transaction_item',
  source_model='stg_retail__transaction_items',
) }}
