{#- Written by `lakehouse scaffold`, its own while unchanged: 35682302d353d479 -#}
{{ cdc_vault.sat(
  src_pk='hk_store',
  src_hashdiff='hd_store_details',
  src_payload=['store_name', 'city', 'state', 'opened_at'],
  source_model='stg_retail__stores',
  src_nk=['store_id'],
) }}
