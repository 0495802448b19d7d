{#- Written by `lakehouse scaffold`, its own while unchanged: fb37745c1adc73ea -#}
{{ cdc_vault.sat(
  src_pk='hk_transaction_item',
  src_hashdiff='hd_transaction_item_details',
  src_payload=['quantity', 'unit_price', 'line_total'],
  source_model='stg_retail__transaction_items',
  src_nk=['item_id'],
) }}
