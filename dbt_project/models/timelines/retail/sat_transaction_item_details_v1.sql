{#- Written by `lakehouse scaffold`, its own while unchanged: bf7031ba1262ba2f -#}
{{ cdc_vault.timeline(
  source_model='sat_transaction_item_details',
  src_pk='hk_transaction_item',
  src_hashdiff='hd_transaction_item_details',
  src_payload=['quantity', 'unit_price', 'line_total'],
) }}
