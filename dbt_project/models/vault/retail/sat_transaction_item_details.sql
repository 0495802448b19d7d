{#- Written by `lakehouse scaffold`, its own while unchanged: 53bbaf460b65f597 -#}
{{ sat(
  src_pk='hk_transaction_item',
  src_hashdiff='hd_transaction_item_details',
  src_payload=['quantity', 'unit_price', 'line_total'],
  source_model='stg_retail__transaction_items',
) }}
