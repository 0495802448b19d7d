{#- Written by `lakehouse scaffold`, its own while unchanged: 3dceff0f7127fe42 -#}
{{ hub(
  src_pk='hk_product',
  src_nk='product_id',
  source_model=['stg_retail__products', 'stg_retail__transaction_items'],
) }}
