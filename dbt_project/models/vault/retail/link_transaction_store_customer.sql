{#- Written by `lakehouse scaffold`, its own while unchanged: cbad2534b10b176f -#}
{{ cdc_vault.link(
  src_pk='hk_transaction_store_customer',
  src_fk=['hk_transaction', 'hk_store', 'hk_customer'],
  source_model='stg_retail__transactions',
) }}
