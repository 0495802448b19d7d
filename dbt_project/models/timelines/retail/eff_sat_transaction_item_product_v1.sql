{#- Written by `lakehouse scaffold`, its own while unchanged: 3130f7ec2ad0d7ff -#}
{{ timeline(
  source_model='eff_sat_transaction_item_product',
  src_pk='hk_transaction_item_product',
  src_hashdiff='is_active',
  src_payload=['hk_transaction_item'],
) }}
