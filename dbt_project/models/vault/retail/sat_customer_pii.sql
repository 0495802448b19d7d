{#- Written by `lakehouse scaffold`, its own while unchanged: 94d1921c32932cec -#}
{{ cdc_vault.sat(
  src_pk='hk_customer',
  src_hashdiff='hd_customer_pii',
  src_payload=['first_name', 'last_name', 'email'],
  source_model='stg_retail__customers',
) }}
