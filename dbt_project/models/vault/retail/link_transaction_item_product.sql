{#- Written by `lakehouse scaffold`, its own while unchanged: 8f2631bf39c1b442 -#}
{{ link(
  src_pk='hk_transaction_item_product',
  src_fk=['hk_transaction_item', 'hk_product'],
  source_model='stg_retail__transaction_items',
) }}
