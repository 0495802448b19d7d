{#- Written by `lakehouse scaffold`, its own while unchanged: 40770e9e6e570c89 -#}
{{ cdc_vault.hub(
  src_pk='hk_product',
  src_nk='product_id',
  source_model=['stg_retail__products', 'stg_retail__transaction_items'],
) }}
