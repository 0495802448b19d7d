{#- Written by `lakehouse scaffold`, its own while unchanged: 381c52f3e6708bb0 -#}
{{ link(
  src_pk='hk_transaction_item_transaction',
  src_fk=['hk_transaction_item', 'hk_transaction'],
  source_model='stg_retail__transaction_items',
) }}
