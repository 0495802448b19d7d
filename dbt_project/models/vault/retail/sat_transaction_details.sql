{#- Written by `lakehouse scaffold`, its own while unchanged: 250ef3e9771410ed -#}
{{ cdc_vault.sat(
  src_pk='hk_transaction',
  src_hashdiff='hd_transaction_details',
  src_payload=['txn_timestamp', 'total_amount', 'payment_method'],
  source_model='stg_retail__transactions',
  src_nk=['txn_id'],
) }}
