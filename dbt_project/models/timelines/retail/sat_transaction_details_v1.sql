{#- Written by `lakehouse scaffold`, its own while unchanged: 7b3efbca0fb09628 -#}
{{ cdc_vault.timeline(
  source_model='sat_transaction_details',
  src_pk='hk_transaction',
  src_hashdiff='hd_transaction_details',
  src_payload=['txn_timestamp', 'total_amount', 'payment_method'],
) }}
