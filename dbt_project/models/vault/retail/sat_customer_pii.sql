{#- Written by `lakehouse scaffold`, its own while unchanged: f33b6713a4826b17 -#}
{{ cdc_vault.sat(
  src_pk='hk_customer',
  src_hashdiff='hd_customer_pii',
  src_payload=['first_name', 'last_name', 'email'],
  source_model='stg_retail__customers',
  src_nk=['customer_id'],
) }}
