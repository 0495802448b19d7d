{#- Written by `lakehouse scaffold`, its own while unchanged: d413d327964e3df5 -#}
{{ cdc_vault.sat(
  src_pk='hk_transaction_item',
  src_hashdiff='hd_transaction_item_details',
  src_payload=['quantity', 'unit_price', 'line_total'],
  source_model='stg_retail__transaction_items',
) }}
