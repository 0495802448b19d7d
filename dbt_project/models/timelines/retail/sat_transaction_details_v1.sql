{#- Written by `lakehouse scaffold`, its own while unchanged: f740dbb03b8aeaae -#}
{{ timeline(
  source_model='sat_transaction_details',
  src_pk='hk_transaction',
  src_hashdiff='hd_transaction_details',
  src_payload=['txn_timestamp', 'total_amount', 'payment_method'],
) }}
