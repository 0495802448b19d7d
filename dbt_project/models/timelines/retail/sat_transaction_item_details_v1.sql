{#- Written by `lakehouse scaffold`, its own while unchanged: f0ea67a67307fcb3 -#}
{{ timeline(
  source_model='sat_transaction_item_details',
  src_pk='hk_transaction_item',
  src_hashdiff='hd_transaction_item_details',
  src_payload=['quantity', 'unit_price', 'line_total'],
) }}
