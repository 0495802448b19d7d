{#- Written by `lakehouse scaffold`, its own while unchanged: a02443ca859373c6 -#}
{{ sat(
  src_pk='hk_customer',
  src_hashdiff='hd_customer_pii',
  src_payload=['first_name', 'last_name', 'email'],
  source_model='stg_retail__customers',
) }}
