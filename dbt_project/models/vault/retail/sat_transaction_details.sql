{#- Written by `lakehouse scaffold`, its own while unchanged: 97c6d6d51564bfe4 -#}
{{ cdc_vault.sat(
  src_pk='hk_transaction',
  src_hashdiff='hd_transaction_details',
  src_payload=['txn_timestamp', 'total_amount', 'payment_method'],
  source_model='stg_retail__transactions',
) }}
