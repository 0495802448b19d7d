{#- Written by `lakehouse scaffold`, its own while unchanged: e9f203bf66763523 -#}
{{ cdc_vault.link(
  src_pk='hk_transaction_item_product',
  src_fk=['hk_transaction_item', 'hk_product'],
  source_model='stg_retail__transaction_items',
) }}
