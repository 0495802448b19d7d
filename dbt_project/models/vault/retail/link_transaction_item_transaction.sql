{#- Written by `lakehouse scaffold`, its own while unchanged: f9f07623a8b4351e -#}
{{ cdc_vault.link(
  src_pk='hk_transaction_item_transaction',
  src_fk=['hk_transaction_item', 'hk_transaction'],
  source_model='stg_retail__transaction_items',
) }}
