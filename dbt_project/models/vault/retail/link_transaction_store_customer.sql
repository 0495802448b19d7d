{#- Written by `lakehouse scaffold`, its own while unchanged: 8e4dfa01a9b99d4a -#}
{{ link(
  src_pk='hk_transaction_store_customer',
  src_fk=['hk_transaction', 'hk_store', 'hk_customer'],
  source_model='stg_retail__transactions',
) }}
